"""Values are equal if they hold NaN in the same places."""

import math
from dataclasses import dataclass, replace
from typing import Any

import pytest
from fedquorum.rules.equality import is_same, nan_equals_nan


def make_nan() -> float:
    """Return a NaN that is a new object."""
    return float("nan")


@nan_equals_nan
@dataclass(frozen=True)
class Evaluation:
    """A client's evaluation."""

    client: int
    loss: float
    others: Any = ()


@pytest.mark.parametrize(
    "value",
    [
        lambda nan: nan,
        lambda nan: [1.0, nan],
        lambda nan: (nan, [nan]),
        lambda nan: {"a": {"b": (nan,)}},
        lambda nan: Evaluation(1, nan, (2.0, nan)),
        lambda nan: [Evaluation(1, 0.5, {2: nan})],
    ],
)
def test_nan_is_the_same_as_another_nan(value: Any) -> None:
    """At any depth; a number in its place is a different value."""
    assert is_same(value(make_nan()), value(make_nan()))
    assert not is_same(value(make_nan()), value(0.0))
    assert not is_same(value(0.0), value(make_nan()))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 2),
        ([1], (1,)),
        ([1.0], [1.0, 2.0]),
        ({"a": 1}, {"b": 1}),
        ("nan", math.nan),
        (None, math.nan),
    ],
)
def test_other_values_differ(one: Any, other: Any) -> None:
    assert not is_same(one, other)


def test_equal_values_stay_equal() -> None:
    """Numbers of different types, and mappings in another order."""
    assert is_same(1, 1.0)
    assert is_same({"a": 1, "b": [2]}, {"b": [2.0], "a": 1})
    assert is_same(math.inf, math.inf)


def test_a_dataclass_with_nan() -> None:
    """Equal to its copy, by hash too; every field counts."""
    one, other = (Evaluation(1, make_nan(), (make_nan(),)) for _ in range(2))
    assert one == other
    assert hash(one) == hash(other)
    assert one != replace(one, client=2)
    assert one != replace(one, loss=0.5)
    assert one != replace(one, others=(0.5,))
    fields: Any = (one.client, one.loss, one.others)
    assert one != fields
