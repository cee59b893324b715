"""Correct weights for clients that are absent in some rounds."""

from typing import Any

from ..rule import table
from .base import Participation
from .empirical import EmpiricalRates
from .fedau import MeanInterval
from .known_rates import KnownRates

PARTICIPATIONS: dict[str, type[Participation[Any]]] = table(
    (MeanInterval, EmpiricalRates, KnownRates)
)
"""All corrections for participation by their keys."""

__all__ = [
    "PARTICIPATIONS",
    "EmpiricalRates",
    "KnownRates",
    "MeanInterval",
    "Participation",
]
