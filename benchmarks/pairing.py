"""Compare speeds on a machine whose speed drifts: interleaved runs and the interval of their ratio.

Speeds measured an hour apart compare poorly. Consecutive runs see the same machine state, so their
ratio is steadier than their times.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

NUM_RESAMPLES = 10_000
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Ratio:
    """Time of ``name`` over time of ``reference``: below 1 if ``name`` is faster.

    ``median`` is that of the pairs' ratios, with the bootstrap interval from ``low`` to ``high``.
    """

    name: str
    reference: str
    median: float
    low: float
    high: float
    pairs: int


def plan_repetitions(names: Sequence[str], num_pairs: int) -> list[list[str]]:
    """Return the order of the competitors in each repetition: forward, backward, forward, ...

    With this order a machine that slows down favors no competitor.
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
        If there is no pair, or the numbers of times differ.
    """
    if len(times) != len(reference_times) or not times:
        raise ValueError(
            "times must come in pairs, one for each competitor, got "
            f"{len(times)} of {name} and {len(reference_times)} of {reference}"
        )
    ratios = np.asarray(times) / np.asarray(reference_times)
    rng = np.random.default_rng(0)
    resampled = rng.choice(ratios, size=(NUM_RESAMPLES, len(ratios)))
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(np.median(resampled, axis=1), [tail, 1 - tail])
    return Ratio(name, reference, float(np.median(ratios)), float(low), float(high), len(ratios))
