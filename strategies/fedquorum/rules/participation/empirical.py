"""Weight updates by 1 / (fraction of the rounds so far in which the client took part)."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..decisions import DecisionTrace
from ..description import Goal, RuleDescription
from ..formatting import find_population_index, format_number
from ..parameters import OMEGA_CAP, Choices
from ..rule import parameter
from ..types import BoolArray, FloatArray, IntArray, Population
from .counting import CountingCorrection


@dataclass(frozen=True)
class RoundCounts:
    """Two counts for each client of the population, shapes (N,), and the base's state.

    ``rounds`` is the number of the client's rounds, ``taken`` the number in which it took part.
    """

    client: IntArray
    rounds: IntArray
    taken: IntArray
    base: Any = None


@dataclass(frozen=True)
class EmpiricalCorrection(CountingCorrection[RoundCounts]):
    """Weight participants by c_n = omega_n b_n / B with omega_n = n_n / t_n.

    n_n is the number of client n's rounds, and t_n the number of them in which it took part. Both
    include this round: with the counts BEFORE the round, omega_n = (rounds + 1) / (taken + 1).
    b_n / B is the base's weight over a fixed population, by default 1 / N. ``CountingCorrection``
    defines which rounds count for a client.

    If client n takes part with probability p in every round, its expected weight in round t (from
    0) is exactly 1 - (1 - p)^(t + 1) of b_n / B. That is less bias in early rounds than FedAU has,
    and more variance, because omega_n is t + 1 when the client first takes part. Since all rounds
    count equally, the estimate follows changing rates slowly.

    Parameters
    ----------
    max_weight : float
        Largest omega_n, >= 1, or inf. Ours; according to third parties the paper has no safeguard.
    base : Weighting
        The weighting to correct.

    Raises
    ------
    ParameterError
        If ``max_weight`` is outside its range, or the base has no weights over a fixed population.

    References
    ----------
    Sun et al., ICLR 2025 (arXiv 2410.01209), Algorithm 1, as third parties quote its lines 1 to 7:
    lambda_n = t_n / ((t + 1) B) of B participants a round, and a local learning rate multiplied by
    1 / (lambda_n N). Not verified: the server's line, here the mean over the B. Ours: the update is
    multiplied in place of the learning rate, which is the same for one local step, and rounds are
    counted for each client, so that B need not be the same in every round.
    """

    description = RuleDescription(
        key="empirical",
        summary="Updates weighted by 1 / (share of the rounds so far).",
        use="clients come and go, and their past rates tell how often",
        weight="omega_n / N, omega_n = rounds so far / rounds it took part in",
        source=(
            "[Sun et al.](https://arxiv.org/abs/2410.01209), Algorithm 1 as others quote it "
            "([what is ours](composition.md#rates-counted-and-clients-that-rest))"
        ),
        trusts="that an update is there",
        gain=(
            "a client that rarely takes part counts for more when it does, up to max_weight / N; "
            "it can stay away on purpose"
        ),
        limit="`strategy.max_weight`",
        update_bound="server_lr max_weight / N",
        bound_needs="with a finite `strategy.max_weight`",
        goal=Goal.PARTICIPATION,
        is_strategy=False,
    )
    _limit_parameter = "max_weight"

    max_weight: float = parameter(math.inf, OMEGA_CAP, Choices((2.0, 5.0, 20.0, math.inf)))

    def init(self, population: Population) -> RoundCounts:
        """Return the state before round 0, with no counted rounds."""
        n = len(population.clients)
        return RoundCounts(
            client=population.sorted_clients,
            rounds=np.zeros(n, dtype=np.int64),
            taken=np.zeros(n, dtype=np.int64),
            base=self.base.init(population),
        )

    def _estimate_omega(self, state: RoundCounts) -> FloatArray:
        """Return 1 / (fraction of rounds) for clients that take part in this round, shape (N,)."""
        omega: FloatArray = (state.rounds + 1) / (state.taken + 1)
        return np.minimum(omega, self.max_weight)

    def _count_round(
        self, state: RoundCounts, counted: BoolArray, participated: BoolArray
    ) -> RoundCounts:
        """Return the counts after one more round."""
        return replace(
            state, rounds=state.rounds + counted, taken=state.taken + (counted & participated)
        )

    def explain(self, trace: DecisionTrace, index: int) -> Iterator[str]:
        """Yield the two counts, and how omega multiplies the base's weight."""
        state = trace.state
        i = find_population_index(state.client, trace, index)
        omega = self._estimate_omega(state)[i]
        yield (
            f"omega_n is {state.rounds[i] + 1} rounds / {state.taken[i] + 1} in which the client "
            f"took part, this one included (max_weight {self.max_weight:g}): {format_number(omega)}"
        )
        yield from super().explain(trace, index)
