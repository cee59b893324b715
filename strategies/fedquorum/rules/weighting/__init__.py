"""Weight the admitted updates."""

from typing import Any

from ..rule import index_by_key
from .aaggff_d import AAggFFDWeighting
from .aaggff_s import AAggFFSWeighting
from .afl import AFLWeighting
from .average import AverageAll, AverageParticipating
from .base import Weighting, WeightingTraits
from .data_fraction import DataFraction
from .exponentiated_gradient import PRIOR_MIXING_TRAITS, PriorMixing
from .fedgp import FedGPWeighting
from .fedmgda import FedMGDAWeighting
from .population_data import PopulationDataFraction
from .population_mixing import PopulationMixing
from .propfair import PropFairWeighting
from .q_fedavg import QFedAvgWeighting
from .term import TERMWeighting

WEIGHTINGS: dict[str, type[Weighting[Any]]] = index_by_key(
    (
        DataFraction,
        AverageParticipating,
        AverageAll,
        AAggFFSWeighting,
        AAggFFDWeighting,
        QFedAvgWeighting,
        TERMWeighting,
        PropFairWeighting,
        AFLWeighting,
        FedMGDAWeighting,
        FedGPWeighting,
    )
)
"""The weightings of this package by their keys; ``fedquorum.registry`` adds those of contrib."""

__all__ = [
    "PRIOR_MIXING_TRAITS",
    "WEIGHTINGS",
    "AAggFFDWeighting",
    "AAggFFSWeighting",
    "AFLWeighting",
    "AverageAll",
    "AverageParticipating",
    "DataFraction",
    "FedGPWeighting",
    "FedMGDAWeighting",
    "PopulationDataFraction",
    "PopulationMixing",
    "PriorMixing",
    "PropFairWeighting",
    "QFedAvgWeighting",
    "TERMWeighting",
    "Weighting",
    "WeightingTraits",
]
