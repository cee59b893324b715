"""Sums in two bins that are fixed before training, in whole numbers and fractions.

Shares no code with ``fedquorum``.
"""

from collections.abc import Iterable, Sequence
from fractions import Fraction

MODULUS = 2**64


def compute_width(terms: int) -> int:
    """Return the largest width of at most 52 bits at which n largest parts sum to less than 2^53.

    n < 2^b for the b binary digits of n, and a part has at most 2^(width - 1) units.
    """
    digits = len(f"{terms:b}")
    return max(width for width in range(1, 53) if 2**digits * 2 ** (width - 1) <= 2**53)


def split_term(term: float, exponent: int, width: int) -> tuple[int, int]:
    """Return a term in units of 2^exponent, and its rest in units of 2^(exponent - width).

    Both are rounded to the nearest whole number, halves to even ones.
    """
    unit = Fraction(2) ** exponent
    high = round(Fraction(term) / unit)
    rest = Fraction(term) - high * unit
    return high, round(rest / unit * 2**width)


def sum_modulo(terms: Iterable[float], exponent: int, width: int) -> tuple[int, int]:
    """Return the sums of the parts, modulo 2^64."""
    parts = [split_term(term, exponent, width) for term in terms]
    return sum(high for high, _ in parts) % MODULUS, sum(low for _, low in parts) % MODULUS


def to_number(parts: Sequence[int], exponent: int, width: int) -> float:
    """Return the float64 sum of two parts modulo 2^64."""
    high, low = (part - MODULUS if part >= MODULUS // 2 else part for part in parts)
    unit = Fraction(2) ** exponent
    return float(Fraction(float(high * unit)) + Fraction(float(low * unit / 2**width)))


def choose_exponent(terms: int, max_factor: float, size: float | None, max_update: float) -> int:
    """Return log2 of the unit of the high part.

    The largest term is at most 2^(width - 1) units. It is the largest factor times the largest
    update, or times 2^20 times the size of the last sum; each of these is rounded up to a power of
    two.
    """

    def round_up(value: Fraction) -> int:
        power = value.numerator.bit_length() - value.denominator.bit_length() - 1
        while Fraction(2) ** power < value:
            power += 1
        return power

    largest = round_up(Fraction(max_update))
    if size is not None:
        largest = min(largest, round_up(Fraction(size) * 2**20))
    return largest + round_up(Fraction(max_factor)) - (compute_width(terms) - 1)
