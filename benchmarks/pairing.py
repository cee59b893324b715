"""Comparisons on a machine whose speed changes: interleaved runs and the interval of their ratio.

Speeds of one hour compare poorly with those of the next. Runs that follow each other directly
share the machine's mood, and so their ratio is steady where their times are not.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

NUM_RESAMPLES = 10_000
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Ratio:
    """Time of ``name`` over time of ``reference``: below 1 where ``name`` is faster.

    ``median`` of the ratios of the pairs, with its bootstrap interval from ``low`` to ``high``.
    """

    name: str
    reference: str
    median: float
    low: float
    high: float
    pairs: int


def plan_repetitions(names: Sequence[str], num_pairs: int) -> list[list[str]]:
    """Return who runs in each repetition: forth, back, forth, ...

    A machine that becomes slower with time then favours no name.
    """
    return [list(names if i % 2 == 0 else reversed(names)) for i in range(num_pairs)]


def compute_paired_ratio(
    name: str, reference: str, times: Sequence[float], reference_times: Sequence[float]
) -> Ratio:
    """Return the median ratio of paired times with its interval.

    Resampling is seeded, so the same times give the same interval.

    Raises
    ------
    ValueError
        If there is no pair, or a time without its partner.
    """
    if len(times) != len(reference_times) or not times:
        raise ValueError(
            "times must be of pairs, one of each competitor, got "
            f"{len(times)} of {name} and {len(reference_times)} of {reference}"
        )
    ratios = np.asarray(times) / np.asarray(reference_times)
    rng = np.random.default_rng(0)
    drawn = rng.choice(ratios, size=(NUM_RESAMPLES, len(ratios)))
    outside = (1 - CONFIDENCE) / 2
    low, high = np.quantile(np.median(drawn, axis=1), [outside, 1 - outside])
    return Ratio(name, reference, float(np.median(ratios)), float(low), float(high), len(ratios))
