"""Decide when one client is available, by pure processes whose state is one whole number.

The processes are the participation patterns of Wang and Ji, "A Lightweight Method for Tackling
Unknown Participation Statistics in Federated Averaging" (ICLR 2024), clients that rest, and traces.
Rounds count from 1. The stationary probability p_n is the same in every round and for every
pattern, but differs between clients. ``periodic`` has the patterns that change with time.
"""

from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from ...errors import ParameterError
from ...rng import make_generator
from ...rules.parameters import CYCLE_START, NON_NEGATIVE_INT, PERIOD, PROBABILITY
from ...rules.rounding import round_half_even


class AvailabilityProcess(Protocol):
    """A process that decides in which rounds one client is available.

    Attributes
    ----------
    is_memoryless : bool
        Whether ``advance`` ignores the previous state, so that rounds can be skipped.
    """

    is_memoryless: ClassVar[bool]

    def advance(self, state: int | None, server_round: int, rng: np.random.Generator) -> int:
        """Return the state in a round.

        Parameters
        ----------
        state : int or None
            The state in the previous round; None in round 1.
        server_round : int
            The round, from 1.
        rng : numpy.random.Generator
            The generator of this client and round.
        """

    def is_available(self, state: int) -> bool:
        """Say whether the client is available in this state."""


class StochasticProcess(AvailabilityProcess, Protocol):
    """A process with a known rate."""

    @property
    def rate(self) -> float:
        """The long-run fraction of rounds in which the client is available, in [0, 1]."""


@dataclass(frozen=True)
class Bernoulli:
    """A client that is available with probability p in every round, independently.

    Parameters
    ----------
    p : float
        p_n, in (0, 1].

    Raises
    ------
    ParameterError
        If p is outside its range.
    """

    is_memoryless: ClassVar[bool] = True

    p: float

    def __post_init__(self) -> None:
        PROBABILITY.check("p", self.p)

    @property
    def rate(self) -> float:
        """The probability p."""
        return self.p

    def advance(self, state: int | None, server_round: int, rng: np.random.Generator) -> int:
        """Return 1 with probability p, otherwise 0."""
        return int(rng.random() < self.p)

    def is_available(self, state: int) -> bool:
        """Say whether the state is 1."""
        return state == 1


@dataclass(frozen=True)
class Markov:
    """A Markov chain of two states, active and inactive, with stationary probability p.

    The chain goes from inactive to active with probability a, and from active to inactive with b =
    a (1/p - 1). If that b is more than 1, a is divided by it and b is 1. The chain starts active
    with probability p, so that it is stationary from round 1. With p = 1 it is always active.

    Parameters
    ----------
    p : float
        p_n, in (0, 1].
    max_transition : float
        Largest a, in (0, 1]; 0.05 in the paper.

    Raises
    ------
    ParameterError
        If a parameter is outside its range.
    """

    is_memoryless: ClassVar[bool] = False

    p: float
    max_transition: float = 0.05

    def __post_init__(self) -> None:
        PROBABILITY.check("p", self.p)
        PROBABILITY.check("max_transition", self.max_transition)

    @property
    def rate(self) -> float:
        """The stationary probability a / (a + b) = p."""
        return self.p

    @property
    def transitions(self) -> tuple[float, float]:
        """The probabilities (a, b): from inactive to active, from active to inactive."""
        a = self.max_transition
        b = a * (1 / self.p - 1)
        return (a / b, 1.0) if b > 1 else (a, b)

    def advance(self, state: int | None, server_round: int, rng: np.random.Generator) -> int:
        """Return 1 if the chain is active, otherwise 0."""
        to_active, to_inactive = self.transitions
        draw = rng.random()
        if state is None:
            return int(draw < self.p)
        return int(draw >= to_inactive) if state == 1 else int(draw < to_active)

    def is_available(self, state: int) -> bool:
        """Say whether the state is 1."""
        return state == 1


@dataclass(frozen=True)
class Cyclic:
    """A cycle of max(1, round(T_c p)) active rounds, inactive for the rest of the period T_c.

    The client is inactive for at least 1 round, except with p = 1, when it is always active. (For
    that round the authors' code lengthens the period to T_c + 1; here it stays T_c.)

    Parameters
    ----------
    p : float
        p_n, in (0, 1].
    period : int
        T_c >= 2, in rounds; 100 in the paper.
    start : {"stationary", "inactive"}
        The position of round 1 in the period. ``stationary``: uniform over the period, so that
        the process is stationary from round 1. ``inactive``, as in the authors' code: r rounds
        before the active part, with r uniform over 0..(inactive rounds - 1).

    Raises
    ------
    ParameterError
        If a parameter is outside its range.
    """

    is_memoryless: ClassVar[bool] = False

    p: float
    period: int = 100
    start: str = "stationary"

    def __post_init__(self) -> None:
        PROBABILITY.check("p", self.p)
        PERIOD.check("period", self.period)
        CYCLE_START.check("start", self.start)

    @property
    def active_rounds(self) -> int:
        """The number of active rounds in a period."""
        if self.p == 1:
            return self.period
        return min(max(1, round_half_even(self.p, self.period)), self.period - 1)

    @property
    def rate(self) -> float:
        """Active rounds / period, which is p up to rounding."""
        return self.active_rounds / self.period

    def advance(self, state: int | None, server_round: int, rng: np.random.Generator) -> int:
        """Return the position in the period, from 0; the active part comes first."""
        if state is not None:
            return (state + 1) % self.period
        if self.start == "stationary" or self.p == 1:
            return int(rng.integers(self.period))
        return -int(rng.integers(self.period - self.active_rounds)) % self.period

    def is_available(self, state: int) -> bool:
        """Say whether the position is in the active part."""
        return state < self.active_rounds


