"""Reasons in the audit trail for altered or rejected updates, and for unusable evaluations."""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fedquorum import ComposedStrategy, NativeProtocol, Population, Robustness
from fedquorum.flower.codec import (
    EvaluateResult,
    NamedArrays,
    Status,
    TrainResult,
    TrainTask,
    encode_arrays,
    encode_train_reply,
)
from fedquorum.flower.validation import find_evaluation_problem, find_sum_problem
from fedquorum.rules.decisions import RoundReport
from fedquorum.server.exact_sum import BinnedSum, ExponentBins, PartialSums
from flwr.app import Array, Message

from tests.builders_flower import (
    MODEL,
    build_named_strategy,
    make_grid,
    make_scripted_app,
    make_train_result,
    run_first_round,
)

Change = Callable[[list[Message]], list[Message]]


def build_gate_strategy() -> ComposedStrategy:
    return build_named_strategy("fedalign", Population.from_size(4, [0, 1]), warmup_rounds=0)


def build_fedau(communication: NativeProtocol | None = None) -> ComposedStrategy:
    return build_named_strategy("fedau", Population.from_size(4), communication=communication)


def run_tampered_round(
    strategy: ComposedStrategy, replies_of: Mapping[int, TrainResult], change: Change
) -> RoundReport:
    """Return round 1 of two nodes with two clients each; ``change`` tampers with the replies."""

    def fit(client: int, task: TrainTask, arrays: NamedArrays) -> TrainResult:
        return replies_of.get(client) or make_train_result(client, 1.0)

    return run_first_round(strategy, make_grid(make_scripted_app(4, fit), 2), change=change)[1]


def return_replies(replies: list[Message]) -> list[Message]:
    return replies


def replace_content(
    reply: Message, *parts: TrainResult, total: PartialSums | None = None
) -> Message:
    """Return a reply with other content, to the same message."""
    reply.content = encode_train_reply(parts, weighted_sum=total)
    return reply


def make_binned_sum(value: float, size: int = 3) -> PartialSums:
    """Return the sum of a model of ``size`` whole numbers."""
    return {"w": BinnedSum(0, np.full(size, value), np.zeros(size))}


SUM = make_binned_sum(1.0)
DONE = {k: TrainResult(k, Status.DONE, num_examples=10.0) for k in range(4)}


def reply_twice(replies: list[Message]) -> list[Message]:
    """Let node 1, with clients 0 and 2, reply for client 2 twice."""
    return [
        replace_content(
            replies[0],
            make_train_result(0, 1.0),
            make_train_result(2, 1.0),
            make_train_result(2, 9.0),
        ),
        replies[1],
    ]


def with_sum(replies: list[Message]) -> list[Message]:
    return [replace_content(replies[0], DONE[0], DONE[2], total=SUM), replies[1]]


def with_spoiled_sum(replies: list[Message]) -> list[Message]:
    bad = TrainResult(2, Status.DONE, num_examples=0.0)
    return [replace_content(replies[0], DONE[0], bad, total=SUM), replies[1]]


def with_sum_of_another_model(replies: list[Message]) -> list[Message]:
    return [
        replace_content(replies[0], DONE[0], DONE[2], total=make_binned_sum(1.0, 2)),
        replies[1],
    ]


def reply_to_another_round(replies: list[Message]) -> list[Message]:
    replies[0].metadata.__dict__["_group_id"] = "train 7"
    return replies


def reply_too_large(replies: list[Message]) -> list[Message]:
    replies[0].content["more"] = encode_arrays({"a": np.zeros(2**18)})
    return replies


def reply_not_numpy(replies: list[Message]) -> list[Message]:
    replies[0].content.array_records["arrays"]["w"] = Array("float32", (3,), "pickle", b"no")
    return replies


