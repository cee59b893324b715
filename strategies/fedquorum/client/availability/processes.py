"""When one client is available: pure rules, whose only memory is one whole number.

The participation patterns of Wang and Ji, "A Lightweight Method for Tackling Unknown
Participation Statistics in Federated Averaging" (ICLR 2024), clients that rest, and traces. Rounds
count from 1. p_n, the stationary probability, is the same in every round and for every pattern, but
differs between clients. ``periodic`` has the patterns that change with time.
"""

from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from ...errors import ParameterError
from ...parameters import CYCLE_START, NON_NEGATIVE_COUNT, PERIOD, PROBABILITY
from ...streams import stream


class Process(Protocol):
    """When one client is available.

    Attributes
    ----------
    memoryless : bool
        Whether ``advance`` does not look at the state before; then no round has to be gone through
        in which nobody asked.
    """

    memoryless: ClassVar[bool]

    def advance(self, state: int | None, server_round: int, rng: np.random.Generator) -> int:
        """Return the state in a round.

        Parameters
        ----------
        state : int or None
            The state in the round before; None in round 1.
        server_round : int
            The round, from 1.
        rng : numpy.random.Generator
            The generator of this client and round.
        """

    def available(self, state: int) -> bool:
        """Return whether the client is available in this state."""


class RandomProcess(Process, Protocol):
    """A process whose rate is known."""

    @property
    def rate(self) -> float:
        """The share of rounds in which the client is available, in the long run, in [0, 1]."""


@dataclass(frozen=True)
class Bernoulli:
    """Available with probability p in every round, whatever happened before.

    Parameters
    ----------
    p : float
        p_n, in (0, 1].

    Raises
    ------
    ParameterError
        If p is outside its range.
    """

    memoryless: ClassVar[bool] = True

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

    def available(self, state: int) -> bool:
        """Return whether the state is 1."""
        return state == 1


@dataclass(frozen=True)
class Markov:
    """A chain of two states, active and inactive, with stationary probability p.

    From inactive to active with probability a, from active to inactive with b = a (1/p - 1);
    if that is more than 1, a is divided by it and b = 1. The chain starts active with
    probability p, so that it is stationary from round 1. p = 1 is always active.

    Parameters
    ----------
    p : float
        p_n, in (0, 1].
    max_transition : float
        The largest a allowed, in (0, 1]; 0.05 in the paper.

    Raises
    ------
    ParameterError
        If a parameter is outside its range.
    """

    memoryless: ClassVar[bool] = False

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
        """Return 1 where the chain is active, otherwise 0."""
        to_active, to_inactive = self.transitions
        draw = rng.random()
        if state is None:
            return int(draw < self.p)
        return int(draw >= to_inactive) if state == 1 else int(draw < to_active)

    def available(self, state: int) -> bool:
        """Return whether the state is 1."""
        return state == 1


@dataclass(frozen=True)
class Cyclic:
    """Active for max(1, round(T_c p)) rounds, then inactive for the rest of the period T_c.

    The rest is at least 1 round, except for p = 1, which is always active. (With the authors'
    code it is then T_c + 1 rounds in all; here the period stays T_c.)

    Parameters
    ----------
    p : float
        p_n, in (0, 1].
    period : int
        T_c >= 2, in rounds; 100 in the paper.
    start : {"stationary", "inactive"}
        Where in its period round 1 is. ``stationary``: anywhere, uniformly, so that the process
        is stationary from round 1. ``inactive``, the authors' code: r rounds before the active
        part begins, r uniform over 0..(inactive rounds - 1).

    Raises
    ------
    ParameterError
        If a parameter is outside its range.
    """

    memoryless: ClassVar[bool] = False

    p: float
    period: int = 100
    start: str = "stationary"

    def __post_init__(self) -> None:
        PROBABILITY.check("p", self.p)
        PERIOD.check("period", self.period)
        CYCLE_START.check("start", self.start)

    @property
    def active_rounds(self) -> int:
        """How many rounds of a period are active."""
        if self.p == 1:
            return self.period
        return min(max(1, round(self.period * self.p)), self.period - 1)

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

    def available(self, state: int) -> bool:
        """Return whether the position is in the active part."""
        return state < self.active_rounds


