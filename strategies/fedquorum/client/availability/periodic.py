"""Clients whose probability of being available changes with time: p_n(t) = p_n f(t).

The non-stationary patterns of Xiang et al., "Efficient Federated Learning against Heterogeneous
and Non-stationary Client Unavailability" (NeurIPS 2024, arXiv 2409.17446), section 7 and appendix
J.3, and the authors' code (github.com/mingxiang12/FedAWE, util/util.py), whose defaults these are.
t counts from 0: it is ``server_round`` - 1. ``phase`` is ours; the paper has 0.
"""

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ...parameters import EVEN_PERIOD, FRACTION, NON_NEGATIVE_COUNT, PERIOD, PROBABILITY, SINE_DEPTH
from ...rule import check_parameters, parameter, supplied


@dataclass(frozen=True)
class Periodic:
    """Available with probability p_n(t) in round t, independently of all other rounds.

    One draw a round, the same as ``Bernoulli``'s: with f = 1 in every round both have the same
    path, to the bit.
    """

    memoryless: ClassVar[bool] = True

    p: float = supplied(PROBABILITY)
    period: int = parameter(20, PERIOD)

    def __post_init__(self) -> None:
        check_parameters(self)

    @abstractmethod
    def probability(self, t: int) -> float:
        """Return p_n(t) in [0, 1] of round t, from 0."""

    @property
    def rates(self) -> tuple[float, ...]:
        """p_n(t) in the rounds t = 0, ..., period - 1."""
        return tuple(map(self.probability, range(self.period)))

    @property
    def rate(self) -> float:
        """The mean of p_n(t) over one period, in [0, 1]."""
        return math.fsum(self.rates) / self.period

    def advance(self, state: int | None, server_round: int, rng: np.random.Generator) -> int:
        """Return 1 with probability p_n(t), otherwise 0."""
        return int(rng.random() < self.probability(server_round - 1))

    def available(self, state: int) -> bool:
        """Return whether the state is 1."""
        return state == 1


@dataclass(frozen=True)
class Staircase(Periodic):
    """p_n(t) = p in the first half of every period, p low in the second.

    Parameters
    ----------
    p : float
        p_n, in (0, 1].
    period : int
        P, in rounds, even and >= 2; 20 in the paper.
    phase : int
        The round of the period in which round t = 0 is, >= 0.
    low : float
        In [0, 1]; 0.4 in the paper.

    Raises
    ------
    ParameterError
        If a parameter is outside its range.
    """

    period: int = parameter(20, EVEN_PERIOD)
    phase: int = parameter(0, NON_NEGATIVE_COUNT)
    low: float = parameter(0.4, FRACTION)

    def probability(self, t: int) -> float:
        """Return p or p low."""
        first_half = (t + self.phase) % self.period < self.period // 2
        return self.p if first_half else self.p * self.low


@dataclass(frozen=True)
class Sine(Periodic):
    """p_n(t) = p g(t), g(t) = gamma sin(2 pi t / P) + 1 - gamma.

    Parameters
    ----------
    p : float
        p_n, in (0, 1].
    period : int
        P >= 2, in rounds; 20 in the paper.
    phase : int
        The round of the period in which round t = 0 is, >= 0.
    gamma : float
        In [0, 0.5], beyond which g would be negative; 0.3 in the paper.

    Raises
    ------
    ParameterError
        If a parameter is outside its range.
    """

    phase: int = parameter(0, NON_NEGATIVE_COUNT)
    gamma: float = parameter(0.3, SINE_DEPTH)

    def probability(self, t: int) -> float:
        """Return p g(t)."""
        place = (t + self.phase) % self.period
        # Written so that g is 1 without rounding for gamma = 0 and where the sine is 1.
        wave = 1.0 - self.gamma * (1.0 - math.sin(2.0 * math.pi * place / self.period))
        return self.p * wave


@dataclass(frozen=True)
class InterleavedSine(Sine):
    """p_n(t) = p g(t) where that is at least ``cut``, otherwise 0; g as of ``Sine``.

    A client with p < cut is never available: its rate is 0. One with p = cut is available at the
    peak of the sine alone.

    Parameters
    ----------
    p, period, phase, gamma
        As of ``Sine``.
    cut : float
        delta_0 in [0, 1]; 0.1 in the paper.

    Raises
    ------
    ParameterError
        If a parameter is outside its range.
    """

    cut: float = parameter(0.1, FRACTION)

    def probability(self, t: int) -> float:
        """Return p g(t), or 0 where that is below the cut."""
        wave = super().probability(t)
        return wave if wave >= self.cut else 0.0
