"""Select the clients of a round, and decide which updates are admitted."""

from ..rule import index_by_key
from .after_warmup import AfterWarmup
from .all_clients import AllClients
from .base import Selection, SelectionTraits
from .epsilon_gate import EpsilonGate
from .priority_only import PriorityOnly
from .sampling import Sampling

SELECTIONS: dict[str, type[Selection]] = index_by_key(
    (EpsilonGate, AllClients, AfterWarmup, PriorityOnly)
)
"""The selections of this package by their keys; ``fedquorum.registry`` adds those of contrib."""

__all__ = [
    "SELECTIONS",
    "AfterWarmup",
    "AllClients",
    "EpsilonGate",
    "PriorityOnly",
    "Sampling",
    "Selection",
    "SelectionTraits",
]
