"""Participation per opportunity, on a table of four clients that can be checked by hand."""

import math

import numpy as np
import pytest
from fedquorum.records.opportunity import Opportunities, evenness

ROWS = (
    # client, status, weight: by round
    *((0, "trained", 0.5), (1, "trained", 0.5), (2, "unavailable", 0.0)),
    *((0, "trained", 0.5), (1, "silent", 0.0), (2, "trained", 0.5)),
    *((0, "trained", 0.5), (1, "rejected", 0.0), (2, "failed", 0.0)),
    *((0, "trained", 1.0), (1, "unavailable", 0.0), (3, "unavailable", 0.0)),
    *((0, "late", 0.0), (2, "busy", 0.0)),
)


def table(everyone: int = 4) -> Opportunities:
    client, status, weight = zip(*ROWS, strict=True)
    columns = (np.array(client), np.array(status, dtype=object), np.array(weight))
    return Opportunities.of(*columns, np.arange(everyone))


def test_what_became_of_each_client() -> None:
    """Failed and busy rounds are neither there nor away; a late client was there."""
    found = table()
    assert found.asked.tolist() == [5, 4, 4, 1]
    assert found.there.tolist() == [5, 3, 1, 0]
    assert found.away.tolist() == [0, 1, 1, 1]
    assert found.admitted.tolist() == [4, 1, 1, 0]
    assert found.mass.tolist() == [2.5, 0.5, 0.5, 0.0]


def test_the_shares_are_of_the_rounds_there() -> None:
    """Client 3 was never there: it has no share, and is counted."""
    found = table()
    assert found.presence.tolist() == [1.0, 0.75, 0.5]
    assert found.opportunity_share.tolist() == [4 / 5, 1 / 3, 1.0]
    assert found.mass_share.tolist() == [2.5 / 5, 0.5 / 3, 0.5]
    assert found.never_there == 1
    assert found.selection_gap == 2.5  # 1 of a mean of 14 / 4


def test_evenness_by_hand() -> None:
    """Mean 32 / 45, and the sums of squares of 4 / 5, 1 / 3 and 1."""
    found = evenness(table().opportunity_share)
    squares = 16 / 25 + 1 / 9 + 1
    mean = 32 / 45
    assert found["average"] == pytest.approx(mean)
    assert found["worst"] == pytest.approx(1 / 3)
    assert found["jain"] == pytest.approx((3 * mean) ** 2 / (3 * squares))
    assert found["cv"] == pytest.approx(math.sqrt(squares / 3 - mean**2) / mean)


def test_all_there_always_is_the_plain_share() -> None:
    """Dividing by a presence of 1 changes nothing."""
    client = np.tile(np.arange(3), 4)
    weight = np.tile([0.5, 0.25, 0.25], 4)
    found = Opportunities.of(client, np.array(["trained"] * 12, dtype=object), weight, np.arange(3))
    assert found.presence.tolist() == found.opportunity_share.tolist() == [1.0] * 3
    assert found.mass_share.tolist() == [0.5, 0.25, 0.25]
    assert (found.selection_gap, found.never_there) == (0.0, 0)


def test_clients_never_asked_are_counted_and_strangers_left_out() -> None:
    """The clients of the run decide, not those with rows."""
    assert table(5).never_there == 2
    assert table(2).asked.tolist() == [5, 4]


def test_nothing_to_tell() -> None:
    """No client ever there has no evenness; weights that are all 0 have no variation."""
    assert all(map(math.isnan, evenness(np.array([])).values()))
    none = evenness(np.zeros(3))
    assert (none["average"], none["jain"]) == (0.0, 1.0)
    assert math.isnan(none["cv"])


def test_without_clients_there_is_no_gap() -> None:
    """It is not a number, rather than that all were asked alike."""
    nobody = np.zeros(0, dtype=np.int64)
    found = Opportunities.of(nobody, nobody.astype(object), nobody.astype(np.float64), nobody)
    assert math.isnan(found.selection_gap)
    assert found.presence.tolist() == []
