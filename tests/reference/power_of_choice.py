"""Power-of-choice's two steps in plain Python, from Cho, Wang and Joshi's description.

Shares no code with ``fedquorum``.
"""

import math


def compute_selection_probability(data: list[float], drawn: list[int]) -> float:
    """Return the probability of drawing these clients in this order, without replacement."""
    left, probability = dict(enumerate(data)), 1.0
    for client in drawn:
        probability *= left[client] / math.fsum(left.values())
        del left[client]
    return probability


def select_largest_losses(drawn: list[int], losses: dict[int, float], count: int) -> set[int]:
    """Return the clients with the largest losses: repeatedly the first with the largest one left.

    ``drawn`` are the candidates in the order of drawing; one without a loss is none.
    """
    left = [client for client in drawn if client in losses]
    found: set[int] = set()
    while left and len(found) < count:
        best = left[0]
        for client in left:
            if losses[client] > losses[best]:
                best = client
        found.add(best)
        left.remove(best)
    return found
