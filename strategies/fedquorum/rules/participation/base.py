"""Define the interface of a correction for participation."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from ...errors import ParameterError
from ..decisions import DecisionTrace
from ..formatting import format_number
from ..regret import Bound
from ..rule import Goal, RunContext
from ..selection.base import Selection
from ..server_optimizer.base import ServerOptimizer
from ..types import KnownWeights, RoundPlan, StateT
from ..weighting.average import AverageAll
from ..weighting.base import Weighting


@dataclass(frozen=True)
class Participation(Weighting[StateT]):
    """Multiply another weighting by omega_n, an estimate of 1 / p_n: c_n = omega_n b_n / B.

    Parameters
    ----------
    base : Weighting
        The weighting b_n / B over a fixed population; by default 1 / N. ``wrap`` derives it
        from any weighting that has such a form.

    Attributes
    ----------
    symbol : str
        The symbol of omega_n in ``numerator``.
    uses_known_rates : bool
        Whether omega_n is given rather than estimated.

    Raises
    ------
    ParameterError
        If the base divides by the weights of the available clients.
    """

    goal = Goal.PARTICIPATION
    is_strategy = False
    has_fixed_denominator = True
    symbol: ClassVar[str] = "omega_k"
    uses_known_rates: ClassVar[bool] = False

    base: Weighting[Any] = field(default_factory=AverageAll, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.base.has_fixed_denominator:
            raise ParameterError(
                "base",
                "a weighting over a fixed population, as with_fixed_denominator() returns it",
                self.base,
            )

    @classmethod
    def wrap(cls, base: Weighting[Any], options: Mapping[str, Any], context: RunContext) -> Self:
        """Return the correction of a weighting.

        Raises
        ------
        ParameterError
            If that weighting has no form over a fixed population, with the reason.
        """
        try:
            fixed = base.with_fixed_denominator()
        except ParameterError as error:
            raise ParameterError(
                error.parameter, error.allowed, cls.key or cls.__name__, error.reason
            ) from None
        return cls.from_options({**options, "base": fixed}, context)

    def check_with(self, selection: Selection, server_optimizer: ServerOptimizer[Any]) -> None:
        """Refuse a selection by losses."""
        if selection.hooks.before_round is not None:
            raise ParameterError(
                "participation",
                f"none with the selection {selection.key}",
                self.key,
                "losses decide which clients are sampled, so gaps between rounds do not measure "
                "availability",
            )

    @property
    def needs_losses(self) -> bool:
        """Whether the base needs the clients' losses."""
        return self.base.needs_losses

    @property
    def requires_fixed_population(self) -> bool:
        """Whether the base needs a fixed population."""
        return self.base.requires_fixed_population

    @property
    def numerator(self) -> str:
        """The formula to which c_n is proportional."""
        return self.symbol if self.base.numerator == "1" else f"{self.symbol} {self.base.numerator}"

    @property
    def denominator(self) -> str:
        """The base's denominator, in words."""
        return self.base.denominator

    @property
    def tolerance(self) -> float:
        """The relative accuracy with which a replay reproduces the base's weights."""
        return self.base.tolerance

    @property
    def dp_unsupported_reason(self) -> str:
        """The reason why the base's weights have no bound; empty if they have one."""
        return self.base.dp_unsupported_reason

    def find_rejection_reason(self, client: int) -> str:
        """Return why the base has no weight for a client; empty if it has one."""
        return self.base.find_rejection_reason(client)

    def compute_regret_bound(self, rounds: int, clients: int, fraction: float) -> Bound | None:
        """Return the base's bound, since the base decides p in the same way."""
        return self.base.compute_regret_bound(rounds, clients, fraction)

    def with_fixed_denominator(self) -> Weighting[Any]:
        """Refuse a second correction."""
        raise self.build_correction_error("participation must be corrected for once")

    def explain(self, trace: DecisionTrace, index: int) -> Iterator[str]:
        """Yield how omega multiplies the weight over a fixed population."""
        if trace.weights is None:
            return
        omega = trace.weights.omega[int(trace.updates.client[index])]
        weight = trace.weights.weight[index]
        yield (
            f"c_n = {self.numerator} / ({trace.denominator}) = {format_number(omega)} x "
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
