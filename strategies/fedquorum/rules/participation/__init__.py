"""Correct weights for clients that are absent in some rounds."""

from typing import Any

from ..rule import index_by_key
from .base import Participation, correct_weighting
from .empirical import EmpiricalCorrection
from .fedau import FedAUCorrection
from .known_rates import KnownRatesCorrection

PARTICIPATIONS: dict[str, type[Participation[Any]]] = index_by_key(
    (FedAUCorrection, EmpiricalCorrection, KnownRatesCorrection)
)
"""All corrections for participation by their keys."""

__all__ = [
    "PARTICIPATIONS",
    "EmpiricalCorrection",
    "FedAUCorrection",
    "KnownRatesCorrection",
    "Participation",
    "correct_weighting",
]
