"""FedAU's aggregation weights, client by client from its history, in exact fractions.

Algorithm 2 of Wang and Ji 2024, written down a second time; shares no code with ``fedquorum``.
"""

import math
from collections.abc import Sequence
from fractions import Fraction


def compute_omegas(history: Sequence[bool], cutoff: float) -> list[Fraction]:
    """Return omega_0 .. omega_T of one client that took part in round t where history[t].

    omega_t is the mean of the intervals that ended before round t: an interval ends with the
    round in which the client takes part, or when it is ``cutoff`` rounds long.
    """
    result = [Fraction(1)]
    intervals: list[int] = []
    length = 0
    for took_part in history:
        length += 1
        if took_part or (not math.isinf(cutoff) and length == cutoff):
            intervals.append(length)
            length = 0
        result.append(Fraction(sum(intervals), len(intervals)) if intervals else result[-1])
    return result
