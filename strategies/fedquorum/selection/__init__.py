"""Select the clients to ask in a round, and decide which updates are admitted."""

from ..rule import table
from .after_warmup import AfterWarmup
from .alone import Alone
from .base import Selection
from .epsilon_gate import EpsilonGate
from .everyone import Everyone
from .power_of_choice import PowerOfChoice
from .priority_only import PriorityOnly
from .sampling import Sampling

SELECTIONS: dict[str, type[Selection]] = table(
    (EpsilonGate, Everyone, AfterWarmup, PriorityOnly, PowerOfChoice, Alone)
)
"""All selections by their keys."""

__all__ = [
    "SELECTIONS",
    "AfterWarmup",
    "Alone",
    "EpsilonGate",
    "Everyone",
    "PowerOfChoice",
    "PriorityOnly",
    "Sampling",
    "Selection",
]
