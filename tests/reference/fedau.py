"""FedAU's aggregation weights, client by client from its history, in exact fractions.

Algorithm 2 of Wang and Ji 2024, an independent implementation; shares no code with ``fedquorum``.
"""

import math
from collections.abc import Sequence
from fractions import Fraction


def compute_omegas(history: Sequence[bool], cutoff: float) -> list[Fraction]:
    """Return omega_0 .. omega_T of one client; ``history[t]`` says if it took part in round t.

    omega_t is the mean of the intervals that ended before round t: an interval ends with the
    round in which the client takes part, or when it is ``cutoff`` rounds long.
    """
    result = [Fraction(1)]
    intervals: list[int] = []
    length = 0
    for participated in history:
        length += 1
        if participated or (not math.isinf(cutoff) and length == cutoff):
            intervals.append(length)
            length = 0
        result.append(Fraction(sum(intervals), len(intervals)) if intervals else result[-1])
    return result
