"""Look up properties of strategies by the names in a run's records; the rules declare them."""

from ..registry import NAMED_STRATEGIES
from ..rules.participation import KnownRatesCorrection


def is_baseline(name: str) -> bool:
    """Return whether a strategy is a baseline, not a method that a paper proposes."""
    return name not in NAMED_STRATEGIES or NAMED_STRATEGIES[name].is_baseline


def has_known_rates(name: str) -> bool:
    """Return whether a strategy receives the participation rates instead of estimating them."""
    participation = NAMED_STRATEGIES[name].participation if name in NAMED_STRATEGIES else None
    return participation is KnownRatesCorrection


def has_gate(name: str) -> bool:
    """Return whether a strategy admits clients by their losses."""
    return name in NAMED_STRATEGIES and NAMED_STRATEGIES[name].selection.traits.has_gate
