"""Who is asked to train and whose update is admitted."""

from strategies.selection.alone import Alone
from strategies.selection.base import Selection
from strategies.selection.epsilon_gate import EpsilonGate
from strategies.selection.everyone import Everyone
from strategies.selection.priority_only import PriorityOnly
from strategies.selection.sampling import Sampling

__all__ = ["Alone", "EpsilonGate", "Everyone", "PriorityOnly", "Sampling", "Selection"]
