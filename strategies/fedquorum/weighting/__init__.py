"""Weight the admitted updates."""

from typing import Any

from ..rule import table
from .aaggff_d import DoublyRobustMixing
from .aaggff_s import NewtonMixing
from .afl import AgnosticMixing
from .average import AverageAll, AverageParticipating
from .base import Weighting
from .data_fraction import DataFraction
from .exponentiated_gradient import PriorMixing
from .fedgp import GradientProjection
from .fedmgda import MinNorm
from .known_data import KnownData
from .known_mixing import KnownMixing
from .no_weight import NoWeight
from .propfair import LossHeadroom
from .q_fedavg import LossPower
from .term import TiltedLoss

WEIGHTINGS: dict[str, type[Weighting[Any]]] = table(
    (
        DataFraction,
        AverageParticipating,
        AverageAll,
        NewtonMixing,
        DoublyRobustMixing,
        LossPower,
        TiltedLoss,
        LossHeadroom,
        AgnosticMixing,
        MinNorm,
        GradientProjection,
        NoWeight,
    )
)
"""The weightings of this package by their keys; ``fedquorum.named`` adds those of contrib."""

__all__ = [
    "WEIGHTINGS",
    "AgnosticMixing",
    "AverageAll",
    "AverageParticipating",
    "DataFraction",
    "DoublyRobustMixing",
    "GradientProjection",
    "KnownData",
    "KnownMixing",
    "LossHeadroom",
    "LossPower",
    "MinNorm",
    "NewtonMixing",
    "NoWeight",
    "PriorMixing",
    "TiltedLoss",
    "Weighting",
]
