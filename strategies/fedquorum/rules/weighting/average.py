"""Average the updates over the participants or over all clients, without weights by data."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np

from ..decisions import DecisionTrace
from ..description import Goal, RuleDescription
from ..types import (
    AggregationWeights,
    ClientUpdates,
    FloatArray,
    KnownWeights,
    PerClient,
    Population,
    RoundPlan,
)
from .base import Weighting, WeightingTraits


@dataclass(frozen=True)
class AverageParticipating(Weighting[None]):
    """Weight each of the |S_t| participants by c_n = 1 / |S_t|: FedAvg with equal weights.

    References
    ----------
    Wang and Ji 2024, section 6, "average participating".
    """

    description = RuleDescription(
        key="average_participating",
        summary="The average over the clients that take part in the round.",
        weight="1 / (number available)",
        trusts="that an update is there",
        gain="1 / (number available)",
        goal=Goal.PARTICIPATION,
        reference_for=(Goal.PARTICIPATION,),
    )
    traits = WeightingTraits(
        numerator="1",
        denominator="the number of {whom}",
        needs_losses=False,
        dp_unsupported_reason=(
            "an update counts 1 / (participants): the update of a single participant is the whole "
            "step"
        ),
        late_unsupported_reason="",
        sum_unsupported_reason="",
        uncorrectable_reason=(
            "dividing by the available clients undoes a correction for absence; average_all "
            "divides by all clients"
        ),
    )

    def init(self, population: Population) -> None:
        """Return the empty state."""

    def compute_known_weights(self, state: None, plan: RoundPlan) -> KnownWeights:
        """Return 1 for every client."""
        return KnownWeights()

    def weigh(
        self, state: None, plan: RoundPlan, updates: ClientUpdates, admitted_fraction: FloatArray
    ) -> tuple[None, AggregationWeights]:
        """Return equal weights that sum to 1, or zeros without participants."""
        total = float(admitted_fraction.sum())
        return None, AggregationWeights(admitted_fraction, total)

    def explain(self, trace: DecisionTrace, index: int) -> Iterator[str]:
        """Yield c_n = 1 / |S_t| with its numbers."""
        total = float(trace.admitted_fraction.sum())
        share = trace.admitted_fraction[index]
        yield f"c_n = 1 / |S_t| = 1 / {total:.6g} = {share / total:.6g}"


@dataclass(frozen=True)
class AverageAll(Weighting[None]):
    """Weight each participant by c_n = s_n / N, with N the registered clients that can count.

    An absent client counts as an update of zero. Under a gate, N is the number of priority clients
    plus the number of other aligned clients.

    References
    ----------
    Wang and Ji 2024, section 6, "average all".
    """

    description = RuleDescription(
        key="average_all",
        summary="The average over all clients; an absent one counts as an update of zero.",
        weight="1 / N",
        trusts="that an update is there",
        limit="1 / N",
        update_bound="server_lr / N",
        goal=Goal.PARTICIPATION,
    )
    traits = WeightingTraits(
        numerator="1",
        denominator="the number of {whom}",
        has_fixed_denominator=True,
        needs_losses=False,
        dp_unsupported_reason="",
        late_unsupported_reason="",
        sum_unsupported_reason="",
    )

    def init(self, population: Population) -> None:
        """Return the empty state."""

    def compute_known_weights(self, state: None, plan: RoundPlan) -> KnownWeights:
        """Return 1 for every client."""
        return KnownWeights()

    def weigh(
        self, state: None, plan: RoundPlan, updates: ClientUpdates, admitted_fraction: FloatArray
    ) -> tuple[None, AggregationWeights]:
        """Return 1 / N, or zeros if no client can count."""
        total = float(updates.effective_fractions.sum())
        omega = PerClient(updates.registered, np.broadcast_to(1.0, len(updates.registered)))
        return None, AggregationWeights(admitted_fraction, total, omega=omega)

    def with_fixed_denominator(self) -> Self:
        """Return this rule, whose denominator is already fixed."""
        return self

    def compute_max_share(self, num_clients: int) -> float:
        """Return 1 / N."""
        return 1.0 / num_clients

    def explain(self, trace: DecisionTrace, index: int) -> Iterator[str]:
        """Yield c_n = s_n / N with its numbers."""
        share, n = (
            float(trace.admitted_fraction[index]),
            float(trace.updates.effective_fractions.sum()),
        )
        yield f"c_n = s_n / N = {share:.6g} / {n:.6g} = {share / n:.6g}"
