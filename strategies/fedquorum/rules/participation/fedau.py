"""Weight updates by 1 / (participation rate), estimated from intervals between rounds (FedAU)."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..decisions import DecisionTrace
from ..description import Goal, RuleDescription
from ..formatting import find_population_index, format_number
from ..parameters import CUTOFF, Choices
from ..rule import parameter
from ..types import BoolArray, FloatArray, IntArray, Population
from .counting import CountingCorrection


@dataclass(frozen=True)
class FedAUState:
    """Three numbers for each client of the population, shapes (N,), and the base's state.

    ``intervals`` is M, the number of completed intervals; ``rounds`` is S, the length of the
    current interval; ``omega`` is the mean length, 1 before the first interval ends.
    """

    client: IntArray
    intervals: IntArray
    rounds: IntArray
    omega: FloatArray
    base: Any = None


@dataclass(frozen=True)
class FedAUCorrection(CountingCorrection[FedAUState]):
    """Weight participants by c_n = omega_t^n b_n / B; by default b_n / B = 1 / N.

    omega_t^n is the mean length of the intervals between the rounds BEFORE t in which client n
    took part. An interval ends after at most K rounds. omega_0 = 1, and for t = 1, 2, ...: S += 1;
    if n took part in round t - 1 or S = K, then omega_t = S if M = 0 else
    (M omega_{t-1} + S) / (M + 1), M += 1, S = 0.

    If client n takes part with probability p_n in every round, the mean length tends to 1 / p_n,
    minus (1 - p_n)^K / p_n because of the cutoff. In the long run each client therefore counts the
    same, however often it takes part. The correction is unbiased because the denominator belongs to
    a fixed population: N registered clients, or B of ``Weighting.with_fixed_denominator``.

    ``CountingCorrection`` defines which rounds count for a client.

    Parameters
    ----------
    cutoff : float
        K, a whole number >= 1, or inf. With K = 1 all clients have the same weight (the average
        over all).
    base : Weighting
        The weighting to correct. With ``PopulationDataFraction``, FedAU inside FedALIGN is
        p_k omega_k / (1 + A^).

    Raises
    ------
    ParameterError
        If the cutoff is outside its range, or the base has no weights over a fixed population.

    References
    ----------
    Wang and Ji, "A Lightweight Method for Tackling Unknown Participation Statistics in Federated
    Averaging", ICLR 2024, Algorithms 1 and 2. Other bases than 1 / N are ours.
    """

    description = RuleDescription(
        key="fedau",
        summary="FedAU: updates weighted by 1 / (estimated participation rate).",
        use="clients come and go, and nobody knows how often",
        weight="omega_n / N, omega_n the mean interval between its rounds, at most K",
        source="[Wang and Ji](https://openreview.net/forum?id=ZKEuFKfCKA), Algorithms 1 and 2",
        trusts="that an update is there",
        gain=(
            "a client that rarely takes part counts for more when it does, up to K / N; it "
            "can stay away on purpose"
        ),
        limit="`strategy.cutoff`",
        update_bound="server_lr K / N",
        bound_needs="with a finite `strategy.cutoff` K",
        goal=Goal.PARTICIPATION,
        is_strategy=False,
        is_baseline=False,
    )
    _limit_parameter = "cutoff"

    cutoff: float = parameter(math.inf, CUTOFF, Choices((10, 50, 200, math.inf)))

    def init(self, population: Population) -> FedAUState:
        """Return the state before round 0, with no intervals and all omega_n = 1."""
        n = len(population.clients)
        return FedAUState(
            client=population.sorted_clients,
            intervals=np.zeros(n, dtype=np.int64),
            rounds=np.zeros(n, dtype=np.int64),
            omega=np.ones(n),
            base=self.base.init(population),
        )

    def _estimate_omega(self, state: FedAUState) -> FloatArray:
        """Return the mean length of each client's intervals so far."""
        return state.omega

    def explain(self, trace: DecisionTrace, index: int) -> Iterator[str]:
        """Yield the estimate of omega, and how it multiplies the base's weight."""
        state = trace.state
        i = find_population_index(state.client, trace, index)
        yield (
            f"omega_n is the mean length of the M = {state.intervals[i]} intervals that ended "
            f"before this round (K = {self.cutoff:g}): {format_number(state.omega[i])}"
            + (" (no interval yet, so 1)" if state.intervals[i] == 0 else "")
        )
        yield from super().explain(trace, index)

    def _count_round(
        self, state: FedAUState, counted: BoolArray, participated: BoolArray
    ) -> FedAUState:
        """Return the state one round later; an interval ends if its client took part."""
        intervals, omega = state.intervals.copy(), state.omega.copy()
        rounds = state.rounds + counted
        is_end = participated if math.isinf(self.cutoff) else participated | (rounds == self.cutoff)
        clients = np.flatnonzero(counted & is_end)  # few clients if few of many are selected
        num_intervals, length = intervals[clients], rounds[clients]
        omega[clients] = (num_intervals * omega[clients] + length) / (num_intervals + 1)
        intervals[clients] += 1
        rounds[clients] = 0
        return replace(state, intervals=intervals, rounds=rounds, omega=omega)
