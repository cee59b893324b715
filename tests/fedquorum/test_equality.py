"""What may hold NaN is equal to what holds NaN in the same place."""

import math
from dataclasses import dataclass, replace
from typing import Any

import pytest
from fedquorum.equality import is_same, nan_equals_nan


def another_nan() -> float:
    """Return a NaN that is another object than all others."""
    return float("nan")


@nan_equals_nan
@dataclass(frozen=True)
class Measured:
    """What a client measured."""

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
        lambda nan: Measured(1, nan, (2.0, nan)),
        lambda nan: [Measured(1, 0.5, {2: nan})],
    ],
)
def test_nan_is_the_same_as_another_nan(value: Any) -> None:
    """Wherever it stands; a number in its place is another value."""
    assert is_same(value(another_nan()), value(another_nan()))
    assert not is_same(value(another_nan()), value(0.0))
    assert not is_same(value(0.0), value(another_nan()))


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


def test_what_is_equal_stays_equal() -> None:
    """Numbers of different types, and mappings in another order."""
    assert is_same(1, 1.0)
    assert is_same({"a": 1, "b": [2]}, {"b": [2.0], "a": 1})
    assert is_same(math.inf, math.inf)


def test_a_dataclass_with_nan() -> None:
    """Equal to its copy, by hash too; every field counts."""
    one, other = (Measured(1, another_nan(), (another_nan(),)) for _ in range(2))
    assert one == other
    assert hash(one) == hash(other)
    assert one != replace(one, client=2)
    assert one != replace(one, loss=0.5)
    assert one != replace(one, others=(0.5,))
    fields: Any = (one.client, one.loss, one.others)
    assert one != fields
