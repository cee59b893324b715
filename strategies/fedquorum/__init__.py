"""Drop-in Flower strategies that decide which clients take part and how much each one counts.

The rules (``selection``, ``weighting``, ``participation``, ``server_optimizer``) are pure functions
of NumPy arrays. ``flower`` turns them into a ``flwr.serverapp.strategy.Strategy``. The names below
are imported when they are first used, so the rules work where Flower is not installed.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .flower.protocol import NativeProtocol as NativeProtocol
    from .flower.protocol import StandardProtocol as StandardProtocol
    from .flower.secure.settings import SecureAggregation as SecureAggregation
    from .flower.strategies import AFL as AFL
    from .flower.strategies import MIFA as MIFA
    from .flower.strategies import TERM as TERM
    from .flower.strategies import AAggFFD as AAggFFD
    from .flower.strategies import AAggFFS as AAggFFS
    from .flower.strategies import FedALIGN as FedALIGN
    from .flower.strategies import FedAU as FedAU
    from .flower.strategies import FedAvg as FedAvg
    from .flower.strategies import FedAvgAll as FedAvgAll
    from .flower.strategies import FedAvgParticipating as FedAvgParticipating
    from .flower.strategies import FedAvgPriority as FedAvgPriority
    from .flower.strategies import FedAWE as FedAWE
    from .flower.strategies import FedGP as FedGP
    from .flower.strategies import FedMGDAPlus as FedMGDAPlus
    from .flower.strategies import FedVarp as FedVarp
    from .flower.strategies import KnownStatistics as KnownStatistics
    from .flower.strategies import MaxFL as MaxFL
    from .flower.strategies import PropFair as PropFair
    from .flower.strategies import QFedAvg as QFedAvg
    from .flower.strategies import get_strategy as get_strategy
    from .flower.strategy import ComposedStrategy as ComposedStrategy
    from .flower.waiting_grid import WaitingGrid as WaitingGrid
    from .rules.composition import RuleSet as RuleSet
    from .rules.robustness import Robustness as Robustness
    from .rules.types import Population as Population

__version__ = "0.2.0.dev0"

_EXPORTS = {
    "AAggFFD": "flower.strategies",
    "AAggFFS": "flower.strategies",
    "AFL": "flower.strategies",
    "FedALIGN": "flower.strategies",
    "FedAU": "flower.strategies",
    "FedAWE": "flower.strategies",
    "FedAvg": "flower.strategies",
    "FedAvgAll": "flower.strategies",
    "FedAvgParticipating": "flower.strategies",
    "FedAvgPriority": "flower.strategies",
    "FedGP": "flower.strategies",
    "FedMGDAPlus": "flower.strategies",
    "FedVarp": "flower.strategies",
    "KnownStatistics": "flower.strategies",
    "MIFA": "flower.strategies",
    "MaxFL": "flower.strategies",
    "PropFair": "flower.strategies",
    "QFedAvg": "flower.strategies",
    "TERM": "flower.strategies",
    "get_strategy": "flower.strategies",
    "NativeProtocol": "flower.protocol",
    "StandardProtocol": "flower.protocol",
    "ComposedStrategy": "flower.strategy",
    "WaitingGrid": "flower.waiting_grid",
    "Robustness": "rules.robustness",
    "Population": "rules.types",
    "SecureAggregation": "flower.secure.settings",
    "RuleSet": "rules.composition",
}
__all__ = sorted(_EXPORTS)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_EXPORTS[name]}", __name__), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
