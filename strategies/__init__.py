"""Drop-in Flower strategies, and the pure rules they are made of.

The rules (``selection``, ``weighting``, ``server_optimizer``) are NumPy only: no Flower, no
I/O, no clock, no global random numbers. ``adapter`` turns a selection, a weighting and a server
optimizer into a ``flwr.serverapp.strategy.Strategy``; the named strategies are compositions.
"""

from strategies.aaggff import (
    AFL,
    TERM,
    AAggFFD,
    AAggFFS,
    FedMGDAPlus,
    PropFair,
    QFedAvg,
)
from strategies.adapter import ComposedStrategy
from strategies.communication import Communication
from strategies.fedalign import FedALIGN
from strategies.fedau import (
    MIFA,
    FedAU,
    FedAvgAll,
    FedAvgParticipating,
    FedVarp,
    KnownStatistics,
)
from strategies.fedavg import FedAvg
from strategies.local_only import LocalOnly
from strategies.plain_app import PlainApp
from strategies.robustness import Robustness
from strategies.types import Population

__all__ = [
    "AFL",
    "MIFA",
    "TERM",
    "AAggFFD",
    "AAggFFS",
    "Communication",
    "ComposedStrategy",
    "FedALIGN",
    "FedAU",
    "FedAvg",
    "FedAvgAll",
    "FedAvgParticipating",
    "FedMGDAPlus",
    "FedVarp",
    "KnownStatistics",
    "LocalOnly",
    "PlainApp",
    "Population",
    "PropFair",
    "QFedAvg",
    "Robustness",
]
