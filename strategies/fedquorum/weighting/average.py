"""Average the updates over the participants or over all clients, without weights by data."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np

from ..description import SUM_BY_PARTICIPATION, RuleDescription
from ..report import Decided
from ..rule import Question
from ..types import ByClient, Call, FloatArray, Population, Proportions, Responses, Weights
from .base import Weighting


@dataclass(frozen=True)
class AverageParticipating(Weighting[None]):
    """Weight each of the |S_t| participants by c_n = 1 / |S_t|: FedAvg with equal weights.

    References
    ----------
    Wang and Ji 2024, section 6, "average participating".
    """

    key = "average_participating"
    summary = "The average over the clients that take part in the round."
    description = RuleDescription(
        weight="1 / (number available)",
        trusts="that an update is there",
        gain="1 / (number available)",
        secure_sum=SUM_BY_PARTICIPATION,
    )
    question = Question.PARTICIPATION
    plain_for = (Question.PARTICIPATION,)
    needs_losses = False
    factor = "1"
    divisor = "the number of {whom}"
    late = "It did not take part."
    unbounded = (
        "an update counts 1 / (participants): the update of a single participant is the whole step"
    )

    def init(self, population: Population) -> None:
        """Return the empty state."""

    def proportions(self, state: None, call: Call) -> Proportions:
        """Return 1 for every client."""
        return Proportions()

    def weigh(
        self, state: None, call: Call, responses: Responses, share: FloatArray
    ) -> tuple[None, Weights]:
        """Return equal weights that sum to 1, or zeros without participants."""
        total = float(share.sum())
        return None, Weights(share, total)

    def over_known(self) -> "AverageAll":
        """Refuse, because over all known clients this rule is ``AverageAll``."""
        raise self.uncorrectable(
            "dividing by the available clients undoes a correction for absence; average_all "
            "divides by all clients"
        )

    def explain(self, decided: Decided, place: int) -> Iterator[str]:
        """Yield c_n = 1 / |S_t| with its numbers."""
        total = float(decided.share.sum())
        share = decided.share[place]
        yield f"c_n = 1 / |S_t| = 1 / {total:.6g} = {share / total:.6g}"


@dataclass(frozen=True)
class AverageAll(Weighting[None]):
    """Weight each participant by c_n = s_n / N, with N the known clients that can count.

    An absent client counts as an update of zero. Under a gate, N is the number of priority clients
    and of other clients last known to be aligned.

    References
    ----------
    Wang and Ji 2024, section 6, "average all".
    """

    key = "average_all"
    summary = "The average over all clients; an absent one counts as an update of zero."
    description = RuleDescription(
        weight="1 / N",
        trusts="that an update is there",
        limit="1 / N",
        update_bound="server_lr / N",
        secure_sum=SUM_BY_PARTICIPATION,
    )
    question = Question.PARTICIPATION
    needs_losses = False
    fixed_divisor = True
    factor = "1"
    divisor = "the number of {whom}"
    late = "It counts as an update of zero."
    unbounded = ""

    def init(self, population: Population) -> None:
        """Return the empty state."""

    def proportions(self, state: None, call: Call) -> Proportions:
        """Return 1 for every client."""
        return Proportions()

    def weigh(
        self, state: None, call: Call, responses: Responses, share: FloatArray
    ) -> tuple[None, Weights]:
        """Return 1 / N, or zeros if no client can count."""
        total = float(responses.coverage.sum())
        omega = ByClient(responses.known, np.broadcast_to(1.0, len(responses.known)))
        return None, Weights(share, total, omega=omega)

    def over_known(self) -> Self:
        """Return this rule, whose divisor is fixed already."""
        return self

    def largest_share(self, num_clients: int) -> float:
        """Return 1 / N."""
        return 1.0 / num_clients

    def explain(self, decided: Decided, place: int) -> Iterator[str]:
        """Yield c_n = s_n / N with its numbers."""
        share, n = float(decided.share[place]), float(decided.responses.coverage.sum())
        yield f"c_n = s_n / N = {share:.6g} / {n:.6g} = {share / n:.6g}"
