"""Generated cases: all of them with ``pytest --long``, a sample of them every day."""

import os
import random
from collections.abc import Sequence
from typing import TypeVar

Case = TypeVar("Case")

LONG = "FEDQUORUM_LONG"
"""The environment variable that ``pytest --long`` sets."""


def is_long() -> bool:
    """Say whether this is ``pytest --long``, which counts in full what the suite samples."""
    return bool(os.environ.get(LONG))


def sample_cases(cases: Sequence[Case], size: int, *, seed: int = 0) -> list[Case]:
    """Return all cases with ``pytest --long``, and otherwise a sample of them, in their order.

    The sample depends on the seed and the cases alone. Of cases that are tuples, every value of
    every position is in it at least once, for which it may become larger than ``size``.

    Parameters
    ----------
    cases : sequence
        All cases.
    size : int
        How many the normal suite takes.
    seed : int
        Which of them.
    """
    if is_long() or len(cases) <= size:
        return list(cases)
    order = random.Random(seed).sample(range(len(cases)), len(cases))
    seen: set[tuple[int, object]] = set()
    chosen: list[int] = []
    others: list[int] = []
    for i in order:
        case = cases[i]
        values = set(enumerate(case)) if isinstance(case, tuple) else set()
        (chosen if values - seen else others).append(i)
        seen |= values
    chosen += others[: max(0, size - len(chosen))]
    return [cases[i] for i in sorted(chosen)]
