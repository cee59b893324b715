"""Whether a client's update may be used at all, before any rule looks at it.

A reply that fails here is rejected with the reason in the audit trail and touches nothing.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strategies.codec import ClientReply

MAX_NUM_EXAMPLES = 10**12


def update_problem(reply: ClientReply, model: Mapping[str, NDArray[Any]]) -> str | None:
    """Return why a trained client's reply cannot be used, or None if it can.

    Checked are: num-examples a finite number in [1, 1e12]; loss finite and >= 0 and accuracy
    in [0, 1] where given; the arrays' names, shapes and dtypes equal to the model's; every
    value finite.
    """
    return (
        _num_examples_problem(reply.metrics)
        or _measure_problem(reply.metrics)
        or _arrays_problem(reply.arrays, model)
    )


def _num_examples_problem(metrics: Mapping[str, float]) -> str | None:
    value = metrics.get("num-examples")
    if value is None:
        return "num-examples is missing"
    if not (math.isfinite(value) and 1 <= value <= MAX_NUM_EXAMPLES):
        return f"num-examples is {value}, not in [1, {MAX_NUM_EXAMPLES:.0e}]"
    return None


def _measure_problem(metrics: Mapping[str, float]) -> str | None:
    loss = metrics.get("loss")
    if loss is not None and not (math.isfinite(loss) and loss >= 0):
        return f"loss is {loss}, not a finite number >= 0"
    accuracy = metrics.get("accuracy")
    if accuracy is not None and not 0 <= accuracy <= 1:
        return f"accuracy is {accuracy}, not in [0, 1]"
    return None


def _arrays_problem(
    arrays: Mapping[str, NDArray[Any]] | None, model: Mapping[str, NDArray[Any]]
) -> str | None:
    if arrays is None:
        return "no arrays in the reply"
    if set(arrays) != set(model):
        return f"arrays are named {sorted(arrays)}, the model's {sorted(model)}"
    for name, expected in model.items():
        given = arrays[name]
        if given.shape != expected.shape:
            return f"array '{name}' has shape {given.shape}, the model's {expected.shape}"
        if given.dtype != expected.dtype:
            return f"array '{name}' has dtype {given.dtype}, the model's {expected.dtype}"
        if not np.isfinite(given).all():
            return f"array '{name}' holds NaN or Inf"
    return None
