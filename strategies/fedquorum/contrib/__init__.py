"""Rules with hooks in a round beside its decision, each with the code that it alone needs.

They reach the round through ``fedquorum.rules.hooks``; no other module depends on them:

``fedawe``           clients continue from their last model
``maxfl``            weights by the clients' requirements, and their metrics in any run
``power_of_choice``  candidates evaluate a model before the round selects among them
"""

from typing import Any

from ..rules.hooks import ReportedMetrics
from ..rules.rule import index_by_key
from ..rules.selection.base import Selection
from ..rules.weighting.base import Weighting
from .fedawe import FedAWEWeighting
from .maxfl import (
    APPEAL_METRICS,
    CLIENT_COLUMNS,
    MaxFLWeighting,
    collect_requirements,
    find_requirement,
    restore_appeal_hooks,
)
from .power_of_choice import PowerOfChoice

CONTRIB_WEIGHTINGS: dict[str, type[Weighting[Any]]] = index_by_key(
    (FedAWEWeighting, MaxFLWeighting)
)
"""The weightings of this package by their keys."""

CONTRIB_SELECTIONS: dict[str, type[Selection]] = index_by_key((PowerOfChoice,))
"""The selections of this package by their keys."""

REPORTED_METRICS: tuple[ReportedMetrics, ...] = (APPEAL_METRICS,)
"""The metrics that reports of this package add to the records of a round."""

__all__ = [
    "CLIENT_COLUMNS",
    "CONTRIB_SELECTIONS",
    "CONTRIB_WEIGHTINGS",
    "REPORTED_METRICS",
    "FedAWEWeighting",
    "MaxFLWeighting",
    "PowerOfChoice",
    "collect_requirements",
    "find_requirement",
    "restore_appeal_hooks",
]
