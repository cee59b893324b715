"""Empirical-rate weights, client by client from its history, in exact fractions.

omega_k = n_k / t_k of Sun et al. (ICLR 2025, Algorithm 1, as quoted by third parties), written down
a second time; shares no code with ``fedquorum``.
"""

import math
from collections.abc import Sequence
from fractions import Fraction


def compute_capped_omegas(history: Sequence[bool], cap: float) -> list[Fraction]:
    """Return omega of a client in rounds 0, 1, ..., were it to take part in each.

    Round t is its (t + 1)-th, and its visits are those of ``history`` before round t and this one.
    """
    result = []
    for t in range(len(history)):
        omega = Fraction(t + 1, 1 + sum(history[:t]))
        result.append(omega if math.isinf(cap) else min(omega, Fraction(cap)))
    return result


def compute_expected_omega(p: Fraction, t: int) -> Fraction:
    """Return E[I(t) omega(t)] over all histories of a client there with p in every round."""
    total = Fraction(0)
    for outcome in range(2**t):
        visits = outcome.bit_count()
        chance = p**visits * (1 - p) ** (t - visits)
        total += chance * p * Fraction(t + 1, visits + 1)
    return total
