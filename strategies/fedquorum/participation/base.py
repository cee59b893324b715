"""Define the interface of a correction for participation."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from ..errors import ParameterError
from ..regret import Bound
from ..report import Decided
from ..rule import Question, RunFacts
from ..selection.base import Selection
from ..server_optimizer.base import ServerOptimizer
from ..types import Call, Proportions, StateT
from ..weighting.average import AverageAll
from ..weighting.base import Weighting
from ..words import digits


@dataclass(frozen=True)
class Participation(Weighting[StateT]):
    """Multiply another weighting by omega_n, an estimate of 1 / p_n: c_n = omega_n b_n / B.

    Parameters
    ----------
    base : Weighting
        The weighting b_n / B over a fixed population; by default 1 / N. ``correcting`` derives it
        from any weighting that has such a form.

    Attributes
    ----------
    symbol : str
        The symbol of omega_n in ``factor``.
    given_rates : bool
        Whether omega_n is given rather than estimated.

    Raises
    ------
    ParameterError
        If the base divides by the weights of the clients present.
    """

    question = Question.PARTICIPATION
    strategy = False
    fixed_divisor = True
    symbol: ClassVar[str] = "omega_k"
    given_rates: ClassVar[bool] = False

    base: Weighting[Any] = field(default_factory=AverageAll, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.base.fixed_divisor:
            raise ParameterError(
                "base", "a weighting over a fixed population, as over_known() returns it", self.base
            )

    @classmethod
    def correcting(cls, base: Weighting[Any], options: Mapping[str, Any], facts: RunFacts) -> Self:
        """Return the correction of a weighting.

        Raises
        ------
        ParameterError
            If that weighting has no form over a fixed population, with the reason.
        """
        try:
            over_known = base.over_known()
        except ParameterError as error:
            raise ParameterError(
                error.parameter, error.allowed, cls.key or cls.__name__, error.reason
            ) from None
        return cls.of({**options, "base": over_known}, facts)

    def check_with(self, selection: Selection, server_optimizer: ServerOptimizer[Any]) -> None:
        """Refuse a selection by losses."""
        if selection.hooks.before_round is not None:
            raise ParameterError(
                "participation",
                f"none with the selection {selection.key}",
                self.key,
                "who is asked follows from the losses, so how long a client is not asked tells "
                "nothing of how often it is there",
            )

    @property
    def needs_losses(self) -> bool:
        """Whether the base needs the clients' losses."""
        return self.base.needs_losses

    @property
    def fixed_population(self) -> bool:
        """Whether the base needs a fixed population."""
        return self.base.fixed_population

    @property
    def factor(self) -> str:
        """The formula to which c_n is proportional."""
        return self.symbol if self.base.factor == "1" else f"{self.symbol} {self.base.factor}"

    @property
    def divisor(self) -> str:
        """The base's divisor, in words."""
        return self.base.divisor

    @property
    def tolerance(self) -> float:
        """The relative accuracy with which a replay reproduces the base's weights."""
        return self.base.tolerance

    @property
    def unbounded(self) -> str:
        """The reason why the base's share has no bound; empty if it has one."""
        return self.base.unbounded

    def refuses(self, client: int) -> str:
        """Return why the base has no weight for a client."""
        return self.base.refuses(client)

    def regret_bound(self, rounds: int, clients: int, fraction: float) -> Bound | None:
        """Return the base's bound, since the base decides p in the same way."""
        return self.base.regret_bound(rounds, clients, fraction)

    def over_known(self) -> Weighting[Any]:
        """Refuse a second correction."""
        raise self.uncorrectable("participation must be corrected for once")

    def explain(self, decided: Decided, place: int) -> Iterator[str]:
        """Yield how omega multiplies the weight over a fixed population."""
        if decided.weights is None:
            return
        omega = decided.weights.omega[int(decided.responses.client[place])]
        weight = decided.weights.weight[place]
        yield (
            f"c_n = {self.factor} / ({decided.divisor}) = {digits(omega)} x "
            f"{digits(weight / omega)} = {digits(weight)}"
        )

    def _corrected(self, omega: Mapping[int, float], state: Any, call: Call) -> Proportions | None:
        """Return what omega_n b_n is proportional to, None where b_n is open before training."""
        proportions = self.base.proportions(state, call)
        if proportions is None:
            return None
        both = omega.keys() | proportions.of_client.keys()
        return Proportions(
            {k: omega.get(k, 1.0) * proportions.of_client.get(k, 1.0) for k in both},
            proportions.by_data,
        )