@dataclass(frozen=True)
class Resting:
    """Away for R rounds after every round of being available; otherwise as the process inside.

    With ``Bernoulli(p)`` the client is available in the share p / (1 + R p) of rounds: after each
    it rests for R rounds and then needs 1 / p rounds on average. It is stationary from round 1 on.
    R = 0 is the process inside, path by path.

    The state is 1 where the client is available, 0 where it could be, and -j where it rests for j
    rounds, this one included.

    Parameters
    ----------
    process : Bernoulli
        When a client that does not rest is available.
    rest : int
        R >= 0, in rounds.

    Raises
    ------
    ParameterError
        For another process, whose rate after resting is not known, or a negative ``rest``.

    References
    ----------
    Sun et al., ICLR 2025 (arXiv 2410.01209), where exactly B clients take part in a round and then
    rest for R rounds (``Sampling.min_separation``). This form, in which clients are independent of
    each other, is ours.
    """

    memoryless: ClassVar[bool] = False

    process: Bernoulli
    rest: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.process, Bernoulli):
            raise ParameterError(
                "process",
                "Bernoulli",
                type(self.process).__name__,
                "of another process that rests the rate is not known",
            )
        NON_NEGATIVE_COUNT.check("rest", self.rest)

    @property
    def rate(self) -> float:
        """p / (1 + R p)."""
        p = self.process.p
        return p / (1.0 + self.rest * p)

    def advance(self, state: int | None, server_round: int, rng: np.random.Generator) -> int:
        """Return 1, 0 or -j."""
        if state is None:
            return self._first(rng.random())
        if state == 1 and self.rest > 0:
            return -self.rest
        if state < -1:
            return state + 1
        return self.process.advance(state, server_round, rng)

    def available(self, state: int) -> bool:
        """Return whether the state is 1."""
        return state == 1

    def _first(self, draw: float) -> int:
        """Return the state in round 1: available, or in any round of the rest, by ``rate`` each."""
        if draw < self.rate:
            return 1
        resting = int(draw / self.rate)
        return -resting if resting <= self.rest else 0


@dataclass(frozen=True)
class Trace:
    """Available in the given rounds, and in no others."""

    memoryless: ClassVar[bool] = True

    rounds: frozenset[int]

    def advance(self, state: int | None, server_round: int, rng: np.random.Generator) -> int:
        """Return 1 in the given rounds, otherwise 0."""
        return int(server_round in self.rounds)

    def available(self, state: int) -> bool:
        """Return whether the state is 1."""
        return state == 1


@dataclass(frozen=True)
class Moment:
    """The state of a client's process in a round."""

    server_round: int
    state: int


def moment(
    process: Process, *, seed: int, client: int, server_round: int, last: Moment | None = None
) -> Moment:
    """Return where a client's process is in a round: the same path whoever asks, and when.

    The draws of a round are those of (seed, "availability", round, client). Rounds in which
    nobody asked are gone through one by one, from ``last`` on, or from round 1 without it (or
    if it is of a later round), unless the process has no memory.

    Parameters
    ----------
    process : Process
        The client's process.
    seed : int
        The run's seed.
    client : int
        The client's id.
    server_round : int
        The round, from 1.
    last : Moment, optional
        What this function returned for an earlier round or the same one.
    """
    if last is not None and last.server_round > server_round:
        last = None
    gone, state = (0, None) if last is None else (last.server_round, last.state)
    if process.memoryless and gone < server_round:
        gone = server_round - 1
    for t in range(gone + 1, server_round + 1):
        state = process.advance(state, t, stream(seed, "availability", t, client))
    if state is None:
        raise ValueError(f"rounds count from 1, got {server_round}")
    return Moment(server_round, state)
