"""Participation per opportunity: how much came of the rounds in which a client was there."""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from ..types import FloatArray, IntArray
from .fairness import spread

THERE = ("trained", "silent", "rejected", "late")
"""What became of a client that was there; one that is late was, and its update missed the round."""

AWAY = ("unavailable",)
"""In ``failed`` and ``busy`` rounds nobody knows whether it could have taken part: they are
neither."""


@dataclass(frozen=True)
class Opportunities:
    """How often each client was asked, present and admitted, ascending by id, shape (N,) each.

    Parameters
    ----------
    asked : IntArray
        Rounds in which it was asked.
    there : IntArray
        Rounds in which it was asked and there.
    away : IntArray
        Rounds in which it was asked and not there.
    admitted : IntArray
        Rounds in which its update had a weight other than 0.
    mass : FloatArray
        sum_t c_k(t), its weight over all rounds.

    References
    ----------
    Behfar and Mortier, "cumulative utility parity", arXiv 2602.13651, whose definitions of pi_k and
    of dividing by it are known here from a third party's notes; the two shares are ours.
    """

    asked: IntArray
    there: IntArray
    away: IntArray
    admitted: IntArray
    mass: FloatArray

    @classmethod
    def of(
        cls, client: IntArray, status: NDArray[np.object_], weight: FloatArray, everyone: IntArray
    ) -> Self:
        """Return them of the rows of ``clients/``, shape (n,), and all clients, shape (N,).

        Rows of clients that are not in ``everyone`` are left out.
        """
        rows = np.isin(client, everyone)
        client, status, weight = client[rows], status[rows], weight[rows]
        place = np.searchsorted(everyone, client)

        def count(chosen: NDArray[np.bool_]) -> IntArray:
            return np.bincount(place[chosen], minlength=len(everyone)).astype(np.int64)

        return cls(
            asked=count(np.ones(len(client), dtype=np.bool_)),
            there=count(np.isin(status, THERE)),
            away=count(np.isin(status, AWAY)),
            admitted=count(weight != 0.0),
            mass=np.bincount(place, weight, len(everyone)).astype(np.float64),
        )

    @property
    def presence(self) -> FloatArray:
        """pi_k, the share of the rounds asked in which k was there; of the clients ever there."""
        ever = self.there > 0
        presence: FloatArray = self.there[ever] / (self.there + self.away)[ever]
        return presence

    @property
    def opportunity_share(self) -> FloatArray:
        """Rounds admitted over rounds there, of the clients ever there."""
        ever = self.there > 0
        share: FloatArray = self.admitted[ever] / self.there[ever]
        return share

    @property
    def mass_share(self) -> FloatArray:
        """sum_t c_k(t) over rounds there, of the clients ever there."""
        ever = self.there > 0
        share: FloatArray = self.mass[ever] / self.there[ever]
        return share

    @property
    def selection_gap(self) -> float:
        """max_k |times asked - mean over the clients|, in rounds; NaN without clients."""
        if not len(self.asked):
            return np.nan
        return float(np.abs(self.asked - self.asked.mean()).max())

    @property
    def never_there(self) -> int:
        """The number of clients that were never present, which have no share."""
        return int((self.there == 0).sum())


def evenness(shares: FloatArray) -> dict[str, float]:
    """Return average, worst, Jain's index and the coefficient of variation sd / mean of shares.

    NaN where there is no share, and of the coefficient where all are 0. Negative weights have no
    Jain index and none of these rules gives any.
    """
    if not len(shares):
        return dict.fromkeys(("average", "worst", "jain", "cv"), np.nan)
    found = spread(shares)
    mean = found["average"]
    kept = {name: found[name] for name in ("average", "worst", "jain")}
    return {**kept, "cv": found["std"] / mean if mean > 0 else np.nan}
