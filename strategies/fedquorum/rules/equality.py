"""Compare values that may hold NaN, with NaN equal to itself: a number that was not evaluated."""

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

KindT = TypeVar("KindT", bound=type[Any])


def is_same(one: Any, other: Any) -> bool:
    """Say whether two values are equal; NaN equals NaN, also within lists, tuples and mappings."""
    return bool([_unify_nan(one)] == [_unify_nan(other)])


def nan_equals_nan(kind: KindT) -> KindT:
    """Make instances of a frozen dataclass equal if their fields are equal by ``is_same``.

    Otherwise two instances with NaN are equal only if both hold the same NaN object, and from
    Python 3.13 on not even then.
    """

    def is_equal(self: Any, other: object) -> Any:
        if type(other) is not type(self):
            return NotImplemented
        return _get_field_values(self) == _get_field_values(other)

    def compute_hash(self: Any) -> int:
        return hash(_get_field_values(self))

    for name, method in (("__eq__", is_equal), ("__hash__", compute_hash)):
        setattr(kind, name, method)
    return kind


def _get_field_values(value: Any) -> tuple[Any, ...]:
    return tuple(_unify_nan(getattr(value, item.name)) for item in fields(value))


def _unify_nan(value: Any) -> Any:
    """Return a value with each NaN replaced by ``math.nan``: containers compare identity first."""
    if isinstance(value, float):
        return math.nan if math.isnan(value) else value
    if isinstance(value, list):
        return [*map(_unify_nan, value)]
    if isinstance(value, tuple):
        return tuple(map(_unify_nan, value))
    if isinstance(value, Mapping):
        return {key: _unify_nan(item) for key, item in value.items()}
    return value
