"""FedAU's weights: 1 / (participation rate), estimated online from the intervals between rounds."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from strategies.parameters import CUTOFF
from strategies.responses import positions
from strategies.types import (
    BoolArray,
    Call,
    FloatArray,
    IntArray,
    Population,
    Proportions,
    Responses,
    Weights,
)


@dataclass(frozen=True)
class FedAUState:
    """Three numbers a client, by the clients of the population; shapes (N,).

    ``intervals`` is M, how many intervals were seen; ``rounds`` is S, the length of the one in
    progress; ``omega`` is the mean length, 1 before the first interval ends.
    """

    client: IntArray
    intervals: IntArray
    rounds: IntArray
    omega: FloatArray


@dataclass(frozen=True)
class FedAU:
    """c_n = omega_t^n / N for the clients that took part, N all known clients.

    omega_t^n is the mean length of the intervals between the rounds BEFORE t in which client n
    took part, cut off at K: omega_0 = 1, and for t = 1, 2, ... S += 1; if n took part in round
    t - 1 or S = K, then omega_t = S if M = 0 else (M omega_{t-1} + S) / (M + 1), M += 1, S = 0.

    For n taking part with probability p_n in every round, the mean length is 1 / p_n, less
    (1 - p_n)^K / p_n by the cutoff, so that each client counts alike in the long run however
    often it is there. The divisor N is fixed: that is what makes it unbiased.

    A client that was asked and sent nothing usable did not take part. A client first known in
    round t0 starts there; one whose node has left ages on.

    Parameters
    ----------
    cutoff : float
        K, a whole number >= 1, or inf. K = 1 weighs all alike (the average over all).

    Raises
    ------
    ParameterError
        For a cutoff outside its range.

    References
    ----------
    Wang and Ji, "A Lightweight Method for Tackling Unknown Participation Statistics in Federated
    Averaging", ICLR 2024, Algorithms 1 and 2.
    """

    cutoff: float = math.inf

    def __post_init__(self) -> None:
        CUTOFF.check("cutoff", self.cutoff)

    def init(self, population: Population) -> FedAUState:
        """Return the state before round 0: nothing seen, all weights 1."""
        n = len(population.clients)
        return FedAUState(
            client=population.ascending,
            intervals=np.zeros(n, dtype=np.int64),
            rounds=np.zeros(n, dtype=np.int64),
            omega=np.ones(n),
        )

    def proportions(self, state: FedAUState, call: Call) -> Proportions:
        """Return omega_t^n, which the rounds before this one decide."""
        clients = np.array(call.clients, dtype=np.int64)
        omega = state.omega[np.searchsorted(state.client, clients)]
        return Proportions(dict(_items(clients, omega)))

    def weigh(
        self, state: FedAUState, call: Call, responses: Responses, share: FloatArray
    ) -> tuple[FedAUState, Weights]:
        """Return omega_t / N by the rounds before this one, and the state that counts this one."""
        known = np.isin(state.client, responses.known)
        position = positions(state.client, responses)
        weight = share * state.omega[position] / max(len(responses.known), 1)
        took_part = np.zeros(len(state.client), dtype=np.bool_)
        took_part[position[share > 0]] = True
        omega = dict(_items(state.client[known], state.omega[known]))
        return self._advance(state, known, took_part), Weights(weight, omega=omega)

    def _advance(self, state: FedAUState, known: BoolArray, took_part: BoolArray) -> FedAUState:
        rounds = state.rounds + known
        ends = known & (took_part | (rounds == self.cutoff))
        mean = (state.intervals * state.omega + rounds) / (state.intervals + 1)
        return FedAUState(
            client=state.client,
            intervals=state.intervals + ends,
            rounds=np.where(ends, 0, rounds),
            omega=np.where(ends, mean, state.omega),
        )


def _items(clients: IntArray, values: FloatArray) -> Iterable[tuple[int, float]]:
    return zip(clients.tolist(), values.tolist(), strict=True)
