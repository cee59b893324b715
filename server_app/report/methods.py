"""What a report must know of a strategy, by its name in a run's records; the rules declare it."""

from fedquorum.named import NAMED_STRATEGIES


def is_baseline(name: str) -> bool:
    """Say whether a strategy is one that others are compared with, not one of the papers' own."""
    return name not in NAMED_STRATEGIES or NAMED_STRATEGIES[name].is_baseline


def is_local_only(name: str) -> bool:
    """Say whether each client of a strategy trains its own model, so that nothing is aggregated."""
    return name in NAMED_STRATEGIES and NAMED_STRATEGIES[name].selection.trains_local_models


def has_known_rates(name: str) -> bool:
    """Say whether a strategy is given the participation rates, so that it estimates none."""
    participation = NAMED_STRATEGIES[name].participation if name in NAMED_STRATEGIES else None
    return participation is not None and participation.uses_known_rates


def has_gate(name: str) -> bool:
    """Say whether the losses decide which clients a strategy admits."""
    return name in NAMED_STRATEGIES and NAMED_STRATEGIES[name].selection.has_gate
