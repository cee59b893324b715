"""Whether a client's update may be used at all, before any rule looks at it.

A reply that fails here is rejected with the reason in the audit trail and touches nothing.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import Message, Metadata
from numpy.typing import NDArray

from ..intake import abbreviated
from ..metrics import METRICS
from ..summation import MAX_VALUE, Bins, UpdateSums
from .codec import EvaluateAnswer, Status, TrainAnswer, count_bytes

MAX_NUM_EXAMPLES = 10**12
MAX_LOSS = 1e15
BYTES_PER_CLIENT = 2**16
BYTES_PER_REPLY = 2**20


@dataclass(frozen=True)
class Sent:
    """The names that the replies of one exchange must have.

    Parameters
    ----------
    group : str
        The group of the exchange's messages.
    messages : mapping of int to Metadata
        The metadata of the message pushed to each node, which has its id once it was pushed.
    any_group : bool
        Whether a reply without a group passes: a subclass that rebuilds the messages of a
        standard strategy makes them without.
    """

    group: str
    messages: Mapping[int, Metadata] = field(default_factory=dict)
    any_group: bool = False


def origin_problem(reply: Message, sent: Sent) -> str | None:
    """Return why a reply is none to the message that its node was sent, None if it may be."""
    told = reply.metadata
    if told.group_id != sent.group and (told.group_id or not sent.any_group):
        return f"a reply to '{told.group_id}', asked was '{sent.group}'"
    pushed = sent.messages.get(told.src_node_id)
    expected = "" if pushed is None else pushed.message_id
    if expected and told.reply_to_message_id and told.reply_to_message_id != expected:
        return "a reply to another message than the one that its node was sent"
    return None


def size_problem(reply: Message, max_bytes: int) -> str | None:
    """Return why a reply is too large to be read, None if it is not."""
    if reply.has_error():
        return None
    size = count_bytes(reply.content)
    return (
        f"a reply of {size} bytes, at most {max_bytes} are expected" if size > max_bytes else None
    )


def largest_reply(num_clients: int, model: Mapping[str, NDArray[Any]] | None) -> int:
    """Return how many bytes a reply for so many clients can have, with models where given.

    A sum of the updates has two parts in float64, whatever the model's numbers are.
    """
    models = sum(max(4 * array.nbytes, 16 * array.size) for array in (model or {}).values())
    return BYTES_PER_REPLY + num_clients * (BYTES_PER_CLIENT + models)


@dataclass(frozen=True)
class Limits:
    """The allowed content of an answer, by the protocol and by the rules' needs.

    Parameters
    ----------
    needs_loss : bool
        Whether the rules need the loss.
    any_loss : bool
        Whether the loss may be any number.
    any_accuracy : bool
        Whether the accuracy may be any number.
    any_weight : bool
        Whether the amount of data may be any finite number >= 0, rather than a whole one >= 1.
    any_float : bool
        Whether arrays may have another floating type than the model's, to which they are converted.
    """

    needs_loss: bool = False
    any_loss: bool = False
    any_accuracy: bool = False
    any_weight: bool = False
    any_float: bool = False


def update_problem(
    answer: TrainAnswer, model: Mapping[str, NDArray[Any]] | None, limits: Limits | None = None
) -> str | None:
    """Return why a trained client's answer cannot be used, or None if it can.

    Checked are: num-examples a whole number in [1, 1e12]; loss in [0, 1e15] and accuracy
    in [0, 1] where given, and the loss given where it is needed; the arrays' names, shapes and
    dtypes equal to the model's; every value finite and in [-1e15, 1e15]. ``limits`` says what
    else may pass. Where the client was to keep what it trained, ``model`` is None and there must
    be no arrays.
    """
    limits = limits or Limits()
    return form_problem(answer, model, limits) or value_problem(answer, limits)


def form_problem(
    answer: TrainAnswer, model: Mapping[str, NDArray[Any]] | None, limits: Limits
) -> str | None:
    """Return a missing or excess part of an answer, which its app would repeat in every round."""
    if answer.num_examples is None:
        return "num-examples is missing"
    if limits.needs_loss and answer.loss is None:
        return "loss is missing"
    if model is None:
        return None if answer.arrays is None else "arrays, though none were asked for"
    return _arrays_problem(answer.arrays, model, any_float=limits.any_float)


def value_problem(answer: TrainAnswer, limits: Limits) -> str | None:
    """Return which number of an answer of the right form is none that can be used."""
    weight = _weight_problem if limits.any_weight else _num_examples_problem
    return (
        weight(answer.num_examples)
        or _measured_problem(answer, limits)
        or numbers_problem(answer.arrays or {})
    )


def seconds_problem(seconds: float | None) -> str | None:
    """Return why a simulated response time cannot be used, or None if it can."""
    if seconds is None:
        return "its reply says no simulated seconds"
    if not 0 <= seconds <= MAX_VALUE:
        return f"simulated seconds are {seconds}, not in [0, {MAX_VALUE:g}]"
    return None


def sum_problem(sums: UpdateSums, model: Mapping[str, NDArray[Any]], bins: Bins) -> str | None:
    """Return why a node's sums of updates cannot be used, or None if they can.

    They must be of the model's arrays, in float64, and of a size that sums in their bins can have.
    """
    unknown = sums.keys() - model.keys()
    if unknown:
        return f"sums of arrays {abbreviated(sorted(unknown))}, none of the model's"
    for name, one in sums.items():
        if not bins.lowest <= one.index <= bins.highest:
            limits = f"[{bins.lowest}, {bins.highest}]"
            return f"the sum of array '{name}' is in bin {one.index}, not in {limits}"
        expected = {name: np.broadcast_to(np.float64(0), model[name].shape)}
        for index, part in ((one.index, one.high), (one.index - 1, one.low)):
            problem = _arrays_problem({name: part}, expected) or _values_problem(
                name, part, bins.largest_sum(index)
            )
            if problem is not None:
                return problem
    return None


def evaluation_problem(
    answer: EvaluateAnswer, *, any_weight: bool = False, metric: str = "accuracy"
) -> str | None:
    """Return why a client's evaluation cannot be used, or None if it can.

    num-examples must be as for an update, of the test part too where given; losses may be
    infinite or NaN, which a diverged model is, but not negative, accuracies must be in [0, 1] or
    NaN, and the metric in its range or NaN. With ``any_weight`` num-examples may be any finite
    number >= 0.
    """
    if answer.status is not Status.DONE:
        return answer.reason or answer.status.name.lower()
    weight = _weight_problem if any_weight else _num_examples_problem
    problem = weight(answer.num_examples)
    for prefix, count in (
        ("test-", answer.test_num_examples),
        ("validation-", answer.validation_num_examples),
    ):
        if not math.isnan(count):
            problem = problem or _num_examples_problem(count, prefix)
    for prefix, loss, accuracy in (
        ("", answer.loss, answer.accuracy),
        ("test-", answer.test_loss, answer.test_accuracy),
        ("validation-", answer.validation_loss, answer.validation_accuracy),
    ):
        if loss < 0:
            problem = problem or f"{prefix}loss is {loss}, not >= 0"
        if accuracy < 0 or accuracy > 1:
            problem = problem or f"{prefix}accuracy is {accuracy}, not in [0, 1]"
    measured = METRICS[metric]
    for prefix, value in (
        ("test-", answer.test_metric),
        ("validation-", answer.validation_metric),
    ):
        if not measured.contains(value):
            limits = f"[{measured.low:g}, {measured.high:g}]"
            problem = problem or f"{prefix}metric is {value}, not in {limits}"
    return problem


def _num_examples_problem(value: float | None, prefix: str = "") -> str | None:
    if value is None:
        return "num-examples is missing"
    if not (1 <= value <= MAX_NUM_EXAMPLES and value == int(value)):
        return f"{prefix}num-examples is {value}, not a whole number in [1, {MAX_NUM_EXAMPLES:.0e}]"
    return None


def _weight_problem(value: float | None) -> str | None:
    if value is None:
        return "num-examples is missing"
    if not (math.isfinite(value) and value >= 0):
        return f"the amount of data is {value}, not a finite number >= 0"
    return None


def _measured_problem(answer: TrainAnswer, limits: Limits) -> str | None:
    loss, accuracy = answer.loss, answer.accuracy
    if loss is not None and not limits.any_loss and not 0 <= loss <= MAX_LOSS:
        return f"loss is {loss}, not in [0, {MAX_LOSS:.0e}]"
    if accuracy is not None and not limits.any_accuracy and not 0 <= accuracy <= 1:
        return f"accuracy is {accuracy}, not in [0, 1]"
    return None


def _arrays_problem(
    arrays: Mapping[str, NDArray[Any]] | None,
    model: Mapping[str, NDArray[Any]],
    *,
    any_float: bool = False,
) -> str | None:
    if arrays is None:
        return "no arrays in the reply"
    if arrays.keys() != model.keys():
        return _names_problem(arrays, model)
    for name, expected in model.items():
        given = arrays[name]
        if given.shape != expected.shape:
            return f"array '{name}' has shape {given.shape}, the model's {expected.shape}"
        both_float = given.dtype.kind == expected.dtype.kind == "f"
        if given.dtype != expected.dtype and not (any_float and both_float):
            return f"array '{name}' has dtype {given.dtype}, the model's {expected.dtype}"
    return None


def _names_problem(arrays: Mapping[str, Any], model: Mapping[str, Any]) -> str:
    unknown, missing = arrays.keys() - model.keys(), model.keys() - arrays.keys()
    told = [
        f"arrays {abbreviated(sorted(unknown))} are none of the model's" if unknown else "",
        f"the model's arrays {abbreviated(sorted(missing))} are missing" if missing else "",
    ]
    return ", ".join(filter(None, told))


def numbers_problem(arrays: Mapping[str, NDArray[Any]]) -> str | None:
    """Return which array of a model has a number that cannot be used, None if none has."""
    return next(filter(None, map(_values_problem, arrays, arrays.values())), None)


def _values_problem(name: str, given: NDArray[Any], largest: float = MAX_VALUE) -> str | None:
    if given.size == 0:
        return None
    low, high = float(given.min()), float(given.max())
    if not (math.isfinite(low) and math.isfinite(high)):
        return f"array '{name}' holds NaN or Inf"
    if max(-low, high) > largest:
        return f"array '{name}' holds values up to {max(-low, high):.3g}, not {largest:.0e}"
    return None
