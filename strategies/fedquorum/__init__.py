"""Use drop-in Flower strategies that decide which clients take part and how much each one counts.

The rules (``selection``, ``weighting``, ``participation``, ``server_optimizer``) are pure functions
of NumPy arrays. ``flower`` turns them into a ``flwr.serverapp.strategy.Strategy``. The names below
are imported when they are first used, so the rules work where Flower is not installed.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .composition import Rules as Rules
    from .flower.communication import Communication as Communication
    from .flower.drop_in import AFL as AFL
    from .flower.drop_in import MIFA as MIFA
    from .flower.drop_in import TERM as TERM
    from .flower.drop_in import AAggFFD as AAggFFD
    from .flower.drop_in import AAggFFS as AAggFFS
    from .flower.drop_in import FedALIGN as FedALIGN
    from .flower.drop_in import FedAU as FedAU
    from .flower.drop_in import FedAvg as FedAvg
    from .flower.drop_in import FedAvgAll as FedAvgAll
    from .flower.drop_in import FedAvgParticipating as FedAvgParticipating
    from .flower.drop_in import FedAvgPriority as FedAvgPriority
    from .flower.drop_in import FedAWE as FedAWE
    from .flower.drop_in import FedGP as FedGP
    from .flower.drop_in import FedMGDAPlus as FedMGDAPlus
    from .flower.drop_in import FedVarp as FedVarp
    from .flower.drop_in import KnownStatistics as KnownStatistics
    from .flower.drop_in import MaxFL as MaxFL
    from .flower.drop_in import PropFair as PropFair
    from .flower.drop_in import QFedAvg as QFedAvg
    from .flower.drop_in import strategy as strategy
    from .flower.standard import StandardProtocol as StandardProtocol
    from .flower.strategy import ComposedStrategy as ComposedStrategy
    from .flower.waiting import WaitingGrid as WaitingGrid
    from .robustness import Robustness as Robustness
    from .types import Population as Population

__version__ = "0.2.0.dev0"

_EXPORTS = {
    "AAggFFD": "flower.drop_in",
    "AAggFFS": "flower.drop_in",
    "AFL": "flower.drop_in",
    "FedALIGN": "flower.drop_in",
    "FedAU": "flower.drop_in",
    "FedAWE": "flower.drop_in",
    "FedAvg": "flower.drop_in",
    "FedAvgAll": "flower.drop_in",
    "FedAvgParticipating": "flower.drop_in",
    "FedAvgPriority": "flower.drop_in",
    "FedGP": "flower.drop_in",
    "FedMGDAPlus": "flower.drop_in",
    "FedVarp": "flower.drop_in",
    "KnownStatistics": "flower.drop_in",
    "MIFA": "flower.drop_in",
    "MaxFL": "flower.drop_in",
    "PropFair": "flower.drop_in",
    "QFedAvg": "flower.drop_in",
    "TERM": "flower.drop_in",
    "strategy": "flower.drop_in",
    "Communication": "flower.communication",
    "StandardProtocol": "flower.standard",
    "ComposedStrategy": "flower.strategy",
    "WaitingGrid": "flower.waiting",
    "Robustness": "robustness",
    "Population": "types",
    "Rules": "composition",
}
__all__ = sorted(_EXPORTS)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_EXPORTS[name]}", __name__), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
