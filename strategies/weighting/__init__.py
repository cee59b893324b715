"""How much an admitted update counts."""

from strategies.weighting.base import Weighting
from strategies.weighting.data_fraction import DataFraction
from strategies.weighting.no_weight import NoWeight

__all__ = ["DataFraction", "NoWeight", "Weighting"]
