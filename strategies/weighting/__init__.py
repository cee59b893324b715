"""How much an admitted update counts."""

from strategies.weighting.aaggff_d import AAggFFD
from strategies.weighting.aaggff_s import AAggFFS
from strategies.weighting.afl import AFL
from strategies.weighting.average import AverageAll, AverageParticipating
from strategies.weighting.base import KnownBeforehand, Weighting
from strategies.weighting.data_fraction import DataFraction
from strategies.weighting.fedau import FedAU
from strategies.weighting.fedmgda import FedMGDAPlus
from strategies.weighting.known_data import KnownData
from strategies.weighting.known_mixing import KnownMixing
from strategies.weighting.known_rates import KnownRates, inverse_rates
from strategies.weighting.no_weight import NoWeight
from strategies.weighting.propfair import PropFair
from strategies.weighting.q_fedavg import QFedAvg
from strategies.weighting.simplex import SolverError
from strategies.weighting.term import TERM

__all__ = [
    "AFL",
    "TERM",
    "AAggFFD",
    "AAggFFS",
    "AverageAll",
    "AverageParticipating",
    "DataFraction",
    "FedAU",
    "FedMGDAPlus",
    "KnownBeforehand",
    "KnownData",
    "KnownMixing",
    "KnownRates",
    "NoWeight",
    "PropFair",
    "QFedAvg",
    "SolverError",
    "Weighting",
    "inverse_rates",
]
