"""Define the interface of a correction for participation."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ...errors import ParameterError
from ..decisions import DecisionTrace
from ..formatting import format_number
from ..regret import Bound, compute_regret_bound
from ..rule import RunContext, get_rule_name
from ..selection.base import Selection
from ..server_optimizer.base import ServerOptimizer
from ..types import KnownWeights, RoundPlan, StateT
from ..weighting.average import AverageAll
from ..weighting.base import Weighting, WeightingTraits


@dataclass(frozen=True)
class Participation(Weighting[StateT]):
    """Multiply another weighting by omega_n, an estimate of 1 / p_n: c_n = omega_n b_n / B.

    Parameters
    ----------
    base : Weighting
        The weighting b_n / B over a fixed population; by default 1 / N. ``correct_weighting``
        derives it from any weighting that has such a form.

    Raises
    ------
    ParameterError
        If the base divides by the weights of the available clients.
    """

    _symbol: ClassVar[str] = "omega_k"
    """The symbol of omega_n in the numerator."""

    base: Weighting[Any] = field(default_factory=AverageAll, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.base.traits.has_fixed_denominator:
            raise ParameterError(
                "base",
                "a weighting over a fixed population, as with_fixed_denominator() returns it",
                self.base,
            )

    @property
    def traits(self) -> WeightingTraits:
        """What the base needs, with omega in the numerator."""
        base = self.base.traits
        symbol = self._symbol
        return WeightingTraits(
            numerator=symbol if base.numerator == "1" else f"{symbol} {base.numerator}",
            denominator=base.denominator,
            has_fixed_denominator=True,
            needs_losses=base.needs_losses,
            requires_fixed_population=base.requires_fixed_population,
            tolerance=base.tolerance,
            dp_unsupported_reason=base.dp_unsupported_reason,
            late_unsupported_reason=base.late_unsupported_reason,
            sum_unsupported_reason=base.sum_unsupported_reason,
            uncorrectable_reason="participation must be corrected for once",
        )

    def check_with(self, selection: Selection, server_optimizer: ServerOptimizer[Any]) -> None:
        """Refuse a selection by losses."""
        if selection.hooks.before_round is not None:
            raise ParameterError(
                "participation",
                f"none with the selection {selection.description.key}",
                self.description.key,
                "losses decide which clients are sampled, so gaps between rounds do not measure "
                "availability",
            )

    def explain(self, trace: DecisionTrace, index: int) -> Iterator[str]:
        """Yield how omega multiplies the weight over a fixed population."""
        if trace.weights is None:
            return
        omega = trace.weights.omega[int(trace.updates.client[index])]
        weight = trace.weights.weight[index]
        yield (
            f"c_n = {self.traits.numerator} / ({trace.denominator}) = {format_number(omega)} x "
            f"{format_number(weight / omega)} = {format_number(weight)}"
        )

    def _compute_corrected_weights(
        self, omega: Mapping[int, float], state: Any, plan: RoundPlan
    ) -> KnownWeights | None:
        """Return the proportional weights omega_n b_n; None if b_n is unknown before training."""
        proportions = self.base.compute_known_weights(state, plan)
        if proportions is None:
            return None
        both = omega.keys() | proportions.by_client.keys()
        return KnownWeights(
            {k: omega.get(k, 1.0) * proportions.by_client.get(k, 1.0) for k in both},
            proportions.by_data,
        )


def correct_weighting(
    correction: type[Participation[Any]],
    weighting: Weighting[Any],
    options: Mapping[str, Any],
    context: RunContext,
) -> Participation[Any]:
    """Return a correction of a weighting, made from its options.

    Raises
    ------
    ParameterError
        If the weighting has no form over a fixed population, with the reason.
    """
    try:
        fixed = weighting.with_fixed_denominator()
    except ParameterError as error:
        raise ParameterError(
            error.parameter, error.allowed, get_rule_name(correction), error.reason
        ) from None
    return correction.from_options({**options, "base": fixed}, context)


@compute_regret_bound.register(Participation)
def _(weighting: Participation[Any], rounds: int, clients: int, fraction: float) -> Bound | None:
    """Return the base's bound, since the base decides p in the same way."""
    return compute_regret_bound(weighting.base, rounds, clients, fraction)
