"""Weights of 1 / (participation rate), the rate being the share of rounds so far."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..parameters import OMEGA_CAP
from ..report import Decided
from ..rule import parameter
from ..search import Among
from ..types import BoolArray, FloatArray, IntArray, Population
from ..words import digits, place_in
from .counted import Counted


@dataclass(frozen=True)
class RoundCounts:
    """Two integers a client, by the clients of the population, shapes (N,), and the base's state.

    ``rounds`` is how many rounds of the client there were, ``taken`` in how many it took part.
    """

    client: IntArray
    rounds: IntArray
    taken: IntArray
    base: Any = None


@dataclass(frozen=True)
class EmpiricalRates(Counted[RoundCounts]):
    """c_n = omega_n b_n / B for the clients that took part, omega_n = n_n / t_n.

    n_n is how many rounds of client n there were and t_n in how many of them it took part, both
    with this round in it: with the counts BEFORE the round, omega_n = (rounds + 1) / (taken + 1).
    b_n / B is the weight by the base over a fixed population, by default 1 / N.

    For n taking part with probability p in every round, what it counts for in round t (from 0) is
    1 - (1 - p)^(t + 1) of b_n / B in the mean, exactly: less bias early than FedAU's and more
    variance, as omega_n is t + 1 at its first visit. It forgets nothing, so it lags behind rates
    that change. Which rounds count for a client is said in ``Counted``.

    Parameters
    ----------
    cap : float
        The most that omega_n is, >= 1, or inf. Ours; the paper is said to name no safeguard.
    base : Weighting
        How much the clients are to count.

    Raises
    ------
    ParameterError
        For a cap outside its range, or a base that has no weights over a fixed population.

    References
    ----------
    Sun et al., ICLR 2025 (arXiv 2410.01209), Algorithm 1, as third parties quote its lines 1 to 7:
    lambda_n = t_n / ((t + 1) B) of B participants a round, and a local learning rate multiplied by
    1 / (lambda_n N). Not verified: the server's line, here the mean over the B. Ours: the update is
    multiplied in place of the learning rate, which is the same for one local step, and rounds are
    counted for each client, so that B need not be the same in every round.
    """

    key = "empirical"
    summary = "Updates weighted by 1 / (share of the rounds so far)."
    bound = "cap"

    cap: float = parameter(math.inf, OMEGA_CAP, Among((2.0, 5.0, 20.0, math.inf)))

    def init(self, population: Population) -> RoundCounts:
        """Return the state before round 0: nothing seen."""
        n = len(population.clients)
        return RoundCounts(
            client=population.ascending,
            rounds=np.zeros(n, dtype=np.int64),
            taken=np.zeros(n, dtype=np.int64),
            base=self.base.init(population),
        )

    def estimate(self, state: RoundCounts) -> FloatArray:
        """Return what 1 / (share of rounds) will be for the clients that take part in this one."""
        omega: FloatArray = (state.rounds + 1) / (state.taken + 1)
        return np.minimum(omega, self.cap)

    def count(self, state: RoundCounts, counted: BoolArray, took_part: BoolArray) -> RoundCounts:
        """Return the counts with one round more, and with who took part in it."""
        return replace(
            state, rounds=state.rounds + counted, taken=state.taken + (counted & took_part)
        )

    def explain(self, decided: Decided, place: int) -> Iterator[str]:
        """Yield the two counts, and how omega multiplies the base's weight."""
        state = decided.state
        i = place_in(state.client, decided, place)
        omega = self.estimate(state)[i]
        yield (
            f"omega_n is {state.rounds[i] + 1} rounds / {state.taken[i] + 1} in which the client "
            f"took part, this one included (cap {self.cap:g}): {digits(omega)}"
        )
        yield from super().explain(decided, place)
