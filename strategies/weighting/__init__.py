"""How much an admitted update counts."""

from strategies.weighting.average import AverageAll, AverageParticipating
from strategies.weighting.base import Weighting
from strategies.weighting.data_fraction import DataFraction
from strategies.weighting.fedau import FedAU
from strategies.weighting.no_weight import NoWeight

__all__ = [
    "AverageAll",
    "AverageParticipating",
    "DataFraction",
    "FedAU",
    "NoWeight",
    "Weighting",
]
