"""Power-of-choice's two steps in plain Python, from Cho, Wang and Joshi's description.

Shares no code with ``fedquorum``.
"""

import math


def compute_selection_probability(data: list[float], drawn: list[int]) -> float:
    """Return the probability of drawing these clients in this order, without replacement."""
    remaining, probability = dict(enumerate(data)), 1.0
    for client in drawn:
        probability *= remaining[client] / math.fsum(remaining.values())
        del remaining[client]
    return probability


def select_largest_losses(drawn: list[int], losses: dict[int, float], count: int) -> set[int]:
    """Return the clients with the largest losses: repeatedly the first of the largest remaining.

    ``drawn`` are the candidates in the order of sampling; one without a loss is skipped.
    """
    remaining = [client for client in drawn if client in losses]
    selected: set[int] = set()
    while remaining and len(selected) < count:
        best = remaining[0]
        for client in remaining:
            if losses[client] > losses[best]:
                best = client
        selected.add(best)
        remaining.remove(best)
    return selected
