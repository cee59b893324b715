"""What a report must know of a strategy, by its name in a run's records; the rules declare it."""

from fedquorum.named import NAMED


def is_baseline(name: str) -> bool:
    """Say whether a strategy is one that others are compared with, not one of the papers' own."""
    return name not in NAMED or NAMED[name].baseline


def trains_alone(name: str) -> bool:
    """Say whether each client of a strategy trains its own model, so that nothing is aggregated."""
    return name in NAMED and NAMED[name].selection.keeps_models


def is_given_rates(name: str) -> bool:
    """Say whether a strategy is given the participation rates, so that it estimates none."""
    participation = NAMED[name].participation if name in NAMED else None
    return participation is not None and participation.given_rates


def has_gate(name: str) -> bool:
    """Say whether the losses decide which clients a strategy admits."""
    return name in NAMED and NAMED[name].selection.gated
