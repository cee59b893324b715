"""Check whether a client's update is usable, before any rule reads it.

A reply that fails here is rejected, with the reason in the audit trail, and affects nothing else.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import Message, Metadata
from numpy.typing import NDArray

from ..rules.metrics import AVERAGE_PRECISION, METRICS
from ..sanitize import abbreviate
from ..server.exact_sum import MAX_VALUE, PartialSums, SumBins
from .codec import NORM_BIT, EvaluateResult, Status, TrainResult

NO_CLIP_INDICATOR = f"{NORM_BIT} is missing: its update may not be clipped"
MAX_NUM_EXAMPLES = 10**12
MAX_LOSS = 1e15
HOLDS_UP_TO = "holds values up to"
BYTES_PER_CLIENT = 2**16
BYTES_PER_REPLY = 2**20


@dataclass(frozen=True)
class ExpectedReply:
    """The names that the replies of one exchange must have.

    Parameters
    ----------
    group_id : str
        The group of the exchange's messages.
    sent_metadata : mapping of int to Metadata
        The metadata of the message to each node; the message has an id once it was pushed.
    allows_any_group : bool
        Whether a reply without a group passes: subclasses of a standard strategy may rebuild its
        messages without a group.
    """

    group_id: str
    sent_metadata: Mapping[int, Metadata] = field(default_factory=dict)
    allows_any_group: bool = False


def find_origin_problem(reply: Message, expected_reply: ExpectedReply) -> str | None:
    """Return why this is not a reply to the message we sent, or None if it is."""
    metadata = reply.metadata
    pushed = expected_reply.sent_metadata.get(metadata.src_node_id)
    # Where late updates count, a node may reply to the message of an earlier round.
    group = expected_reply.group_id if pushed is None else pushed.group_id
    if metadata.group_id != group and (metadata.group_id or not expected_reply.allows_any_group):
        return f"a reply to '{metadata.group_id}', asked was '{group}'"
    expected = "" if pushed is None else pushed.message_id
    if expected and metadata.reply_to_message_id and metadata.reply_to_message_id != expected:
        return "a reply to another message than the one that its node was sent"
    return None


def compute_max_reply_bytes(num_clients: int, model: Mapping[str, NDArray[Any]] | None) -> int:
    """Return the largest size in bytes of a reply for ``num_clients``, with models if given.

    A sum of updates has two parts in float64, whatever the model's dtype.
    """
    models = sum(max(4 * array.nbytes, 16 * array.size) for array in (model or {}).values())
    return BYTES_PER_REPLY + num_clients * (BYTES_PER_CLIENT + models)


@dataclass(frozen=True)
class Limits:
    """The allowed content of a train result, by the protocol and by the rules' needs.

    Parameters
    ----------
    needs_loss : bool
        Whether the rules need the loss.
    hides_numbers : bool
        Whether a client sends no loss and no accuracy, and no amount of data unless the weights
        need it, because its node masks its sum. Such numbers are not read.
    needs_examples : bool
        Whether a client sends its amount of data.
    any_loss, any_accuracy : bool
        Whether the loss and the accuracy may be any number.
    any_weight : bool
        Whether the amount of data may be any finite number >= 0, rather than a whole one >= 1.
    any_float : bool
        Whether arrays may have another floating type than the model's, to which they are converted.
    """

    needs_loss: bool = False
    hides_numbers: bool = False
    needs_examples: bool = True
    any_loss: bool = False
    any_accuracy: bool = False
    any_weight: bool = False
    any_float: bool = False


def find_update_problem(
    result: TrainResult, model: Mapping[str, NDArray[Any]] | None, limits: Limits | None = None
) -> str | None:
    """Return why a trained client's result is unusable, or None if it is usable.

    By default num-examples must be a whole number in [1, 1e12], the loss in [0, 1e15] and the
    accuracy in [0, 1], if given. The arrays must have the model's names, shapes and dtypes, and
    finite values in [-1e15, 1e15]. ``limits`` can require the loss and allow more. If ``model`` is
    None, the client kept its model and the result must have no arrays.
    """
    limits = limits or Limits()
    return find_form_problem(result, model, limits) or find_value_problem(result, limits)


def find_form_problem(
    result: TrainResult, model: Mapping[str, NDArray[Any]] | None, limits: Limits
) -> str | None:
    """Return the problem of a malformed result, which its app would repeat in every round."""
    if result.num_examples is None and limits.needs_examples:
        return "num-examples is missing"
    if limits.needs_loss and result.loss is None:
        return "loss is missing"
    if model is None:
        return None if result.arrays is None else "arrays, though none were asked for"
    return _find_array_problem(result.arrays, model, any_float=limits.any_float)


def find_value_problem(result: TrainResult, limits: Limits) -> str | None:
    """Return the unusable number of a well-formed result, or None."""
    if limits.needs_examples:
        find_problem = _find_weight_problem if limits.any_weight else _find_num_examples_problem
        problem = find_problem(result.num_examples)
        if problem is not None:
            return problem
    if limits.hides_numbers:
        return find_number_problem(result.arrays or {})
    loss, accuracy = result.loss, result.accuracy
    if loss is not None and not limits.any_loss and not 0 <= loss <= MAX_LOSS:
        return f"loss is {loss}, not in [0, {MAX_LOSS:.0e}]"
    if accuracy is not None and not limits.any_accuracy and not 0 <= accuracy <= 1:
        return f"accuracy is {accuracy}, not in [0, 1]"
    return find_number_problem(result.arrays or {})


def find_seconds_problem(seconds: float | None) -> str | None:
    """Return why a simulated response time is unusable, or None if it is usable."""
    if seconds is None:
        return "its reply says no simulated seconds"
    if not 0 <= seconds <= MAX_VALUE:
        return f"simulated seconds are {seconds}, not in [0, {MAX_VALUE:g}]"
    return None


def find_sum_problem(
    sums: PartialSums, model: Mapping[str, NDArray[Any]], sum_bins: SumBins
) -> str | None:
    """Return why a node's sums of updates are unusable, or None if they are usable.

    The sums must have the model's names and shapes, in float64, and lie in the range of their bins.
    In fixed bins every array has a sum.
    """
    unknown, missing = sums.keys() - model.keys(), model.keys() - sums.keys()
    if unknown:
        return f"sums of arrays {abbreviate(sorted(unknown))}, none of the model's"
    if sum_bins.is_fixed and missing:
        return f"no sums of the model's arrays {abbreviate(sorted(missing))}"
    for name, binned_sum in sums.items():
        bins = sum_bins.for_array(name)
        if not bins.lowest <= binned_sum.index <= bins.highest:
            limits = f"[{bins.lowest}, {bins.highest}]"
            return f"the sum of array '{name}' is in bin {binned_sum.index}, not in {limits}"
        expected = {name: np.broadcast_to(np.float64(0), model[name].shape)}
        for index, part in (
            (binned_sum.index, binned_sum.high),
            (binned_sum.index - 1, binned_sum.low),
        ):
            problem = _find_array_problem({name: part}, expected) or find_number_problem(
                {name: part}, bins.compute_max_sum(index)
            )
            if problem is not None:
                return problem
    return None


def find_evaluation_problem(
    result: EvaluateResult, *, any_weight: bool = False, metric: str = "accuracy"
) -> str | None:
    """Return why a client's evaluation is unusable, or None if it is usable.

    num-examples must be a whole number in [1, 1e12], for the test and validation splits too if
    given. Losses must be >= 0, inf or NaN, as of a diverged model, accuracies in [0, 1] or NaN, and
    the metric, R2 and average precision in their ranges or NaN. With ``any_weight`` num-examples
    may be any finite number >= 0.
    """
    if result.status is not Status.DONE:
        return result.reason or result.status.name.lower()
    find_weight_problem = _find_weight_problem if any_weight else _find_num_examples_problem
    problem = find_weight_problem(result.num_examples)
    for prefix, count in (
        ("test-", result.test_num_examples),
        ("validation-", result.validation_num_examples),
    ):
        if not math.isnan(count):
            problem = problem or _find_num_examples_problem(count, prefix)
    for prefix, loss, accuracy in (
        ("", result.loss, result.accuracy),
        ("test-", result.test_loss, result.test_accuracy),
        ("validation-", result.validation_loss, result.validation_accuracy),
    ):
        if loss < 0:
            problem = problem or f"{prefix}loss is {loss}, not >= 0"
        if accuracy < 0 or accuracy > 1:
            problem = problem or f"{prefix}accuracy is {accuracy}, not in [0, 1]"
    for prefix, value, r2, precision in (
        ("test-", result.test_metric, result.test_r2, result.test_average_precision),
        (
            "validation-",
            result.validation_metric,
            result.validation_r2,
            result.validation_average_precision,
        ),
    ):
        for name, number, allowed in (
            ("metric", value, METRICS[metric]),
            ("r2", r2, METRICS["r2"]),
            ("average-precision", precision, METRICS[AVERAGE_PRECISION]),
        ):
            if number < allowed.low or number > allowed.high:
                limits = f"[{allowed.low:g}, {allowed.high:g}]"
                problem = problem or f"{prefix}{name} is {number}, not in {limits}"
    return problem


def _find_num_examples_problem(value: float | None, prefix: str = "") -> str | None:
    if value is None:
        return "num-examples is missing"
    if not (1 <= value <= MAX_NUM_EXAMPLES and value == int(value)):
        return f"{prefix}num-examples is {value}, not a whole number in [1, {MAX_NUM_EXAMPLES:.0e}]"
    return None


def _find_weight_problem(value: float | None) -> str | None:
    if value is None:
        return "num-examples is missing"
    if not (math.isfinite(value) and value >= 0):
        return f"the amount of data is {value}, not a finite number >= 0"
    return None


def _find_array_problem(
    arrays: Mapping[str, NDArray[Any]] | None,
    model: Mapping[str, NDArray[Any]],
    *,
    any_float: bool = False,
) -> str | None:
    if arrays is None:
        return "no arrays in the reply"
    if arrays.keys() != model.keys():
        return _describe_name_problem(arrays, model)
    for name, expected in model.items():
        given = arrays[name]
        if given.shape != expected.shape:
            return f"array '{name}' has shape {given.shape}, the model's {expected.shape}"
        both_float = given.dtype.kind == expected.dtype.kind == "f"
        if given.dtype != expected.dtype and not (any_float and both_float):
            return f"array '{name}' has dtype {given.dtype}, the model's {expected.dtype}"
    return None


def _describe_name_problem(arrays: Mapping[str, Any], model: Mapping[str, Any]) -> str:
    unknown, missing = arrays.keys() - model.keys(), model.keys() - arrays.keys()
    problems = [
        f"arrays {abbreviate(sorted(unknown))} are none of the model's" if unknown else "",
        f"the model's arrays {abbreviate(sorted(missing))} are missing" if missing else "",
    ]
    return ", ".join(filter(None, problems))


def find_number_problem(
    arrays: Mapping[str, NDArray[Any]], max_value: float = MAX_VALUE
) -> str | None:
    """Return the problem of the first array with an unusable number, or None."""
    for name, array in arrays.items():
        if array.size == 0:
            continue
        low, high = float(array.min()), float(array.max())
        if not (math.isfinite(low) and math.isfinite(high)):
            return f"array '{name}' holds NaN or Inf"
        if max(-low, high) > max_value:
            return f"array '{name}' {HOLDS_UP_TO} {max(-low, high):.3g}, not {max_value:.0e}"
    return None
