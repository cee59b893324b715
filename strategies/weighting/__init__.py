"""How much an admitted update counts."""

from strategies.weighting.base import Weighting
from strategies.weighting.data_fraction import DataFraction

__all__ = ["DataFraction", "Weighting"]
