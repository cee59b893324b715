"""Round a fraction of a count to a whole number, as in decimals.

A float is rarely equal to the decimal that a user wrote: 0.55 * 100 is 55.00000000000001, and its
ceiling is 56. If a fraction is the float nearest to m / (2 n), for a whole number m, these
functions take m / 2 as its product with n. Otherwise no whole number and no half is close enough
for the float product to be on its wrong side, and they take the exact product of the float. A
fraction is thus read as it was written, whether as a decimal (0.55) or as a quotient (5 / 6).

Only the drop-in strategies truncate the float product, in which 0.29 of 100 is 28: they select as
many nodes as Flower's.
"""

import math
from fractions import Fraction


def round_up(fraction: float, count: int) -> int:
    """Return ceil(fraction * count)."""
    return math.ceil(_compute_product(fraction, count))


def round_half_even(fraction: float, count: int) -> int:
    """Return round(fraction * count): the nearest whole number, and the even one of two."""
    return round(_compute_product(fraction, count))


def _compute_product(fraction: float, count: int) -> Fraction:
    if count == 0:
        return Fraction(0)
    halves = round(2 * fraction * count)
    return Fraction(halves, 2) if halves / (2 * count) == fraction else Fraction(fraction) * count