@dataclass(frozen=True)
class Cooldown:
    """A client that rests for R rounds after every round in which it is available.

    With ``Bernoulli(p)`` the client is available in a fraction p / (1 + R p) of rounds: after each
    of them it rests for R rounds, and then waits 1 / p rounds on average. The process is stationary
    from round 1. With R = 0 it has the same paths as ``process``.

    The state is 1 if the client is available, 0 if it is absent without resting, and -j if it rests
    for j more rounds, including this one.

    Parameters
    ----------
    process : Bernoulli
        The process of a client that does not rest.
    rest_rounds : int
        R >= 0, in rounds.

    Raises
    ------
    ParameterError
        If ``process`` is another one, whose rate with rests is unknown, or ``rest_rounds`` is
        negative.

    References
    ----------
    Sun et al., ICLR 2025 (arXiv 2410.01209), where exactly B clients take part in a round and then
    rest for R rounds. This form, in which clients are independent of each other, is ours.
    """

    is_memoryless: ClassVar[bool] = False

    process: Bernoulli
    rest_rounds: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.process, Bernoulli):
            raise ParameterError(
                "process",
                "Bernoulli",
                type(self.process).__name__,
                "the rate of another process with rests is not known",
            )
        NON_NEGATIVE_INT.check("rest", self.rest_rounds)

    @property
    def rate(self) -> float:
        """p / (1 + R p)."""
        p = self.process.p
        return p / (1.0 + self.rest_rounds * p)

    def advance(self, state: int | None, server_round: int, rng: np.random.Generator) -> int:
        """Return 1, 0 or -j."""
        if state is None:
            return self._get_initial_state(rng.random())
        if state == 1 and self.rest_rounds > 0:
            return -self.rest_rounds
        if state < -1:
            return state + 1
        return self.process.advance(state, server_round, rng)

    def is_available(self, state: int) -> bool:
        """Say whether the state is 1."""
        return state == 1

    def _get_initial_state(self, draw: float) -> int:
        """Return the state in round 1: available, or in any round of the rest, by ``rate`` each."""
        if draw < self.rate:
            return 1
        resting = int(draw / self.rate)
        return -resting if resting <= self.rest_rounds else 0


@dataclass(frozen=True)
class Trace:
    """A client that is available in the given rounds only."""

    is_memoryless: ClassVar[bool] = True

    rounds: frozenset[int]

    def advance(self, state: int | None, server_round: int, rng: np.random.Generator) -> int:
        """Return 1 in the given rounds, otherwise 0."""
        return int(server_round in self.rounds)

    def is_available(self, state: int) -> bool:
        """Say whether the state is 1."""
        return state == 1


@dataclass(frozen=True)
class ProcessState:
    """The state of a client's process in a round."""

    server_round: int
    state: int


def compute_process_state(
    process: AvailabilityProcess,
    *,
    seed: int,
    client: int,
    server_round: int,
    last: ProcessState | None = None,
) -> ProcessState:
    """Return the state of a client's process in a round, independently of earlier calls.

    The draws of a round follow from (seed, "availability", round, client). The function advances
    the process round by round from ``last``, or from round 1 without ``last`` or if it belongs to a
    later round. A memoryless process needs only the round itself.

    Parameters
    ----------
    process : AvailabilityProcess
    seed : int
        The run's seed.
    client : int
    server_round : int
        The round, from 1.
    last : ProcessState, optional
        The result of this function for an earlier round or the same one.
    """
    if last is not None and last.server_round > server_round:
        last = None
    last_round, state = (0, None) if last is None else (last.server_round, last.state)
    if process.is_memoryless and last_round < server_round:
        last_round = server_round - 1
    for t in range(last_round + 1, server_round + 1):
        state = process.advance(state, t, make_generator(seed, "availability", t, client))
    if state is None:
        raise ValueError(f"rounds count from 1, got {server_round}")
    return ProcessState(server_round, state)
