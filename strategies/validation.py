"""Whether a client's update may be used at all, before any rule looks at it.

A reply that fails here is rejected with the reason in the audit trail and touches nothing.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strategies.codec import ClientReply, Status

MAX_NUM_EXAMPLES = 10**12


def update_problem(reply: ClientReply, model: Mapping[str, NDArray[Any]] | None) -> str | None:
    """Return why a trained client's reply cannot be used, or None if it can.

    Checked are: num-examples a finite number in [1, 1e12]; loss finite and >= 0 and accuracy
    in [0, 1] where given; the arrays' names, shapes and dtypes equal to the model's; every
    value finite. Where the client was to keep what it trained, ``model`` is None and there must
    be no arrays.
    """
    problem = _num_examples_problem(reply.metrics) or _measure_problem(reply.metrics)
    if model is None:
        return problem or (None if reply.arrays is None else "arrays, though none were asked for")
    return problem or _arrays_problem(reply.arrays, model)


def sum_problem(
    weighted_sum: Mapping[str, NDArray[Any]], model: Mapping[str, NDArray[Any]]
) -> str | None:
    """Return why a node's sum of updates cannot be used, or None if it can.

    It must be like the model, in float64, and finite.
    """
    return _arrays_problem(weighted_sum, {k: a.astype(np.float64) for k, a in model.items()})


def evaluation_problem(reply: ClientReply) -> str | None:
    """Return why a client's evaluation cannot be used, or None if it can.

    num-examples must be as for an update; losses may be infinite or NaN, which a diverged model
    is, but not negative, and accuracies and metrics must be in [0, 1] or NaN.
    """
    if reply.status is not Status.DONE:
        return reply.reason or reply.status.name.lower()
    problem = _num_examples_problem(reply.metrics)
    for prefix in ("", "test-"):
        loss = reply.metrics.get(f"{prefix}loss", math.nan)
        accuracy = reply.metrics.get(f"{prefix}accuracy", math.nan)
        if loss < 0:
            problem = problem or f"{prefix}loss is {loss}, not >= 0"
        if accuracy < 0 or accuracy > 1:
            problem = problem or f"{prefix}accuracy is {accuracy}, not in [0, 1]"
    metric = reply.metrics.get("test-metric", math.nan)
    if metric < 0 or metric > 1:
        problem = problem or f"test-metric is {metric}, not in [0, 1]"
    return problem


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
