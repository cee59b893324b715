"""FedAU's weights: 1 / (participation rate), estimated online from the intervals between rounds."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..parameters import CUTOFF
from ..report import Decided
from ..responses import positions
from ..rule import parameter
from ..types import (
    BoolArray,
    ByClient,
    Call,
    FloatArray,
    IntArray,
    Population,
    Proportions,
    Responses,
    Weights,
)
from ..words import digits, place_in
from .base import Participation


@dataclass(frozen=True)
class FedAUState:
    """Three numbers a client, by the clients of the population, shapes (N,), and the base's state.

    ``intervals`` is M, how many intervals were seen; ``rounds`` is S, the length of the one in
    progress; ``omega`` is the mean length, 1 before the first interval ends.
    """

    client: IntArray
    intervals: IntArray
    rounds: IntArray
    omega: FloatArray
    base: Any = None


@dataclass(frozen=True)
class MeanInterval(Participation[FedAUState]):
    """c_n = omega_t^n b_n / B for the clients that took part, b_n / B = 1 / N by default.

    omega_t^n is the mean length of the intervals between the rounds BEFORE t in which client n
    took part, cut off at K: omega_0 = 1, and for t = 1, 2, ... S += 1; if n took part in round
    t - 1 or S = K, then omega_t = S if M = 0 else (M omega_{t-1} + S) / (M + 1), M += 1, S = 0.

    For n taking part with probability p_n in every round, the mean length is 1 / p_n, less
    (1 - p_n)^K / p_n by the cutoff, so that each client counts alike in the long run however
    often it is there. The divisor is of a fixed population, N all known clients or the base's
    B (``Weighting.over_known``): that is what makes it unbiased.

    To take part is to be there: who answers that it stays silent, or is refused by a gate, took
    part, since omega is to make up for being away and for nothing else. A client that was asked
    and sent nothing usable did not. A client first known in round t0 starts there; one whose node
    has left ages on. Rounds in which a client could not be asked, as in a gate's warm-up, are none
    of its rounds.

    Parameters
    ----------
    cutoff : float
        K, a whole number >= 1, or inf. K = 1 weighs all alike (the average over all).
    base : Weighting
        How much the clients are to count; with data, FedAU inside FedALIGN is
        p_k omega_k / (1 + A^), see ``KnownData``.

    Raises
    ------
    ParameterError
        For a cutoff outside its range, or a base that has no weights over a fixed population.

    References
    ----------
    Wang and Ji, "A Lightweight Method for Tackling Unknown Participation Statistics in Federated
    Averaging", ICLR 2024, Algorithms 1 and 2. Other bases than 1 / N are ours.
    """

    key = "fedau"
    summary = "FedAU: updates weighted by estimated 1 / (participation rate)."
    baseline = False
    late = "It did not take part in the round."

    cutoff: float = parameter(math.inf, CUTOFF)

    @property
    def unbounded(self) -> str:
        """Why one update may count for any share: without a cutoff omega grows for ever."""
        if math.isinf(self.cutoff):
            return "with cutoff inf an update may count for any share; set a cutoff"
        return self.base.unbounded

    def largest_share(self, num_clients: int) -> float:
        """Return K times the base's: omega is at most K."""
        return self.cutoff * self.base.largest_share(num_clients)

    def init(self, population: Population) -> FedAUState:
        """Return the state before round 0: nothing seen, all weights 1."""
        n = len(population.clients)
        return FedAUState(
            client=population.ascending,
            intervals=np.zeros(n, dtype=np.int64),
            rounds=np.zeros(n, dtype=np.int64),
            omega=np.ones(n),
            base=self.base.init(population),
        )

    def proportions(self, state: FedAUState, call: Call) -> Proportions | None:
        """Return omega_t^n, which the rounds before this one decide, times the base's."""
        clients = np.array(call.clients, dtype=np.int64)
        omega = state.omega[np.searchsorted(state.client, clients)]
        of_asked = dict(zip(call.clients, omega.tolist(), strict=True))
        return self._corrected(of_asked, state.base, call)

    def weigh(
        self, state: FedAUState, call: Call, responses: Responses, share: FloatArray
    ) -> tuple[FedAUState, Weights]:
        """Return the weights by the rounds before this one, and the state that counts this one.

        Raises what the base raises.
        """
        known = _among(state.client, responses.known)
        position = positions(state.client, responses)
        base, weights = self.base.weigh(state.base, call, responses, share)
        took_part = _among(state.client, responses.silent)
        took_part[position] = True
        whole = known.all()
        omega = ByClient(
            state.client if whole else state.client[known],
            state.omega if whole else state.omega[known],
        )
        counted = known if call.pool is None else known & np.isin(state.client, list(call.pool))
        return replace(self._advance(state, counted, took_part), base=base), replace(
            weights, factor=state.omega[position] * weights.factor, omega=omega
        )

    def explain(self, decided: Decided, place: int) -> Iterator[str]:
        """Yield the estimate of omega, and how it multiplies the base's weight."""
        state = decided.state
        i = place_in(state.client, decided, place)
        yield (
            f"omega_n is the mean length of the M = {state.intervals[i]} intervals that ended "
            f"before this round (K = {self.cutoff:g}): {digits(state.omega[i])}"
            + (" (no interval yet, so 1)" if state.intervals[i] == 0 else "")
        )
        yield from super().explain(decided, place)

    def _advance(self, state: FedAUState, counted: BoolArray, took_part: BoolArray) -> FedAUState:
        intervals, omega = state.intervals.copy(), state.omega.copy()
        rounds = state.rounds + counted
        ends = took_part if math.isinf(self.cutoff) else took_part | (rounds == self.cutoff)
        ended = np.flatnonzero(counted & ends)  # few clients, where few of many are asked
        seen, length = intervals[ended], rounds[ended]
        omega[ended] = (seen * omega[ended] + length) / (seen + 1)
        intervals[ended] += 1
        rounds[ended] = 0
        return replace(state, intervals=intervals, rounds=rounds, omega=omega)


def _among(clients: IntArray, chosen: IntArray) -> BoolArray:
    """Return which of the clients are among those chosen, shape (N,); mostly all, or nobody."""
    if not len(chosen):
        return np.zeros(len(clients), dtype=np.bool_)
    if np.array_equal(clients, chosen):
        return np.ones(len(clients), dtype=np.bool_)
    return np.isin(clients, chosen)
