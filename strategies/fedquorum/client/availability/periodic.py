"""Clients whose probability of being available changes with time: p_n(t) = p_n f(t).

The non-stationary patterns of Xiang et al., "Efficient Federated Learning against Heterogeneous
and Non-stationary Client Unavailability" (NeurIPS 2024, arXiv 2409.17446), section 7 and appendix
J.3, and of the authors' code (github.com/mingxiang12/FedAWE, util/util.py), whose defaults these
are. ``phase`` is ours; the paper has 0. t counts from 0: it is ``server_round`` - 1. Shapes: N is
the number of clients.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ...parameters import EVEN_PERIOD, FRACTION, NON_NEGATIVE_COUNT, PERIOD, PROBABILITY, SINE_DEPTH
from ...rule import check_parameters, parameter, parameters_of
from ...types import FloatArray


class Pattern(ABC):
    """How the probability of being available changes with time, the same for all clients.

    ``key`` is its name in settings and records; ``summary`` says in one line what it does.

    Raises
    ------
    ParameterError
        When made with a value outside its range.
    """

    key: ClassVar[str]
    summary: ClassVar[str]
    period: int
    phase: int

    def __post_init__(self) -> None:
        check_parameters(self)

    @abstractmethod
    def factor(self, place: int) -> float:
        """Return f in [0, 1] at a place of the period, from 0; 1 without rounding at its peak."""

    def at(self, p: FloatArray, t: int) -> FloatArray:
        """Return p_n(t) of round t (from 0) of clients with these p_n, shape (N,)."""
        return p * self.factor((t + self.phase) % self.period)

    @abstractmethod
    def largest(self, p: FloatArray) -> FloatArray:
        """Return the largest p_n(t) of a period, 0 for a client never available, shape (N,)."""

    def mean(self, p: FloatArray) -> FloatArray:
        """Return the mean of p_n(t) over one period, in [0, 1], shape (N,)."""
        total = np.zeros(p.shape)
        for t in range(self.period):
            total += self.at(p, t)
        return total / self.period


@dataclass(frozen=True)
class Staircase(Pattern):
    """f = 1 in the first half of every period, ``low`` in the second.

    Parameters
    ----------
    period : int
        P, in rounds, even and >= 2; 20 in the paper.
    phase : int
        The round of the period in which round t = 0 is, >= 0.
    low : float
        In [0, 1]; 0.4 in the paper.
    """

    key = "staircase"
    summary = "Each client is available less often in the second half of every period."

    period: int = parameter(20, EVEN_PERIOD)
    phase: int = parameter(0, NON_NEGATIVE_COUNT)
    low: float = parameter(0.4, FRACTION)

    def factor(self, place: int) -> float:
        """Return 1 or ``low``."""
        return 1.0 if place < self.period // 2 else self.low

    def largest(self, p: FloatArray) -> FloatArray:
        """Return p_n, of the first half."""
        return p


@dataclass(frozen=True)
class Sine(Pattern):
    """f = g(t) = gamma sin(2 pi t / P) + 1 - gamma.

    Parameters
    ----------
    period : int
        P >= 2, in rounds; 20 in the paper.
    phase : int
        The round of the period in which round t = 0 is, >= 0.
    gamma : float
        In [0, 0.5], beyond which g would be negative; 0.3 in the paper.
    """

    key = "sine"
    summary = "Each client's probability of being available rises and falls as a sine."

    period: int = parameter(20, PERIOD)
    phase: int = parameter(0, NON_NEGATIVE_COUNT)
    gamma: float = parameter(0.3, SINE_DEPTH)

    def factor(self, place: int) -> float:
        """Return g, written so that neither gamma = 0 nor a sine of 1 rounds it."""
        return 1.0 - self.gamma * (1.0 - math.sin(2.0 * math.pi * place / self.period))

    def largest(self, p: FloatArray) -> FloatArray:
        """Return p_n(t) of the round that is nearest to a quarter of the period."""
        before = self.period // 4 - self.phase
        return np.maximum(self.at(p, before), self.at(p, before + 1))


@dataclass(frozen=True)
class InterleavedSine(Sine):
    """p_n(t) = p_n g(t) where that is at least ``cut``, otherwise 0; g as of ``Sine``.

    A client with p_n < cut is never available; one with p_n = cut is at the peak of g alone.

    Parameters
    ----------
    period, phase, gamma
        As of ``Sine``.
    cut : float
        delta_0 in [0, 1]; 0.1 in the paper.
    """

    key = "interleaved"
    summary = "As sine, but never available while the probability is below a cut."

    cut: float = parameter(0.1, FRACTION)

    def at(self, p: FloatArray, t: int) -> FloatArray:
        """Return p_n g(t), or 0 where that is below the cut."""
        wave = super().at(p, t)
        return np.where(wave >= self.cut, wave, 0.0)


PATTERNS: Mapping[str, type[Pattern]] = {
    pattern.key: pattern for pattern in (Staircase, Sine, InterleavedSine)
}
"""All patterns by their keys."""


def pattern_of(availability: Mapping[str, Any]) -> Pattern | None:
    """Return the pattern in the settings of an availability; None where nothing changes with time.

    Raises
    ------
    ParameterError
        For a parameter outside its range.
    """
    pattern = PATTERNS.get(str(availability.get("name")))
    if pattern is None:
        return None
    names = (item.name for item in parameters_of(pattern))
    return pattern(**{name: availability[name] for name in names if name in availability})


@dataclass(frozen=True)
class Periodic:
    """Available with probability p_n(t) in round t, independently of all other rounds.

    One draw a round, the same as that of ``Bernoulli``: where f = 1 in every round, both have the
    same path, to the bit.

    Parameters
    ----------
    p : float
        p_n, in (0, 1].
    pattern : Pattern
        How that changes with time.

    Raises
    ------
    ParameterError
        If p is outside its range.
    """

    memoryless: ClassVar[bool] = True

    p: float
    pattern: Pattern

    def __post_init__(self) -> None:
        PROBABILITY.check("p", self.p)

    @property
    def rate(self) -> float:
        """The mean of p_n(t) over one period; 0 for a client that is never available."""
        return float(self.pattern.mean(np.array(self.p)))

    def advance(self, state: int | None, server_round: int, rng: np.random.Generator) -> int:
        """Return 1 with probability p_n(t), otherwise 0."""
        return int(rng.random() < self.pattern.at(np.array(self.p), server_round - 1))

    def available(self, state: int) -> bool:
        """Return whether the state is 1."""
        return state == 1
