"""What the rules share that multiply another rule's weights by an estimate of 1 / p_n."""

from collections.abc import Mapping
from typing import Any, ClassVar

from strategies.parameters import ParameterError
from strategies.types import Call, Proportions
from strategies.weighting.base import KnownBeforehand, Weighting


class Corrected:
    """What such a rule says of itself, all by its ``base``: omega_n b_n / B."""

    fixed_divisor: ClassVar[bool] = True
    symbol: ClassVar[str]
    base: Weighting[Any]

    def __post_init__(self) -> None:
        object.__setattr__(self, "base", self.base.over_known())

    @property
    def needs_losses(self) -> bool:
        """Whether the base needs them."""
        return self.base.needs_losses

    @property
    def factor(self) -> str:
        """What c_n is proportional to."""
        return self.symbol if self.base.factor == "1" else f"{self.symbol} {self.base.factor}"

    @property
    def divisor(self) -> str:
        """What the base divides by."""
        return self.base.divisor

    def over_known(self) -> Weighting[Any]:
        """Refuse: participation is corrected for once."""
        raise ParameterError(
            "participation must be corrected for once: the base of a correction must be a "
            "weighting without one"
        )


def corrected_proportions(
    omega: Mapping[int, float], base: Weighting[Any], state: Any, call: Call
) -> Proportions | None:
    """Return what omega_n b_n is proportional to, None where b_n is open before training."""
    own = base.proportions(state, call) if isinstance(base, KnownBeforehand) else None
    if own is None:
        return None
    both = omega.keys() | own.of_client.keys()
    return Proportions(
        {k: omega.get(k, 1.0) * own.of_client.get(k, 1.0) for k in both}, own.by_data
    )
