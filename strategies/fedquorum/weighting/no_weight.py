"""Count no update, so that the server's model stays the same."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..description import RuleDescription
from ..errors import ParameterError
from ..report import Decided
from ..rule import Question
from ..types import Call, FloatArray, Population, Responses, Weights
from .base import Weighting


@dataclass(frozen=True)
class NoWeight(Weighting[None]):
    """Give every update the weight c_k = 0, for clients that each train a local model."""

    key = "no_weight"
    summary = "No update counts: every client keeps its local model."
    description = RuleDescription(
        weight="nothing is aggregated",
        source="FedALIGN, supplement C.1",
        trusts="nothing",
        gain="nothing: nothing is aggregated",
    )
    question = Question.AVERAGE
    needs_losses = False
    aggregates = False
    strategy = False
    factor = "0"
    divisor = "nothing"
    late = "It keeps what it trained."
    unbounded = "nothing is aggregated that could be made private"

    def uncorrectable(self, reason: str) -> ParameterError:
        """Return the error that refuses a correction for participation."""
        return super().uncorrectable("nothing is aggregated")

    def init(self, population: Population) -> None:
        """Return the empty state."""

    def weigh(
        self, state: None, call: Call, responses: Responses, share: FloatArray
    ) -> tuple[None, Weights]:
        """Return zeros."""
        return None, Weights(np.zeros_like(share))

    def explain(self, decided: Decided, place: int) -> Iterator[str]:
        """Yield that nothing counts."""
        yield "c_k = 0; every client keeps its local model, nothing is aggregated"
