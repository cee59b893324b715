"""Define the settings of secure sums."""

from dataclasses import dataclass

from fedquorum.rules.parameters import FRACTION_BELOW_ONE
from fedquorum.rules.rule import parameter


@dataclass
class SecureAggregationSettings:
    """Whether the server learns the sum of the updates alone; see docs/privacy.md."""

    name: str = "none"


@dataclass
class MaskSettings(SecureAggregationSettings):
    """Every node masks its weighted sum; see ``fedquorum.flower.secure``.

    ``colluding``: the assumed share of the nodes that tell the server what they hold. ``dropping``:
    the assumed share of those lost between their keys and the end of a round; null for
    1 - ``engine.quorum``, and 0.1 where a round waits for all. The number of nodes with which each
    one masks follows from both.
    """

    colluding: float = parameter(0.1, FRACTION_BELOW_ONE)
    dropping: float | None = parameter(None, FRACTION_BELOW_ONE)
