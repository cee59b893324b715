"""Decide which claims of a figure or table hold, from differences paired by seed.

The claims of one figure or table are judged together. With m, s and n the mean, the standard
deviation and the number of seeds of a claim's differences, positive in the claimed direction, two
hypotheses are tested by Student's t with n - 1 degrees of freedom:

``nothing``    the true difference is at most 0, by t = m / (s / sqrt(n)). Rejected, the claim is
               reproduced.
``something``  the true difference is at least ``floor``, by t = (m - floor) / (s / sqrt(n)).
               Rejected, the claim is contradicted.

``floor`` is 0, or a third of the published difference if the paper gives a number for the same
setup. A claim for which neither is rejected is undecided. Holm's method keeps the probability of
any false rejection in a figure or table at ``LEVEL``, for each of the two hypotheses.

Seeds are added until a claim is decided, so it may be judged several times: at each of the planned
numbers of seeds, and perhaps at more that somebody adds later. By a spending function of the Pocock
type each look has a share of ``LEVEL``; with up to two looks beyond the plan all shares add up to
at most 1. A p-value divided by its
look's share is at most u with a probability of at most u, over all looks together; Holm's method
takes these.

The estimand is the difference on these data: each seed divides them among the clients and draws
the start anew. Nothing follows for other data.

Sources: Holm, "A Simple Sequentially Rejective Multiple Test Procedure", Scandinavian Journal of
Statistics 6 (1979); Lan and DeMets, "Discrete Sequential Boundaries for Clinical Trials",
Biometrika 70 (1983).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from fedquorum.rules.types import FloatArray
from numpy.typing import ArrayLike
from scipy.special import stdtr, stdtrit

from server_app.study.looks import Look, compute_look_confidence, spend_evenly

LEVEL = 0.05
SMALL_SHARE = 1 / 3
"""A difference below this share of the published one is far smaller."""

MIN_SEEDS = 2
"""One seed has no spread."""

MAX_SEEDS = 100
"""More seeds than that are not counted exactly."""


class Outcome(StrEnum):
    """The verdict on a claim."""

    REPRODUCED = "reproduced"
    CONTRADICTED = "contradicted"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class PairedDifferences:
    """The differences of one claim over n seeds.

    Parameters
    ----------
    mean : float
        Positive in the claimed direction.
    deviation : float
        Their standard deviation, over n - 1.
    seeds : int
        n, at least ``MIN_SEEDS``.
    published : float, optional
        The paper's difference in the same setup and unit, positive in the claimed direction.
    planned_looks : tuple of int
        The numbers of seeds at which the claim is judged; empty for ``seeds`` alone.
    """

    mean: float
    deviation: float
    seeds: int
    published: float | None = None
    planned_looks: tuple[int, ...] = ()

    @property
    def floor(self) -> float:
        """The smallest difference with which the claim holds."""
        return 0.0 if self.published is None else SMALL_SHARE * self.published

    @property
    def look_share(self) -> float:
        """The share of ``LEVEL`` of the look at these seeds."""
        return compute_look_share(self.seeds, self.planned_looks)

    @property
    def last_look_share(self) -> float:
        """The share of ``LEVEL`` of the last planned look, or of this one beyond the plan."""
        return compute_look_share(max(self.seeds, *self.planned_looks, 0), self.planned_looks)

    def compute_p_value_of_nothing(self, seeds: ArrayLike | None = None) -> FloatArray:
        """Return the p-value of a true difference of at most 0.

        ``seeds`` assumes other numbers of seeds, with the same mean and deviation.
        """
        return self._compute_tail(-self.mean, seeds)

    def compute_p_value_of_something(self, seeds: ArrayLike | None = None) -> FloatArray:
        """Return the p-value of a true difference of at least ``floor``."""
        return self._compute_tail(self.mean - self.floor, seeds)

    def _compute_tail(self, gap: float, seeds: ArrayLike | None) -> FloatArray:
        """Return the probability of a statistic up to that of ``gap``."""
        n = np.asarray(self.seeds if seeds is None else seeds, dtype=np.float64)
        if self.deviation == 0.0:
            # Equal in all seeds: one number, without noise to compare it with.
            return np.full(n.shape, 0.0 if gap < 0 else 1.0)
        return np.asarray(stdtr(n - 1, gap * np.sqrt(n) / self.deviation))


@dataclass(frozen=True)
class Judgment:
    """The verdict on one claim.

    Parameters
    ----------
    outcome : Outcome
    is_far_smaller : bool
        Whether the true difference is below a third of the published one, whatever the outcome.
    seeds_to_decide : int or None
        If undecided, the number of seeds with a verdict at the same mean and deviation, with the
        share of the last planned look; None if that is more than ``MAX_SEEDS``, and with any other
        outcome.
    """

    outcome: Outcome
    is_far_smaller: bool = False
    seeds_to_decide: int | None = None


def judge_family(family: Sequence[PairedDifferences]) -> tuple[Judgment, ...]:
    """Judge all measured claims of one figure or table together.

    A claim with a difference above 0 is reproduced even if it is far smaller than published: what
    the claim says is the direction.
    """
    nothing = [float(one.compute_p_value_of_nothing()) / one.look_share for one in family]
    something = [float(one.compute_p_value_of_something()) / one.look_share for one in family]
    reproduced, up_level = _reject_by_holm(nothing)
    smaller, down_level = _reject_by_holm(something)
    return tuple(
        Judgment(Outcome.REPRODUCED, is_far_smaller=small and one.published is not None)
        if holds
        else Judgment(Outcome.CONTRADICTED, is_far_smaller=one.published is not None)
        if small
        else Judgment(
            Outcome.UNDECIDED, seeds_to_decide=_find_seeds_to_decide(one, up_level, down_level)
        )
        for one, holds, small in zip(family, reproduced, smaller, strict=True)
    )


def compute_look_share(seeds: int, planned_looks: Sequence[int] = ()) -> float:
    """Return the share of ``LEVEL`` of the look at ``seeds``.

    All planned looks at fewer seeds have been taken.
    """
    taken = [*(number for number in planned_looks if number < seeds), seeds]
    planned = max(planned_looks, default=seeds)
    looks = [Look(number, planned) for number in taken]
    # Both ends of the study's intervals share a level; a bound here has one end.
    level = 2 * LEVEL
    return (1 - compute_look_confidence(looks, 1 - level, spend=spend_evenly)) / level


def compute_interval(mean: float, deviation: float, seeds: int) -> tuple[float, float]:
    """Return the two-sided interval of a mean at 1 - 2 ``LEVEL``, not corrected for a family.

    Each end is the bound of a one-sided test at ``LEVEL``.
    """
    half = -float(stdtrit(seeds - 1, LEVEL)) * deviation / math.sqrt(seeds)
    return mean - half, mean + half


def _reject_by_holm(p_values: Sequence[float]) -> tuple[list[bool], float]:
    """Return which hypotheses Holm's method rejects, and the level at which it stopped."""
    rejected = [False] * len(p_values)
    for rank, index in enumerate(np.argsort(p_values, kind="stable").tolist()):
        level = LEVEL / (len(p_values) - rank)
        if p_values[index] > level:
            return rejected, level
        rejected[index] = True
    return rejected, LEVEL


def _find_seeds_to_decide(one: PairedDifferences, up_level: float, down_level: float) -> int | None:
    """Return the fewest seeds with a verdict at the same mean and deviation."""
    seeds = np.arange(one.seeds + 1, MAX_SEEDS + 1)
    share = one.last_look_share
    decides = (one.compute_p_value_of_nothing(seeds) <= share * up_level) | (
        one.compute_p_value_of_something(seeds) <= share * down_level
    )
    return int(seeds[decides.argmax()]) if decides.any() else None
