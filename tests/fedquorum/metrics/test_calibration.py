"""Tests of the expected calibration error against its definition over pooled rows."""

import numpy as np
import pytest
from fedquorum.metrics.calibration import (
    NUM_BINS,
    NUM_BYTES,
    UNITS,
    UNITS_PER_BIN,
    add_bins,
    are_valid_bins,
    encode_bins,
)
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.builders_calibration import make_bins, make_full_bin
from tests.cases import limit_examples
from tests.reference.calibration import compute_ece

Rows = list[tuple[int, int, bool]]
ROWS = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, UNITS), st.booleans()), min_size=1, max_size=60
)
"""The client, the confidence in units, and whether the prediction is correct."""


def encode_rows(rows: Rows, num_clients: int = 6) -> list[bytes]:
    client, confidence, correct = np.array(sorted(rows), dtype=np.int64).T
    return encode_bins(client, confidence, correct, num_clients)


def to_probabilities(rows: Rows) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return rows of two outcomes, the predicted class 0 and any other, and their labels.

    The definition takes the largest probability, so that of the other class is 0.
    """
    confidence = np.array([units for _, units, _ in rows]) / UNITS
    labels = np.array([0 if correct else 1 for _, _, correct in rows])
    return np.stack([confidence, np.zeros(len(rows))], axis=1), labels


@limit_examples(200)
@given(ROWS)
def test_the_sums_over_clients_are_those_of_pooled_rows(rows: Rows) -> None:
    """Bit by bit, in any order of the clients, and grouped by nodes or not."""
    bins = encode_rows(rows)
    pooled = add_bins(encode_rows([(0, units, correct) for _, units, correct in rows], 1))
    for order in (bins, bins[::-1], [*bins[3:], *bins[:3]]):
        found = add_bins(order)
        assert found.ece == pooled.ece
        for name in ("count", "correct", "confidence"):
            assert (getattr(found, name) == getattr(pooled, name)).all()
    assert are_valid_bins(bins)


@limit_examples(200)
@given(st.lists(st.tuples(st.just(0), st.integers(1, UNITS), st.booleans()), min_size=1))
def test_the_error_is_that_of_the_definition(rows: Rows) -> None:
    """Over any rows, but those on an edge, whose bin depends on how float64 rounds the edge."""
    rows = [one for one in rows if one[1] % UNITS_PER_BIN or one[1] == UNITS]
    if rows:
        expected = compute_ece(*to_probabilities(rows))
        assert add_bins(encode_rows(rows)).ece == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("edge", range(1, NUM_BINS + 1))
def test_a_confidence_on_an_edge_is_in_the_bin_below(edge: int) -> None:
    """Bins are closed above, so a confidence of 1 is in the last one."""
    found = add_bins(encode_rows([(0, edge * UNITS_PER_BIN, True)]))
    assert found.count.tolist() == [int(b == edge - 1) for b in range(NUM_BINS)]
    assert found.ece == pytest.approx(1 - edge / NUM_BINS, abs=1e-12)
    above = add_bins(encode_rows([(0, min(UNITS, edge * UNITS_PER_BIN + 1), True)]))
    assert above.count[min(edge, NUM_BINS - 1)] == 1


def test_one_row_and_a_client_without_rows() -> None:
    """The error of one row is its gap; a client without rows sends nothing and changes nothing."""
    bins = encode_rows([(1, UNITS // 4, False)], 3)
    assert [len(one) for one in bins] == [0, NUM_BYTES, 0]
    assert add_bins(bins).ece == 0.25
    assert add_bins(encode_rows([(0, UNITS, True)])).ece == 0.0
    assert add_bins(encode_rows([(0, UNITS, False)])).ece == 1.0


def test_gaps_of_one_sign_cancel_only_inside_a_bin() -> None:
    """Two bins with opposite gaps of 0.1 and 0.3, and one in which two rows cancel."""
    low, high = 2 * UNITS // 10, 9 * UNITS // 10  # bins 2 and 13
    rows = [(0, low, False), (1, low, True), (0, high, True), (1, high, True)]
    found = add_bins(encode_rows(rows))
    assert found.ece == pytest.approx((abs(1 - 0.4) + abs(2 - 1.8)) / 4, abs=1e-6)
    assert np.isnan(found.accuracy[0])
    assert found.accuracy[13] == 1.0
    assert found.mean_confidence[13] == pytest.approx(0.9, abs=1e-6)


@pytest.mark.parametrize(
    "bins",
    [
        b"\0",
        make_full_bin(3, 1, 1)[:-1],
        2 * make_full_bin(3, 1, 1),
        make_bins(),
        make_bins((3, 0, 0, 1)),
        make_bins((3, 2, 3, 7 * UNITS_PER_BIN)),
        make_bins((3, 2, 1, 6 * UNITS_PER_BIN - 1)),
        make_bins((3, 2, 1, 8 * UNITS_PER_BIN + 1)),
        make_bins((3, 2, 1, 2**64 - 1)),
    ],
    ids=["one", "short", "long", "nothing", "empty", "correct", "low", "high", "overflow"],
)
def test_impossible_sums_are_refused(bins: bytes) -> None:
    """Alone, and beside those of other clients."""
    valid = [make_bins((3, 2, 1, 7 * UNITS_PER_BIN)), b"", make_bins((0, 1, 0, 0))]
    assert are_valid_bins(valid)
    assert not are_valid_bins([bins])
    assert not are_valid_bins([*valid, bins])


def test_sums_of_many_predictions_are_exact() -> None:
    """A thousand clients with all predictions that the sums can count do not overflow."""
    found = add_bins([make_full_bin(14, 2**32 - 1, 1)] * 1000)
    assert found.confidence[14] == 1000 * (2**32 - 1) * UNITS
    assert found.ece == pytest.approx(1.0)
