"""Empirical-rate weights, client by client from its history, in exact fractions.

omega_k = n_k / t_k of Sun et al. (ICLR 2025, Algorithm 1, as quoted by third parties); an
independent implementation that shares no code with ``fedquorum``.
"""

import math
from collections.abc import Sequence
from fractions import Fraction


def compute_capped_omegas(history: Sequence[bool], cap: float) -> list[Fraction]:
    """Return omega of a client in rounds 0, 1, ..., each as if the client takes part in it.

    Round t is the (t + 1)-th; the participations are those in ``history`` before it, and this one.
    """
    result = []
    for t in range(len(history)):
        omega = Fraction(t + 1, 1 + sum(history[:t]))
        result.append(omega if math.isinf(cap) else min(omega, Fraction(cap)))
    return result


def compute_expected_omega(p: Fraction, t: int) -> Fraction:
    """Return E[I(t) omega(t)] over all histories of a client that takes part with probability p."""
    total = Fraction(0)
    for outcome in range(2**t):
        visits = outcome.bit_count()
        chance = p**visits * (1 - p) ** (t - visits)
        total += chance * p * Fraction(t + 1, visits + 1)
    return total
