"""Sums of clients' numbers, as integers modulo 2^64."""

import math
from fractions import Fraction

import numpy as np
import pytest
from fedquorum.server.number_sum import compute_max_number, decode_numbers, encode_numbers
from hypothesis import given
from hypothesis import strategies as st

numbers = st.one_of(
    st.floats(-1e4, 1e4), st.sampled_from([math.nan, math.inf, -math.inf, 1e300, -1e300])
)
clients = st.lists(st.tuples(numbers, numbers, st.integers(0, 10**5)), min_size=1, max_size=30)


@given(clients)
def test_sums_and_counts_of_usable_numbers(reported: list[tuple[float, float, int]]) -> None:
    """In whole numbers: each w x rounded to 2^-24, in any order and under masks that cancel.

    A number that is NaN, infinite or too large is left out of sum, weight and count, and the
    client's other number stays.
    """
    n = len(reported)
    rng = np.random.default_rng(n)
    masks = rng.integers(0, 2**64, (n, 3, 2), np.uint64)
    total = np.zeros((3, 2), np.uint64)
    for k in rng.permutation(n):
        loss, accuracy, rows = reported[k]
        sent = encode_numbers(np.array([loss, accuracy]), np.array([rows, 1.0]), n)
        total += sent + masks[k] - masks[(k + 1) % n]
    sums = decode_numbers(total)
    limit = compute_max_number(n)
    for i in (0, 1):
        pairs = [(one[i], one[2] if i == 0 else 1) for one in reported]
        used = [(x, w) for x, w in pairs if math.isfinite(x) and abs(x * w) <= limit]
        multiples = sum(round(Fraction(x * w) * 2**24) for x, w in used)
        weight = sum(w for _, w in used)
        assert sums.weighted[i] == float(Fraction(multiples, 2**24))
        assert (sums.weight[i], sums.count[i]) == (weight, len(used))
        if weight:
            assert sums.mean[i] == sums.weighted[i] / weight
        else:
            assert math.isnan(sums.mean[i])


@pytest.mark.parametrize("terms", [1, 2, 3, 1000, 2**20])
@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_the_largest_numbers_of_all_clients_fit(terms: int, sign: float) -> None:
    """Their sum is at most 2^62 multiples; the next larger number is left out."""
    limit = compute_max_number(terms)
    one = np.ones(1)
    sent = encode_numbers(np.array([sign * limit]), one, terms)
    assert terms * abs(int(sent.view(np.int64)[0, 0])) <= 2**62
    assert 2 * terms * abs(int(sent.view(np.int64)[0, 0])) > 2**62
    assert decode_numbers(sent * np.uint64(terms)).weighted[0] == sign * terms * limit
    assert decode_numbers(sent * np.uint64(terms)).count[0] == terms
    beyond = sign * math.nextafter(limit, math.inf)
    for value, weight in ((beyond, 1.0), (0.0, abs(beyond)), (1.0, -1.0), (1.0, math.nan)):
        assert not encode_numbers(np.array([value]), np.array([weight]), terms).any()
