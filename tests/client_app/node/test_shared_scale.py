"""Test the record of a scale that a device shares."""

import math
from typing import Any

import numpy as np
import pytest
from fedquorum.errors import ProtocolError
from flwr.app import ConfigRecord, RecordDict

from client_app.data.coding.table import ClientScale, average_scales
from client_app.data.scaling import NumberScale
from client_app.node.shared_scale import MAX_ROWS, MAX_STATISTIC, decode_scale, encode_scale

NAN = math.nan
GOOD = {"rows": 20, "fill": [0.1, NAN], "mean": [1 / 3, NAN], "deviation": [5e-324, NAN]}


def test_a_scale_survives_the_wire() -> None:
    """Every bit does, and a column without a number stays one."""
    statistics = [np.array(GOOD[name]) for name in ("fill", "mean", "deviation")]
    record = encode_scale(ClientScale(2, 20, NumberScale(*statistics), "North"))
    assert {*record} == {*GOOD}  # no name, no id
    sent = RecordDict({"scale": record}).config_records["scale"]
    found = decode_scale(sent, 2, 2)
    assert (found.client, found.rows, found.name) == (2, 20, None)
    for name, expected in zip(("fill", "mean", "deviation"), statistics, strict=True):
        np.testing.assert_array_equal(getattr(found.scale, name), expected)


def test_the_largest_scales_have_a_finite_mean() -> None:
    """However many rows a device claims to have."""
    largest = {name: [MAX_STATISTIC] for name in ("fill", "mean", "deviation")}
    record = ConfigRecord({"rows": MAX_ROWS, **largest})
    common = average_scales([decode_scale(record, client, 1) for client in range(1000)])
    np.testing.assert_allclose(common.mean, MAX_STATISTIC)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"rows": 0}, "'rows' must be a whole number from 1 to"),
        ({"rows": 10**13}, "'rows' must be"),
        ({"rows": 2.5}, "'rows' must be"),
        ({"rows": True}, "'rows' must be"),
        ({"rows": None}, "'rows' must be"),
        ({"mean": [1.0]}, "'mean' must be a list of 2 numbers"),
        ({"mean": [1.0, NAN, NAN]}, "'mean' must be a list of 2 numbers"),
        ({"fill": None}, "'fill' must be a list of 2 numbers"),
        ({"fill": 3.0}, "'fill' must be a list of 2 numbers"),
        ({"fill": ["a", "b"]}, "'fill' must have finite numbers"),
        ({"fill": [1, 2]}, "'fill' must have finite numbers"),
        ({"mean": [math.inf, NAN]}, "'mean' must have finite numbers"),
        ({"mean": [-1e300, NAN]}, "'mean' must have finite numbers"),
        ({"deviation": [math.inf, NAN]}, "'deviation' must have finite numbers"),
        ({"deviation": [0.0, NAN]}, "'deviation' must be above 0"),
        ({"deviation": [-1.0, NAN]}, "'deviation' must be above 0"),
        ({"mean": [NAN, NAN]}, "a column must have all of its statistics"),
        ({"fill": [NAN, NAN]}, "a column must have all of its statistics"),
        ({"deviation": [1.0, 1.0]}, "a column must have all of its statistics"),
    ],
)
def test_hostile_scales_are_refused(change: dict[str, Any], problem: str) -> None:
    """A device cannot report a scale that no numbers have."""
    given: dict[str, Any] = {k: value for k, value in (GOOD | change).items() if value is not None}
    with pytest.raises(ProtocolError, match=problem):
        decode_scale(ConfigRecord(given), 2, 2)
