"""MaxFL's weights and appeal, client by client from the formulas; shares no code with fedquorum."""

from collections.abc import Sequence
from fractions import Fraction


def compute_weights(
    gaps: Sequence[str], slope: int, offset: str, *, terms: int = 80
) -> list[Fraction]:
    """Return q_k / (sum of q + e), q = s (1 - s) with s = 1 / (1 + exp(-slope gap)), as fractions.

    ``gaps``: F_k - rho_k as decimal texts. exp by ``terms`` terms of its series, with which an
    exponent of size up to 10 has more digits than a float.
    """
    q = []
    for gap in gaps:
        exponent, term, power = -slope * Fraction(gap), Fraction(1), Fraction(1)
        for n in range(1, terms):
            term *= exponent / n
            power += term
        sigma = 1 / (1 + power)
        q.append(sigma * (1 - sigma))
    total = sum(q, Fraction(offset))
    return [q_k / total for q_k in q]


def measure_appeal(
    losses: Sequence[float],
    required: Sequence[float],
    ours: Sequence[float],
    theirs: Sequence[float],
) -> tuple[float, float]:
    """Return the fraction of satisfied clients, and the accuracy of each one's preferred model."""
    satisfied, taken = 0, 0.0
    for loss, rho, shared, local in zip(losses, required, ours, theirs, strict=True):
        if loss < rho:
            satisfied += 1
            taken += shared
        else:
            taken += local
    return satisfied / len(losses), taken / len(losses)
