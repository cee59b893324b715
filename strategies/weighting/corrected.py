"""What the rules share that multiply another rule's weights by an estimate of 1 / p_n."""

from collections.abc import Mapping
from typing import Any

from strategies.parameters import ParameterError
from strategies.types import Call, Proportions
from strategies.weighting.base import KnownBeforehand, Weighting


def corrected_factor(omega: str, base: Weighting[Any]) -> str:
    """Return what omega_n b_n is in words."""
    return omega if base.factor == "1" else f"{omega} {base.factor}"


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


def corrected_once() -> ParameterError:
    """Return why a rule that corrects for participation is no base of another one."""
    return ParameterError(
        "participation must be corrected for once: the base of a correction must be a weighting "
        "without one"
    )
