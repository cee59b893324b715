"""Plan how often a study may look at its scores, so that more seeds find no false winner.

Every look at a study's scores may name a method. Without a plan the probability of a false name
grows with each look. The plan has ``planned`` seeds; a look at fewer spends a part of the level
a = (1 - ``RESERVE``) level by one of Lan and DeMets's spending functions. t is the fraction of the
planned information,

    t = (1 / planned + r) / (1 / seeds + r),

where r is the correction of ``paired_statistics``: more seeds over the same rows add little. Beyond
the plan each further look takes half of what is left of the reserve. The levels of all looks add up
to no more than the whole level, so all intervals of all looks hold together with that confidence,
however the looks depend on each other.

Sources: Lan and DeMets, "Discrete Sequential Boundaries for Clinical Trials", Biometrika 70 (1983);
O'Brien and Fleming, Biometrics 35 (1979).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scipy.special import ndtr, ndtri

RESERVE = 0.2
"""The share of the level for looks beyond the plan."""

Spend = Callable[[float, float], float]
"""Returns what is spent of a level a up to a fraction t of the information, in 0 < t <= 1."""


def spend_late(level: float, fraction: float) -> float:
    """Return what the spending function of the O'Brien-Fleming type spends: little early.

    A(t) = 4 (1 - Phi(z / sqrt(t))), z the upper a/4 quantile of the normal distribution, for
    intervals with two ends that together miss with probability a.
    """
    if fraction >= 1.0:
        return level
    return 4.0 * float(ndtr(ndtri(level / 4.0) / math.sqrt(fraction)))


def spend_evenly(level: float, fraction: float) -> float:
    """Return what the spending function of the Pocock type spends: A(t) = a ln(1 + (e - 1) t).

    Looks at equal steps of information have about equal parts of the level.
    """
    return level * math.log1p((math.e - 1.0) * fraction)


@dataclass(frozen=True)
class Look:
    """One look at a study's scores.

    Parameters
    ----------
    seeds : int
        The number of compared seeds.
    planned : int
        The planned number of seeds at that time; the first look's counts.
    """

    seeds: int
    planned: int


def add_look(looks: Sequence[Look], seeds: int, planned: int) -> tuple[Look, ...]:
    """Return the looks with one more; to see the same seeds again is no new look."""
    if looks and looks[-1].seeds >= seeds:
        return tuple(looks)
    return (*looks, Look(seeds, looks[0].planned if looks else max(planned, seeds)))


def compute_look_confidence(
    looks: Sequence[Look],
    confidence: float,
    test_to_train: float = 0.0,
    *,
    spend: Spend = spend_late,
) -> float:
    """Return the confidence of the last look's intervals.

    Parameters
    ----------
    looks : sequence of Look
        All looks so far, at least one.
    confidence : float
        The confidence of the whole study, over all its looks.
    test_to_train : float
        r, see ``paired_statistics``.
    spend : callable
        The spending function.
    """
    level = 1.0 - confidence
    planned, last = looks[0].planned, looks[-1]
    if last.seeds > planned:
        beyond = sum(look.seeds > planned for look in looks)
        return 1.0 - RESERVE * level * 0.5**beyond
    spent = [
        spend((1.0 - RESERVE) * level, _compute_fraction(look.seeds, planned, test_to_train))
        for look in looks[-2:]
    ]
    return 1.0 - (spent[-1] - (spent[0] if len(spent) > 1 else 0.0))


def compute_next_confidence(
    looks: Sequence[Look], confidence: float, test_to_train: float = 0.0
) -> float:
    """Return the confidence of the next look's intervals: at the plan's end, or beyond it."""
    seeds = max(looks[-1].seeds + 1, looks[0].planned)
    later = add_look(looks, seeds, looks[0].planned)
    return compute_look_confidence(later, confidence, test_to_train)


def _compute_fraction(seeds: int, planned: int, test_to_train: float) -> float:
    """Return t, the fraction of the planned information that these seeds have."""
    return (1.0 / planned + test_to_train) / (1.0 / seeds + test_to_train)
