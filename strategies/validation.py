"""Whether a client's update may be used at all, before any rule looks at it.

A reply that fails here is rejected with the reason in the audit trail and touches nothing.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import Message
from numpy.typing import NDArray

from strategies.codec import ClientReply, Status, count_bytes

MAX_NUM_EXAMPLES = 10**12
MAX_LOSS = 1e15
MAX_VALUE = 1e15
BYTES_PER_CLIENT = 2**16
BYTES_PER_REPLY = 2**20


def envelope_problem(reply: Message, expected_group: str, max_bytes: int) -> str | None:
    """Return why a reply cannot be one to what was asked, before its content is read.

    Checked are: that it answers the message sent for this step of this round, and that it is no
    larger than such a reply can be.
    """
    if reply.metadata.group_id != expected_group:
        return f"a reply to '{reply.metadata.group_id}', asked was '{expected_group}'"
    if reply.has_error():
        return None
    size = count_bytes(reply.content)
    return (
        f"a reply of {size} bytes, at most {max_bytes} are expected" if size > max_bytes else None
    )


def largest_reply(num_clients: int, model: Mapping[str, NDArray[Any]] | None) -> int:
    """Return how many bytes a reply for so many clients can have, with models where given.

    A float64 sum of the updates is at most four models in float16.
    """
    models = 0 if model is None else 4 * sum(array.nbytes for array in model.values())
    return BYTES_PER_REPLY + num_clients * (BYTES_PER_CLIENT + models)


def update_problem(
    reply: ClientReply, model: Mapping[str, NDArray[Any]] | None, *, needs_loss: bool = False
) -> str | None:
    """Return why a trained client's reply cannot be used, or None if it can.

    Checked are: num-examples a whole number in [1, 1e12]; loss in [0, 1e15] and accuracy
    in [0, 1] where given, and the loss given where it is needed; the arrays' names, shapes and
    dtypes equal to the model's; every value finite and in [-1e15, 1e15]. Where the client was to
    keep what it trained, ``model`` is None and there must be no arrays.
    """
    problem = _num_examples_problem(reply.metrics) or _measure_problem(reply.metrics)
    if needs_loss and "loss" not in reply.metrics:
        problem = problem or "loss is missing"
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

    num-examples must be as for an update, of the test part too where given; losses may be
    infinite or NaN, which a diverged model is, but not negative, and accuracies and metrics must
    be in [0, 1] or NaN.
    """
    if reply.status is not Status.DONE:
        return reply.reason or reply.status.name.lower()
    problem = _num_examples_problem(reply.metrics)
    if not math.isnan(reply.metrics.get("test-num-examples", math.nan)):
        problem = problem or _num_examples_problem(reply.metrics, "test-num-examples")
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


def _num_examples_problem(metrics: Mapping[str, float], key: str = "num-examples") -> str | None:
    value = metrics.get(key)
    if value is None:
        return f"{key} is missing"
    if not (1 <= value <= MAX_NUM_EXAMPLES and value == int(value)):
        return f"{key} is {value}, not a whole number in [1, {MAX_NUM_EXAMPLES:.0e}]"
    return None


def _measure_problem(metrics: Mapping[str, float]) -> str | None:
    loss = metrics.get("loss")
    if loss is not None and not 0 <= loss <= MAX_LOSS:
        return f"loss is {loss}, not in [0, {MAX_LOSS:.0e}]"
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
    return next(filter(None, map(_values_problem, arrays, arrays.values())), None)


def _values_problem(name: str, given: NDArray[Any]) -> str | None:
    if given.size == 0:
        return None
    low, high = float(given.min()), float(given.max())
    if not (math.isfinite(low) and math.isfinite(high)):
        return f"array '{name}' holds NaN or Inf"
    if max(-low, high) > MAX_VALUE:
        return f"array '{name}' holds values up to {max(-low, high):.3g}, not {MAX_VALUE:.0e}"
    return None
