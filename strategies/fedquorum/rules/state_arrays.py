"""Convert rules' states to named arrays and back, so that a run can resume.

A state is a frozen dataclass, a mapping, an array, a number or None, at any depth. Its names are
joined by dots, as in a ``state_dict``; numbers become arrays of shape ().
"""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from ..errors import StateError
from .types import StateT

StateArrays = dict[str, NDArray[Any]]


def to_arrays(state: object, name: str) -> StateArrays:
    """Return a state as arrays with names below ``name``; None becomes no array.

    The arrays may be those of the state itself.

    Raises
    ------
    StateError
        If the state holds a value of another type.
    """
    if state is None:
        return {}
    if isinstance(state, (np.ndarray, bool, int, float)):
        return {name: np.asarray(state)}
    if is_dataclass(state):
        parts = {item.name: getattr(state, item.name) for item in fields(state)}
    elif isinstance(state, Mapping):
        parts = dict(state)
    else:
        raise StateError(f"'{name}' is a {type(state).__name__}, which cannot be written down")
    return {
        k: v for key, part in parts.items() for k, v in to_arrays(part, f"{name}.{key}").items()
    }


def from_arrays(template: StateT, name: str, arrays: Mapping[str, NDArray[Any]]) -> StateT:
    """Return the state from the arrays of ``to_arrays``: its inverse.

    Parameters
    ----------
    template : StateT
        A state of the same form, such as the one before the first round.
    name : str
        As for ``to_arrays``.
    arrays : mapping
        The arrays of ``to_arrays``; others are ignored.

    Raises
    ------
    StateError
        If an array is missing or has another shape or dtype.
    """
    return cast("StateT", _restore(template, name, arrays))


def expect_array(
    template: NDArray[Any], name: str, arrays: Mapping[str, NDArray[Any]]
) -> NDArray[Any]:
    """Return the array ``name``.

    Raises
    ------
    StateError
        If the array is missing, or its shape or dtype differs from the template's.
    """
    if name not in arrays:
        raise StateError(f"'{name}' is missing")
    found = arrays[name]
    if (found.shape, found.dtype) != (template.shape, template.dtype):
        raise StateError(
            f"'{name}' is {found.dtype} of shape {found.shape}, expected {template.dtype} of "
            f"{template.shape}"
        )
    return found


def _restore(template: Any, name: str, arrays: Mapping[str, NDArray[Any]]) -> Any:
    if template is None:
        return None
    if isinstance(template, np.ndarray):
        return expect_array(template, name, arrays).copy()
    if is_dataclass(template) and not isinstance(template, type):
        return replace(
            template,
            **{
                item.name: _restore(getattr(template, item.name), f"{name}.{item.name}", arrays)
                for item in fields(template)
            },
        )
    if isinstance(template, Mapping):
        return {key: _restore(part, f"{name}.{key}", arrays) for key, part in template.items()}
    return type(template)(expect_array(np.asarray(template), name, arrays).item())


def expand_state(state: Any, fresh: Any, before: int, indices: NDArray[np.int64]) -> Any:
    """Return a rule's state for a larger population.

    An axis of an array has one entry for each client if it is longer in ``fresh``. Other arrays do
    not belong to clients, even if their length is the number of clients.

    Parameters
    ----------
    state : Any
        The state so far.
    fresh : Any
        The larger population's state before its first round.
    before : int
        The number of clients so far.
    indices : array
        The indices of these clients among all clients now, shape (before,).
    """
    if isinstance(state, np.ndarray):
        return _expand_array(state, fresh, before, indices)
    if isinstance(state, Mapping):
        both = {
            key: expand_state(part, fresh[key], before, indices) if key in fresh else part
            for key, part in state.items()
        }
        return {**fresh, **both}
    if is_dataclass(state) and not isinstance(state, type):
        return replace(
            state,
            **{
                item.name: expand_state(
                    getattr(state, item.name), getattr(fresh, item.name), before, indices
                )
                for item in fields(state)
            },
        )
    return state


def _expand_array(
    state: NDArray[Any], fresh: NDArray[Any], before: int, indices: NDArray[np.int64]
) -> NDArray[Any]:
    """Return an array with clients' entries at their new indices, and fresh entries for others."""
    if state.ndim != fresh.ndim or state.shape == fresh.shape:
        return state
    lengths = [*zip(state.shape, fresh.shape, strict=True)]
    if any(length not in {before, longer} for length, longer in lengths):
        return state
    axes = [np.arange(length) if length == longer else indices for length, longer in lengths]
    copied = fresh.copy()
    copied[np.ix_(*axes)] = state
    return copied
