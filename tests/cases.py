"""Sample generated cases; ``pytest --long`` runs all of them."""

import os
import random
from collections.abc import Sequence
from typing import TypeVar

from hypothesis import settings

Case = TypeVar("Case")

LONG = "FEDQUORUM_LONG"
"""The environment variable that ``pytest --long`` sets."""


def is_long() -> bool:
    """Say whether this is ``pytest --long``, which runs all generated cases."""
    return bool(os.environ.get(LONG))


def limit_examples(most: int) -> settings:
    """Return settings for costly examples: at most ``most`` of them, and fewer with ``--fast``."""
    return settings(max_examples=min(most, settings().max_examples))


def sample_cases(cases: Sequence[Case], size: int, *, seed: int = 0) -> list[Case]:
    """Return all cases with ``pytest --long``, and otherwise a sample of them, in their order.

    The sample depends on the seed and the cases alone. Of cases that are tuples, every value of
    every position is in it at least once, for which it may become larger than ``size``.

    Parameters
    ----------
    cases : sequence
        All cases.
    size : int
        The size of the sample.
    seed : int
        The seed of the sample.
    """
    if is_long() or len(cases) <= size:
        return list(cases)
    order = random.Random(seed).sample(range(len(cases)), len(cases))
    seen: set[tuple[int, object]] = set()
    sampled: list[int] = []
    rest: list[int] = []
    for i in order:
        case = cases[i]
        values = set(enumerate(case)) if isinstance(case, tuple) else set()
        (sampled if values - seen else rest).append(i)
        seen |= values
    sampled += rest[: max(0, size - len(sampled))]
    return [cases[i] for i in sorted(sampled)]
