"""Averages of the updates, over who took part or over all, without regard to amounts of data."""

from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from strategies.parameters import ParameterError
from strategies.types import Call, FloatArray, Population, Proportions, Responses, Weights


@dataclass(frozen=True)
class AverageParticipating:
    """c_n = 1 / |S_t| for the |S_t| clients that took part: FedAvg on updates of equal weight.

    References
    ----------
    Wang and Ji 2024, section 6, "average participating".
    """

    needs_losses: ClassVar[bool] = False
    fixed_divisor: ClassVar[bool] = False
    factor: ClassVar[str] = "1"
    divisor: ClassVar[str] = "the number of {whom}"

    def init(self, population: Population) -> None:
        """Return the empty state: nothing is remembered."""

    def proportions(self, state: None, call: Call) -> Proportions:
        """Return 1 for every client."""
        return Proportions()

    def weigh(
        self, state: None, call: Call, responses: Responses, share: FloatArray
    ) -> tuple[None, Weights]:
        """Return equal weights that sum to 1, or zeros where nobody took part."""
        total = float(share.sum())
        return None, Weights(share / total if total > 0 else np.zeros_like(share))

    def over_known(self) -> "AverageAll":
        """Refuse: over all known clients this is ``AverageAll``, which has a name of its own."""
        raise ParameterError(
            "participation must be none with weighting=average_participating (dividing by who is "
            "there undoes what a correction for being away does; average_all divides by all)"
        )


@dataclass(frozen=True)
class AverageAll:
    """c_n = s_n / N for the clients that took part, N all known clients that can count.

    Whoever is away counts as an update of zero. In a gate N counts the priority clients and the
    others last known to be aligned.

    References
    ----------
    Wang and Ji 2024, section 6, "average all".
    """

    needs_losses: ClassVar[bool] = False
    fixed_divisor: ClassVar[bool] = True
    factor: ClassVar[str] = "1"
    divisor: ClassVar[str] = "the number of {whom}"

    def init(self, population: Population) -> None:
        """Return the empty state: nothing is remembered."""

    def proportions(self, state: None, call: Call) -> Proportions:
        """Return 1 for every client."""
        return Proportions()

    def weigh(
        self, state: None, call: Call, responses: Responses, share: FloatArray
    ) -> tuple[None, Weights]:
        """Return 1 / N, zeros where nobody can count."""
        total = float(responses.coverage.sum())
        omega = dict.fromkeys(responses.known.tolist(), 1.0)
        return None, Weights(share / total if total > 0 else np.zeros_like(share), omega=omega)

    def over_known(self) -> Self:
        """Return this rule, which divides so already."""
        return self
