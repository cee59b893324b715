"""The server's step on the combined update, and the inner products of updates."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..rules.server_optimizer import Parameters, ServerOptimizer
from ..rules.types import FloatArray

BLOCK_LENGTH = 65536
"""How many numbers of each update are multiplied at a time.

In float64 they are 512 KiB for each client, so that the products of 1,000 updates take 0.5 GiB.
"""

ArrayT = TypeVar("ArrayT", bound=NDArray[Any])


def compute_inner_products(
    model: Mapping[str, NDArray[Any]], client_models: Sequence[Mapping[str, NDArray[Any]]]
) -> FloatArray:
    """Return <Delta_i, Delta_j> over all floating arrays, shape (n, n).

    Integer arrays, such as counters, do not enter. Running statistics do, as in the code of
    AAggFF's authors: rules divide by these lengths, and a client that barely trained could
    otherwise move the statistics at will. Memory is n blocks of ``BLOCK_LENGTH`` numbers.
    """
    total = np.zeros((len(client_models), len(client_models)))
    for name, array in model.items():
        if not np.issubdtype(array.dtype, np.floating):
            continue
        start = array.reshape(-1)
        flat = [client_model[name].reshape(-1) for client_model in client_models]
        for low in range(0, array.size, BLOCK_LENGTH):
            block = slice(low, low + BLOCK_LENGTH)
            updates = (
                np.array([client_array[block] for client_array in flat], dtype=np.float64)
                - start[block]
            )
            total += updates @ updates.T
    return total


def compute_update_norm(
    model: Mapping[str, NDArray[Any]], update: Mapping[str, FloatArray]
) -> float:
    """Return |u| over the same arrays as ``compute_inner_products``."""
    floating = [update[k] for k, array in model.items() if np.issubdtype(array.dtype, np.floating)]
    largest = max((float(np.abs(u).max(initial=0.0)) for u in floating), default=0.0)
    if largest == 0.0 or not math.isfinite(largest):
        return largest
    exponent = math.frexp(largest)[1]  # the square of a number above 1e154 would be infinite
    squares = [float(np.vdot(u, u)) for u in (np.ldexp(u, -exponent) for u in floating)]
    return math.ldexp(math.sqrt(math.fsum(squares)), exponent)


VARIANCE_SUFFIX = "running_var"
BUFFER_SUFFIXES = frozenset({"running_mean", VARIANCE_SUFFIX, "num_batches_tracked"})
"""The names of the arrays that PyTorch's normalization layers track rather than train."""


def is_buffer(name: str, array: NDArray[Any]) -> bool:
    """Say whether a model's array is a buffer, which no optimizer steps.

    Buffers are integer arrays, and by their names the statistics of normalization layers. No rule
    extrapolates them, because a negative variance would break the model.
    """
    local_name = name.rpartition(".")[2]
    return not np.issubdtype(array.dtype, np.floating) or local_name in BUFFER_SUFFIXES


def average_buffer(value: FloatArray, update: FloatArray, total_weight: float) -> FloatArray:
    """Return x + sum_k c_k Delta_k / max(1, sum_k c_k), which keeps statistics within their range.

    For weights c_k >= 0 the result is the clients' weighted mean if the weights sum to 1 or more.
    If they sum to less, x takes the rest of the weight.
    """
    averaged: FloatArray = value + update / max(1.0, total_weight)
    return averaged


def _update_buffer(
    name: str, value: FloatArray, update: FloatArray, total_weight: float
) -> FloatArray:
    """Return a statistic after a round: ``average_buffer``, and at least 0 for a variance.

    Rounding can take a variance near 0 below it, and so can the noise of differential privacy. A
    variance that is already negative may stay negative.
    """
    averaged = average_buffer(value, update, total_weight)
    return (
        np.maximum(averaged, np.minimum(value, 0.0))
        if name.rpartition(".")[2] == VARIANCE_SUFFIX
        else averaged
    )


@dataclass(frozen=True)
class Float64View(Mapping[str, FloatArray]):
    """Arrays in float64, each converted on reading to avoid a copy as large as two models."""

    arrays: Mapping[str, NDArray[Any]]

    def __getitem__(self, name: str) -> FloatArray:
        return self.arrays[name].astype(np.float64)

    def __iter__(self) -> Iterator[str]:
        return iter(self.arrays)

    def __len__(self) -> int:
        return len(self.arrays)


def cast_like(parameters: Parameters, model: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return ``parameters`` in the dtypes of ``model``; integers and booleans are rounded.

    A number that is too large for its dtype becomes infinite.
    """
    with np.errstate(over="ignore"):
        return {
            name: (
                parameters[name]
                if np.issubdtype(array.dtype, np.inexact)
                else np.rint(parameters[name])
            ).astype(array.dtype)
            for name, array in model.items()
        }


def select_trainable(arrays: Mapping[str, ArrayT]) -> dict[str, ArrayT]:
    """Return the trained arrays of a model, which a server optimizer steps."""
    return {name: array for name, array in arrays.items() if not is_buffer(name, array)}


def select_buffers(arrays: Mapping[str, ArrayT]) -> dict[str, ArrayT]:
    """Return the buffers of a model, which the server averages."""
    return {name: array for name, array in arrays.items() if is_buffer(name, array)}


def apply_server_step(
    optimizer: ServerOptimizer[Any],
    state: Any,
    model: Mapping[str, NDArray[Any]],
    update: Mapping[str, FloatArray],
    total_weight: float,
    *,
    anchor: Mapping[str, FloatArray] | None = None,
) -> tuple[Any, dict[str, NDArray[Any]] | None]:
    """Return the optimizer's next state and the model after its step.

    The optimizer steps the trained arrays, and the buffers are averaged. If the model would not be
    finite, None is returned for it, and the caller must discard the state.

    Parameters
    ----------
    optimizer : ServerOptimizer
    state : Any
        The optimizer's state, None before the first step.
    model : mapping
        x_t.
    update : mapping
        sum_k c_k Delta_k, float64.
    total_weight : float
        sum_k c_k.
    anchor : mapping, optional
        The trained arrays from which the optimizer steps, float64; by default x_t.
    """
    trainable = select_trainable(model)
    parameters = Float64View(trainable) if anchor is None else anchor
    if state is None:
        state = optimizer.init(parameters)
    state, after = optimizer.step(state, parameters, {name: update[name] for name in trainable})
    averages = {
        name: _update_buffer(name, array.astype(np.float64), update[name], total_weight)
        for name, array in model.items()
        if name not in trainable
    }
    stepped = cast_like({**after, **averages}, model)
    finite = all(np.isfinite(array).all() for array in stepped.values())
    return state, stepped if finite else None
