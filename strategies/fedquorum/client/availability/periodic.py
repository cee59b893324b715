"""Change a client's probability of being available with time: p_n(t) = p_n f(t).

These are the non-stationary patterns of Xiang et al., "Efficient Federated Learning against
Heterogeneous and Non-stationary Client Unavailability" (NeurIPS 2024, arXiv 2409.17446), section 7
and appendix J.3. The defaults are those of the authors' code (github.com/mingxiang12/FedAWE,
util/util.py). ``phase`` is ours; the paper has 0. t counts from 0: it is ``server_round`` - 1.
Shapes: N is the number of clients.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ...rules.parameters import (
    EVEN_PERIOD,
    FRACTION,
    NON_NEGATIVE_INT,
    PERIOD,
    PROBABILITY,
    SINE_DEPTH,
)
from ...rules.rule import check_parameters, get_parameters, parameter
from ...rules.types import FloatArray


class AvailabilityPattern(ABC):
    """A change of all clients' probability of being available with time.

    ``key`` is the pattern's name in settings and records, ``summary`` its description in one line.

    Raises
    ------
    ParameterError
        If a value is outside its range.
    """

    key: ClassVar[str]
    summary: ClassVar[str]
    period: int
    phase: int

    def __post_init__(self) -> None:
        check_parameters(self)

    @abstractmethod
    def factor(self, position: int) -> float:
        """Return f in [0, 1] at a round of the period, from 0; exactly 1 at the peak."""

    def compute_probabilities(self, p: FloatArray, t: int) -> FloatArray:
        """Return p_n(t) in round t (from 0) for clients with these p_n, shape (N,)."""
        return p * self.factor((t + self.phase) % self.period)

    @abstractmethod
    def compute_max_probabilities(self, p: FloatArray) -> FloatArray:
        """Return the largest p_n(t) of a period, 0 for a client without any, shape (N,)."""

    def compute_mean_probabilities(self, p: FloatArray) -> FloatArray:
        """Return the mean of p_n(t) over one period, in [0, 1], shape (N,)."""
        total = np.zeros(p.shape)
        for t in range(self.period):
            total += self.compute_probabilities(p, t)
        return total / self.period


@dataclass(frozen=True)
class Staircase(AvailabilityPattern):
    """A pattern with f = 1 in the first half of every period, and f = ``low`` in the second.

    Parameters
    ----------
    period : int
        P, in rounds, even and >= 2; 20 in the paper.
    phase : int
        The position of round t = 0 in the period, >= 0.
    low : float
        In [0, 1]; 0.4 in the paper.
    """

    key = "staircase"
    summary = "Each client is available less often in the second half of every period."

    period: int = parameter(20, EVEN_PERIOD)
    phase: int = parameter(0, NON_NEGATIVE_INT)
    low: float = parameter(0.4, FRACTION)

    def factor(self, position: int) -> float:
        """Return 1 or ``low``."""
        return 1.0 if position < self.period // 2 else self.low

    def compute_max_probabilities(self, p: FloatArray) -> FloatArray:
        """Return p_n, which holds in the first half."""
        return p


@dataclass(frozen=True)
class Sine(AvailabilityPattern):
    """A pattern with f = g(t) = gamma sin(2 pi t / P) + 1 - gamma.

    Parameters
    ----------
    period : int
        P >= 2, in rounds; 20 in the paper.
    phase : int
        The position of round t = 0 in the period, >= 0.
    gamma : float
        In [0, 0.5], above which g would be negative; 0.3 in the paper.
    """

    key = "sine"
    summary = "Each client's probability of being available rises and falls as a sine."

    period: int = parameter(20, PERIOD)
    phase: int = parameter(0, NON_NEGATIVE_INT)
    gamma: float = parameter(0.3, SINE_DEPTH)

    def factor(self, position: int) -> float:
        """Return g, which is exactly 1 for gamma = 0 and for a sine of 1."""
        return 1.0 - self.gamma * (1.0 - math.sin(2.0 * math.pi * position / self.period))

    def compute_max_probabilities(self, p: FloatArray) -> FloatArray:
        """Return p_n(t) in the round that is nearest to a quarter of the period."""
        before = self.period // 4 - self.phase
        return np.maximum(
            self.compute_probabilities(p, before), self.compute_probabilities(p, before + 1)
        )


@dataclass(frozen=True)
class InterleavedSine(Sine):
    """A pattern with p_n(t) = p_n g(t) if that is at least ``cut``, and 0 otherwise.

    g is that of ``Sine``. A client with p_n < cut is never available. A client with p_n = cut is
    available only at the peak of g.

    Parameters
    ----------
    period, phase, gamma
        As in ``Sine``.
    cut : float
        delta_0 in [0, 1]; 0.1 in the paper.
    """

    key = "interleaved"
    summary = "As sine, but never available while the probability is below a cut."

    cut: float = parameter(0.1, FRACTION)

    def compute_probabilities(self, p: FloatArray, t: int) -> FloatArray:
        """Return p_n g(t), or 0 if that is below the cut."""
        wave = super().compute_probabilities(p, t)
        return np.where(wave >= self.cut, wave, 0.0)


PATTERNS: Mapping[str, type[AvailabilityPattern]] = {
    pattern.key: pattern for pattern in (Staircase, Sine, InterleavedSine)
}
"""All patterns by their keys."""


def build_pattern(availability: Mapping[str, Any]) -> AvailabilityPattern | None:
    """Return the pattern in the settings of an availability; None without a change with time.

    Raises
    ------
    ParameterError
        If a parameter is outside its range.
    """
    pattern = PATTERNS.get(str(availability.get("name")))
    if pattern is None:
        return None
    names = (item.name for item in get_parameters(pattern))
    return pattern(**{name: availability[name] for name in names if name in availability})


@dataclass(frozen=True)
class PeriodicProcess:
    """A client that is available with probability p_n(t) in round t, independently of other rounds.

    A round takes one draw, the same as ``Bernoulli``'s. If f = 1 in every round, both processes
    have the same path, bit by bit.

    Parameters
    ----------
    p : float
        p_n, in (0, 1].
    pattern : AvailabilityPattern
        The change of p_n with time.

    Raises
    ------
    ParameterError
        If p is outside its range.
    """

    is_memoryless: ClassVar[bool] = True

    p: float
    pattern: AvailabilityPattern

    def __post_init__(self) -> None:
        PROBABILITY.check("p", self.p)

    @property
    def rate(self) -> float:
        """The mean of p_n(t) over one period; 0 for a client that is never available."""
        return float(self.pattern.compute_mean_probabilities(np.array(self.p)))

    def advance(self, state: int | None, server_round: int, rng: np.random.Generator) -> int:
        """Return 1 with probability p_n(t), otherwise 0."""
        return int(
            rng.random() < self.pattern.compute_probabilities(np.array(self.p), server_round - 1)
        )

    def is_available(self, state: int) -> bool:
        """Say whether the state is 1."""
        return state == 1
