"""Say what a run assumes of its nodes, from which the size of the graph of masks follows."""

from dataclasses import dataclass

from ...errors import ParameterError
from ...rules.parameters import Interval
from ...rules.rule import check_parameters, parameter
from .plan import GraphSize

SHARE = Interval(low=0.0, high=1.0, open_high=True)
DEFAULT_DROPPING = 0.1
"""The share of nodes that may be lost in a round that waits for all."""


@dataclass(frozen=True)
class SecureAggregation:
    """Let nodes mask their sums, so that the server learns the sum of all and no other.

    Parameters
    ----------
    colluding : float
        The assumed share of the nodes that tell others what they hold, in [0, 1).
    dropping : float, optional
        The assumed share of the nodes that are lost between their shares and the end of a round, in
        [0, 1). By default 1 - the quorum's share, and 0.1 in a run that waits for all.

    Raises
    ------
    ParameterError
        If a share is outside its range.
    """

    colluding: float = parameter(0.1, SHARE)
    dropping: float | None = parameter(None, SHARE)

    def __post_init__(self) -> None:
        check_parameters(self)

    def choose_size(self, num_nodes: int, quorum_share: float) -> GraphSize:
        """Return the number of neighbors and the threshold for a round.

        Parameters
        ----------
        num_nodes : int
            The nodes that are asked.
        quorum_share : float
            The share of the selected clients whose replies close an exchange, in (0, 1].

        Raises
        ------
        ParameterError
            If no threshold fits, or the quorum may leave fewer nodes than the threshold.
        """
        dropping = self.dropping
        if dropping is None:
            # Rounded, because 1 - 0.7 is more than 0.3.
            dropping = round(1.0 - quorum_share, 12) if quorum_share < 1.0 else DEFAULT_DROPPING
        size = GraphSize.for_shares(num_nodes, self.colluding, dropping)
        if quorum_share < size.min_share:
            raise ParameterError(
                "quorum",
                f"at least {size.min_share:.3g} of the selected clients with masks, of which "
                f"{size.threshold} of {size.num_neighbors + 1} holders of shares must be left",
                round(quorum_share, 3),
            )
        return size
