"""Say what a run assumes of its nodes, from which the size of the graph of masks follows."""

import math
from dataclasses import dataclass

from ...errors import ParameterError
from ...rules.parameters import Interval
from ...rules.rule import check_parameters, parameter
from .plan import MIN_NODES, GraphSize

SHARE = Interval(low=0.0, high=1.0, open_high=True)
DEFAULT_DROPPING = 0.1
"""The share of nodes that may be lost in a round that waits for all."""


@dataclass(frozen=True)
class MaskSummary:
    """What a run shows and records of its masks.

    Parameters
    ----------
    nodes : int
        The nodes of a round.
    neighbors, threshold : int
        k and t: each node masks its sum with k others, and t of the k + 1 holders of its shares
        must be left at the end of a round.
    colluding, dropping : float
        The assumed shares, from which both follow.
    """

    nodes: int
    neighbors: int
    threshold: int
    colluding: float
    dropping: float

    def format_line(self) -> str:
        """Return the line at the start of a run."""
        left = f"{self.threshold} of the {self.neighbors + 1} holders of its shares"
        if self.nodes == MIN_NODES:
            left = "all three"
        return (
            f"Masks: each of {self.nodes} nodes masks its sum with {self.neighbors} others, and "
            f"{left} must be left at the end of a round (assumed: {self.colluding:.3g} of the "
            f"nodes collude, {self.dropping:.3g} are lost)"
        )


@dataclass(frozen=True)
class SecureAggregation:
    """Let nodes mask their sums, so that the server learns the sum of all and no other.

    Parameters
    ----------
    colluding : float
        The assumed share of the nodes that tell others what they hold, in [0, 1).
    dropping : float, optional
        The assumed share of the nodes that are lost between their keys and the end of a round, in
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

    def resolve_dropping(self, quorum_share: float) -> float:
        """Return the assumed share of nodes that are lost in a round."""
        if self.dropping is not None:
            return self.dropping
        # Rounded, because 1 - 0.7 is more than 0.3.
        return round(1.0 - quorum_share, 12) if quorum_share < 1.0 else DEFAULT_DROPPING

    def summarize(self, num_nodes: int, quorum_share: float) -> MaskSummary:
        """Return what a run shows of its masks; the parameters and errors of ``choose_size``."""
        size = self.choose_size(num_nodes, quorum_share)
        dropping = self.resolve_dropping(quorum_share)
        return MaskSummary(num_nodes, size.num_neighbors, size.threshold, self.colluding, dropping)

    def choose_size_again(self, num_nodes: int, num_asked: int, quorum_share: float) -> GraphSize:
        """Return the number of neighbors and the threshold for the nodes that sent keys.

        The nodes that are lost from now on are a share of these. The number of colluding nodes
        stays that of all that were asked, c = ceil(colluding n_asked): all of them may have sent
        keys. If no threshold meets both, the round is tried without a margin for lost nodes.
        There is always one then: the threshold n, for which each node must tell its own shares.

        Parameters
        ----------
        num_nodes : int
            n, the nodes that sent keys, at least ``MIN_NODES``.
        num_asked : int
            n_asked, the nodes that were asked for keys.
        quorum_share : float
            As for ``choose_size``.
        """
        num_colluding = math.ceil(self.colluding * num_asked)
        num_lost = math.ceil(self.resolve_dropping(quorum_share) * num_nodes)
        size = GraphSize.find(num_nodes, num_colluding, num_lost)
        if size is None:
            size = GraphSize.find(num_nodes, num_colluding, 0)
        assert size is not None, "a complete graph has a threshold if no node is lost"
        return size

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
        dropping = self.resolve_dropping(quorum_share)
        try:
            size = GraphSize.for_shares(num_nodes, self.colluding, dropping)
            # A sum of fewer nodes is refused, even if enough hold shares.
            least = max(size.min_share, MIN_NODES / num_nodes)
            if quorum_share >= least:
                return size
            share = math.ceil(least * 1000) / 1000
            allowed = f"at least {share:g} of the selected clients" if share < 1 else "None (all)"
        except ParameterError:
            if num_nodes < MIN_NODES or self.dropping is not None or quorum_share == 1.0:
                raise
            # Any threshold is more than half of the holders.
            allowed = "more than half of the selected clients"
        raise ParameterError(
            "quorum",
            f"{allowed} with masks and {num_nodes} nodes",
            round(quorum_share, 3),
            "too few holders of shares might be left that do not collude",
        )