HUGE = replace(make_train_result(0, 1.0), arrays={"w": np.full(3, 1e16, dtype=np.float32)})
CAPPED = NativeProtocol(robustness=Robustness(max_weight=0.125))
CASES: dict[
    str, tuple[Callable[[], ComposedStrategy], dict[int, TrainResult], Change, str, str]
] = {
    "failed": (
        build_gate_strategy,
        {0: TrainResult(0, Status.FAILED)},
        return_replies,
        "failed",
        "it failed and gave",
    ),
    "huge": (
        build_gate_strategy,
        {0: HUGE},
        return_replies,
        "rejected",
        r"'w' holds values up to 1e\+16, not 1e\+15",
    ),
    "capped": (
        lambda: build_fedau(CAPPED),
        {},
        return_replies,
        "trained",
        r"^weight 0\.25 capped at 0\.125$",
    ),
    "sum": (
        build_gate_strategy,
        {},
        with_sum,
        "rejected",
        "^a sum of updates, though none was asked for$",
    ),
    "spoiled sum": (
        build_fedau,
        {},
        with_spoiled_sum,
        "rejected",
        r"^in one sum with client 2, whose num-examples is 0\.0, not a whole number",
    ),
    "other sum": (
        build_fedau,
        {},
        with_sum_of_another_model,
        "rejected",
        r"^array 'w' has shape \(2,\), the model's \(3,\)$",
    ),
    "other round": (
        build_gate_strategy,
        {},
        reply_to_another_round,
        "rejected",
        "^a reply to 'train 7', asked was 't",
    ),
    "too large": (
        build_gate_strategy,
        {},
        reply_too_large,
        "rejected",
        r"^a reply of \d+ bytes, at most \d+ are exp",
    ),
    "not numpy": (
        build_gate_strategy,
        {},
        reply_not_numpy,
        "rejected",
        "^array 'w' is serialized as 'pickle', not nu",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_each_defect_has_its_reason(name: str) -> None:
    """Every altered or rejected update has a specific reason."""
    make, replies_of, change, status, reason = CASES[name]
    decision = run_tampered_round(make(), replies_of, change).decisions[0]
    assert decision.status == status
    assert re.search(reason, str(decision.reason))


def test_a_node_that_reports_a_client_twice() -> None:
    """Neither result counts; the node's other client does."""
    decisions = run_tampered_round(build_gate_strategy(), {}, reply_twice).decisions
    assert [d.status for d in decisions] == ["trained", "trained", "rejected", "trained"]
    assert decisions[2].reason == "its node replied for it twice"


def test_a_sum_counts_as_the_updates_in_it() -> None:
    """sum_k c_k Delta_k is the same, whether a node sends the sum or each model."""

    def sum_replies(replies: list[Message]) -> list[Message]:
        # the updates of node 1's clients 0 and 2 are 1 and 3: their sum with omega = 1 is 4
        total = make_binned_sum(4.0)
        return [replace_content(replies[0], DONE[0], DONE[2], total=total), replies[1]]

    grid = make_grid(make_scripted_app(4, lambda k, task, arrays: make_train_result(k, k + 1.0)), 2)
    weights, _ = run_first_round(build_fedau(), grid, change=sum_replies)
    assert weights is not None
    np.testing.assert_allclose(weights, MODEL["w"] + (1 + 2 + 3 + 4) / 4, rtol=1e-6)


def test_a_sum_of_clients_without_weight_changes_nothing() -> None:
    """If none of a node's clients has a weight, its sum has no effect."""

    def without_weight(replies: list[Message]) -> list[Message]:
        away = [TrainResult(k, Status.UNAVAILABLE) for k in (0, 2)]
        return [replace_content(replies[0], *away, total=make_binned_sum(100.0)), replies[1]]

    grid = make_grid(make_scripted_app(4, lambda k, task, arrays: make_train_result(k, 1.0)), 2)
    weights, _ = run_first_round(build_fedau(), grid, change=without_weight)
    assert weights is not None
    np.testing.assert_allclose(weights, MODEL["w"] + 2 / 4, rtol=1e-6)


# --- evaluations -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "metrics", "problem"),
    [
        (Status.DONE, {}, None),
        (Status.DONE, {"loss": math.inf, "accuracy": math.nan, "test_metric": 1.0}, None),
        (Status.FAILED, {}, "failed"),
        (
            Status.DONE,
            {"num_examples": 1.5},
            "num-examples is 1.5, not a whole number in [1",
        ),
        (
            Status.DONE,
            {"test_num_examples": 0.0},
            "test-num-examples is 0.0, not a whole",
        ),
        (Status.DONE, {"test_loss": -1.0}, "test-loss is -1.0, not >= 0"),
        (Status.DONE, {"accuracy": 1.5}, "accuracy is 1.5, not in [0, 1]"),
        (Status.DONE, {"test_accuracy": -0.5}, "test-accuracy is -0.5, not in [0, 1]"),
        (Status.DONE, {"test_metric": 1.5}, "test-metric is 1.5, not in [0, 1]"),
        (Status.DONE, {"test_metric": -0.5}, "test-metric is -0.5, not in [0, 1]"),
        (Status.DONE, {"validation_loss": -1.0}, "validation-loss is -1.0, not >= 0"),
        (Status.DONE, {"validation_accuracy": 2.0}, "validation-accuracy is 2.0, not in [0, 1]"),
        (Status.DONE, {"validation_metric": 1.5}, "validation-metric is 1.5, not in [0, 1]"),
        (Status.DONE, {"validation_num_examples": 0.5}, "validation-num-examples is 0.5, not a"),
    ],
)
def test_unusable_evaluations_have_a_reason(
    status: Status, metrics: dict[str, Any], problem: str | None
) -> None:
    """Diverged losses may be infinite or NaN; impossible numbers are named."""
    found = find_evaluation_problem(EvaluateResult(0, status, **{"num_examples": 10.0, **metrics}))
    assert found == problem if problem is None else str(found).startswith(problem)


@pytest.mark.parametrize(
    ("metric", "value", "limits"),
    [("rmse", -0.5, "[0, inf]"), ("r2", 1.5, "[-inf, 1]"), ("mae", -1e-9, "[0, inf]")],
)
def test_a_metric_has_its_range(metric: str, value: float, limits: str) -> None:
    """Errors of a regression have no upper bound, R2 has no lower one."""
    for allowed in (1.0, math.nan, -3.0 if metric == "r2" else 300.0):
        answer = EvaluateResult(0, Status.DONE, num_examples=10.0, test_metric=allowed)
        assert find_evaluation_problem(answer, metric=metric) is None
    answer = EvaluateResult(0, Status.DONE, num_examples=10.0, test_metric=value)
    expected = f"test-metric is {value}, not in {limits}"
    assert find_evaluation_problem(answer, metric=metric) == expected


def test_a_failed_evaluation_has_its_own_reason() -> None:
    """It is the reason that the client gave."""
    assert find_evaluation_problem(EvaluateResult(0, Status.FAILED, reason="no data")) == "no data"


def test_empty_arrays_are_usable() -> None:
    """They have no number that could be wrong."""
    model: NamedArrays = {"w": np.zeros((0, 3), np.float32)}
    nothing = np.zeros((0, 3))
    assert (
        find_sum_problem(
            {"w": BinnedSum(0, nothing, nothing)}, model, ExponentBins.for_num_terms(2)
        )
        is None
    )
