"""Limit the influence of any single client on the model."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .parameters import POSITIVE
from .types import FloatArray


@dataclass(frozen=True)
class Robustness:
    """Limit the norm of each update, and its weight.

    Parameters
    ----------
    clip_norm : float, optional
        S > 0. An update Delta_k with a norm above S is scaled to the norm S. The norm is Euclidean,
        over all floating arrays; integer arrays (counters) stay unchanged.
    max_weight : float, optional
        b > 0. ``decide_round`` reduces a weight c_k > b to b. No other client gets the difference,
        so that the step is shorter.

    Raises
    ------
    ParameterError
        If a value is outside its range.

    References
    ----------
    Sun, Kairouz, Suresh and McMahan, "Can You Really Backdoor Federated Learning?", 2019,
    section 5.1 (norm thresholding of updates). The cap on weights is ours.
    """

    clip_norm: float | None = None
    max_weight: float | None = None

    def __post_init__(self) -> None:
        if self.clip_norm is not None:
            POSITIVE.check("clip_norm", self.clip_norm)
        if self.max_weight is not None:
            POSITIVE.check("max_weight", self.max_weight)

    @property
    def has_bounds(self) -> bool:
        """Whether a bound is set, which needs every update separately."""
        return self.clip_norm is not None or self.max_weight is not None

    def clip(
        self, model: Mapping[str, NDArray[Any]], client_model: Mapping[str, NDArray[Any]]
    ) -> tuple[Mapping[str, NDArray[Any]], str | None]:
        """Return a client's model with its update clipped, and a note, or None if not clipped."""
        if self.clip_norm is None:
            return client_model, None
        arrays, norm = clip_update(model, client_model, self.clip_norm)
        if norm <= self.clip_norm:
            return arrays, None
        return arrays, f"update of norm {norm:.6g} clipped to {self.clip_norm:g}"


@dataclass(frozen=True)
class ClippedModel(Mapping[str, NDArray[Any]]):
    """The model x_t + factor (x_k - x_t), computed array by array on reading.

    Floating arrays are float64: rounding them to the model's dtype could lengthen the update
    again. Integer arrays are those of x_k.
    """

    model: Mapping[str, NDArray[Any]]
    client_model: Mapping[str, NDArray[Any]]
    scale: float

    def __getitem__(self, name: str) -> NDArray[Any]:
        start, array = self.model[name], self.client_model[name]
        if not np.issubdtype(start.dtype, np.floating):
            return array
        clipped: FloatArray = start + self.scale * _compute_update(start, array)
        return clipped

    def __iter__(self) -> Iterator[str]:
        return iter(self.client_model)

    def __len__(self) -> int:
        return len(self.client_model)


def clip_update(
    model: Mapping[str, NDArray[Any]], client_model: Mapping[str, NDArray[Any]], norm: float
) -> tuple[Mapping[str, NDArray[Any]], float]:
    """Return a client's model with an update of at most ``norm``, and the norm before clipping.

    Parameters
    ----------
    model : mapping
        x_t.
    client_model : mapping
        x_k, with arrays of the same names.
    norm : float
        The largest Euclidean norm of x_k - x_t over all floating arrays.
    """
    floating = [name for name, array in model.items() if np.issubdtype(array.dtype, np.floating)]
    updates = (_compute_update(model[name], client_model[name]) for name in floating)
    length = math.sqrt(math.fsum(float(np.vdot(u, u)) for u in updates))
    if length <= norm:
        return client_model, length
    return ClippedModel(model, client_model, norm / length), length


def _compute_update(start: NDArray[Any], array: NDArray[Any]) -> FloatArray:
    update: FloatArray = array.astype(np.float64) - start
    return update
