"""Choose a round's neighbors and threshold, from the assumed shares of bad and of lost nodes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Self

import numpy as np

from ...errors import ParameterError
from ...rng import make_generator

MIN_NODES = 3
"""With two, each node could subtract its own vector from the sum."""

MAX_COLLUSION = 2.0**-40
"""The largest probability that somebody's shares are in the hands of a colluding ``threshold``."""

MAX_LOSS = 2.0**-20
"""The largest probability that a round is lost because too few holders of shares are left."""

MAX_COMPLETE = 30
"""Up to this number of nodes, all are neighbors of all; a sparse graph would have as many edges."""


@dataclass(frozen=True)
class MaskPlan:
    """Who masks with whom in a round.

    Parameters
    ----------
    neighbors : mapping of int to tuple of int
        The neighbors of each node, ascending, without itself; symmetric.
    threshold : int
        t, the number of shares that restore a secret. A node holds a share of each neighbor and
        of itself.
    """

    neighbors: Mapping[int, tuple[int, ...]]
    threshold: int

    @property
    def nodes(self) -> tuple[int, ...]:
        """The nodes, ascending."""
        return tuple(sorted(self.neighbors))

    @classmethod
    def for_nodes(
        cls, nodes: Sequence[int], size: "GraphSize", seed: int, server_round: int
    ) -> Self:
        """Return the plan of the nodes that take part in a round.

        The graph is complete, or the regular graph of Bell et al. (section 3.1): the nodes in a
        random circle, each with its k / 2 next ones on both sides.
        """
        ordered = sorted(nodes)
        if size.num_neighbors >= len(ordered) - 1:
            everyone = {node: tuple(k for k in ordered if k != node) for node in ordered}
            return cls(everyone, size.threshold)
        n = len(ordered)
        circle = make_generator(seed, "neighbors", server_round).permutation(n).tolist()
        offsets = [s * d for d in range(1, size.num_neighbors // 2 + 1) for s in (-1, 1)]
        neighbors = {
            ordered[k]: tuple(sorted(ordered[circle[(i + d) % n]] for d in offsets))
            for i, k in enumerate(circle)
        }
        return cls(neighbors, size.threshold)


@dataclass(frozen=True)
class GraphSize:
    """The number of each node's neighbors k, and the threshold t.

    Parameters
    ----------
    num_neighbors : int
        k; n - 1 for a complete graph.
    threshold : int
        t, more than half of the k + 1 shares: a server that asks some holders for one secret of a
        node, and others for the other one, gets at most one of the two.
    """

    num_neighbors: int
    threshold: int

    @classmethod
    def for_shares(cls, num_nodes: int, colluding: float, dropping: float) -> Self:
        """Return the smallest k, and its smallest t, that keep both probabilities small.

        A node's holders are itself and k others, drawn from all. With n nodes, of which
        c = ceil(colluding n) collude and l = ceil(dropping n) are lost,

            n P(X >= t) <= 2^-40    X ~ Hypergeometric(n - 1, c, k), colluding holders
            n P(Y < t)  <= 2^-20    Y ~ Hypergeometric(n - 1, n - 1 - l, k), holders that are left

        k is even, or n - 1; then all nodes are holders, and n - l >= t decides.

        Parameters
        ----------
        num_nodes : int
            n, at least ``MIN_NODES``.
        colluding, dropping : float
            The assumed shares of the nodes, in [0, 1).

        Raises
        ------
        ParameterError
            If no threshold meets both, or none the lost nodes alone; by the name of the share.

        References
        ----------
        Bell et al. 2020, section 3.3, with hypergeometric tails instead of bounds.
        """
        if num_nodes < MIN_NODES:
            raise ParameterError(
                "secure_aggregation", f"none with fewer than {MIN_NODES} nodes", num_nodes
            )
        num_colluding, num_lost = math.ceil(colluding * num_nodes), math.ceil(dropping * num_nodes)
        size = cls.find(num_nodes, num_colluding, num_lost)
        if size is None:
            if cls.find(num_nodes, 0, num_lost) is None:
                raise ParameterError(
                    "secure_aggregation.dropping",
                    f"a smaller share with {num_nodes} nodes",
                    dropping,
                    "the threshold is more than half of the holders of shares",
                )
            raise ParameterError(
                "secure_aggregation.colluding",
                f"a smaller share with {num_nodes} nodes, or secure_aggregation.dropping one",
                colluding,
                f"with dropping {dropping:g} too few holders of shares would neither collude nor "
                "be lost",
            )
        return size

    @classmethod
    def find(cls, num_nodes: int, num_colluding: int, num_lost: int) -> Self | None:
        """Return the size of ``for_shares`` for this number of nodes; None if no threshold fits."""
        found = _find_size(num_nodes, num_colluding, num_lost)
        return None if found is None else cls(*found)

    @property
    def min_share(self) -> float:
        """The smallest share of the nodes that must be left for a sum, about t / (k + 1)."""
        return self.threshold / (self.num_neighbors + 1)


@lru_cache
def _find_size(n: int, bad: int, lost: int) -> tuple[int, int] | None:
    sizes = range(2, n - 1, 2) if n > MAX_COMPLETE else range(0)
    for k in (*sizes, n - 1):
        threshold = _find_threshold(n, k, bad, lost)
        if threshold is not None:
            return k, threshold
    return None


def _find_threshold(n: int, k: int, bad: int, lost: int) -> int | None:
    """Return the smallest t that meets both conditions with k neighbors, or None."""
    from scipy.stats import hypergeom  # takes a second, and a run without masks needs none

    candidates = np.arange((k + 1) // 2 + 1, k + 2)
    # A colluding node is no neighbor of itself; an honest one holds its own share, too.
    collusion = n * hypergeom(n - 1, min(bad, n - 1), k).sf(candidates - 1)
    left = hypergeom(n - 1, max(0, n - 1 - lost), k)  # without the node's own share
    is_lost = n - lost < candidates if k == n - 1 else n * left.cdf(candidates - 1) > MAX_LOSS
    allowed = (collusion <= MAX_COLLUSION) & ~is_lost
    return int(candidates[np.argmax(allowed)]) if allowed.any() else None
