"""Select the clients to ask in a round, and decide which updates are admitted."""

from ..rule import table
from .after_warmup import AfterWarmup
from .alone import Alone
from .base import Selection
from .epsilon_gate import EpsilonGate
from .everyone import Everyone
from .priority_only import PriorityOnly
from .sampling import Sampling

SELECTIONS: dict[str, type[Selection]] = table(
    (EpsilonGate, Everyone, AfterWarmup, PriorityOnly, Alone)
)
"""The selections of this package by their keys; ``fedquorum.named`` adds those of contrib."""

__all__ = [
    "SELECTIONS",
    "AfterWarmup",
    "Alone",
    "EpsilonGate",
    "Everyone",
    "PriorityOnly",
    "Sampling",
    "Selection",
]
