"""What the audit trail says of an update that does not count, or not in full."""

import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ConfigRecord, Message

from strategies import Communication, ComposedStrategy, FedALIGN, FedAU, Population, Robustness
from strategies.codec import ClientReply, NamedArrays, Status, encode_arrays, encode_replies
from strategies.decision import admit
from strategies.report import TrainReport
from strategies.selection import EpsilonGate, PriorityOnly
from strategies.types import Call, GlobalMeasure, Responses
from strategies.validation import evaluation_problem, sum_problem
from strategies.weighting import DataFraction
from strategies.weighting import FedAU as FedAUWeighting
from tests.strategies.test_adapter import MODEL, grid_of, moved, scripted_app


def responses(
    loss: float, accuracy: float = 0.5, priority_weights: tuple[float, float] = (1.0, 0.0)
) -> Responses:
    """Return what two clients answered, the first in the middle of the gate."""
    return Responses(
        client=np.arange(2),
        priority_weight=np.array(priority_weights),
        num_examples=np.full(2, 10.0),
        loss=np.array([1.0, loss]),
        accuracy=np.array([0.5, accuracy]),
        known=np.arange(2),
    )


@pytest.mark.parametrize(
    ("criterion", "epsilon", "loss", "accuracy", "reason"),
    [
        ("loss", 0.2, 0.5, 0.5, "loss 0.5 < global 1 - epsilon 0.2"),
        ("loss", 0.2, 1.5, 0.5, "loss 1.5 > global 1 + epsilon 0.2"),
        ("loss", 0.2, math.nan, 0.5, "it reported no loss"),
        ("loss", 0.0, 1.0, 0.5, "epsilon is 0: the gate is closed"),
        ("accuracy", 0.2, 1.0, 0.75, "accuracy 0.75 > global 0.5 + epsilon 0.2"),
        ("accuracy", 0.2, 1.0, 0.25, "accuracy 0.25 < global 0.5 - epsilon 0.2"),
        ("accuracy", 0.2, 1.0, math.nan, "it reported no accuracy"),
        ("accuracy", 0.0, 1.0, 0.5, "epsilon is 0: the gate is closed"),
        ("accuracy", 0.2, math.nan, 0.5, None),
        ("loss", 0.2, 1.0, math.nan, None),
    ],
)
def test_why_the_gate_refuses(
    criterion: str, epsilon: float, loss: float, accuracy: float, reason: str | None
) -> None:
    """The number, the side of the gate that it is on, and the threshold; of the criterion only."""
    call = Call((0, 1), epsilon=epsilon, criterion=criterion, clients_decide=False)
    gate = EpsilonGate(num_rounds=1)
    got = gate.admit(call, GlobalMeasure(1.0, 0.5), responses(loss, accuracy))
    assert got.reason == (None, reason)
    assert got.share.tolist() == [1.0, float(reason is None)]


@pytest.mark.parametrize("criterion", ["loss", "accuracy"])
def test_where_nobody_measured_the_model(criterion: str) -> None:
    """The gate is closed to whoever has no priority, and it is said that F is not known."""
    call = Call((0, 1), epsilon=0.2, criterion=criterion)
    got = EpsilonGate(num_rounds=1).admit(call, GlobalMeasure(math.nan, math.nan), responses(1.0))
    assert got.reason == (None, f"the priority clients' {criterion} is unknown: the gate is closed")


def test_a_call_without_a_gate_is_a_closed_one_to_the_gate() -> None:
    """A gate that is asked about a call that has no threshold admits priority clients only."""
    got = EpsilonGate(num_rounds=1).admit(Call((0, 1)), GlobalMeasure(1.0, 0.5), responses(1.0))
    assert got.reason == (None, "epsilon is 0: the gate is closed")


def test_a_share_by_priority_weight() -> None:
    """Outside of a gate the share of a priority client is lambda_k, and is said."""
    got = PriorityOnly().admit(
        Call((0, 1)), GlobalMeasure(1.0, 0.5), responses(1.0, priority_weights=(1.0, 0.25))
    )
    assert got.reason == (None, "priority weight 0.25")
    assert got.share.tolist() == [1.0, 0.25]


def test_no_priority_update() -> None:
    """p_k is undefined, so nothing counts, and that is the reason of each; not with fixed p_k."""
    call, measure = Call((0, 1), epsilon=5.0), GlobalMeasure(1.0, 0.5)
    others = responses(1.0, priority_weights=(0.0, 0.0))
    gate = EpsilonGate(num_rounds=1)
    got = admit(gate, DataFraction(), call, measure, others)
    assert got.reason == ("no priority client's update arrived, so p_k is undefined",) * 2
    assert got.share.tolist() == [0.0, 0.0]
    fixed = admit(gate, FedAUWeighting(base=DataFraction()), call, measure, others)
    assert fixed.reason == (None, None)
    one = admit(gate, DataFraction(), call, measure, responses(1.0))
    assert one.reason == (None, None)


# --- what the adapter says ---------------------------------------------------------------------

Change = Callable[[list[Message]], list[Message]]


def play(
    strategy: ComposedStrategy[Any], replies_of: dict[int, ClientReply], change: Change
) -> TrainReport:
    """Play round 1 of two nodes with two clients each; ``change`` tampers with the replies."""

    def fit(client: int, config: dict[str, Any], arrays: NamedArrays) -> ClientReply:
        return replies_of.get(client) or moved(client, 1.0)

    grid = grid_of(scripted_app(4, fit), 2)
    messages = strategy.configure_train(1, encode_arrays(MODEL), ConfigRecord(), grid)
    strategy.aggregate_train(1, change(list(grid.send_and_receive(messages))))
    return strategy.train_report


def gate() -> FedALIGN:
    return FedALIGN(Population.of(4, [0, 1]), num_rounds=9, warmup_rounds=0)


def unchanged(replies: list[Message]) -> list[Message]:
    return replies


def answered(reply: Message, *parts: ClientReply, total: NamedArrays | None = None) -> Message:
    """Return a reply with other content, to the same message."""
    reply.content = encode_replies(parts, weighted_sum=total)
    return reply


SUM: NamedArrays = {"w": np.ones(3)}
DONE = {k: ClientReply(k, Status.DONE, {"num-examples": 10.0}) for k in range(4)}


def twice(replies: list[Message]) -> list[Message]:
    """Node 1 hosts the clients 0 and 2, and tells of client 2 twice."""
    return [answered(replies[0], moved(0, 1.0), moved(2, 1.0), moved(2, 9.0)), replies[1]]


def with_sum(replies: list[Message]) -> list[Message]:
    return [answered(replies[0], DONE[0], DONE[2], total=SUM), replies[1]]


def with_spoiled_sum(replies: list[Message]) -> list[Message]:
    bad = ClientReply(2, Status.DONE, {"num-examples": 0.0})
    return [answered(replies[0], DONE[0], bad, total=SUM), replies[1]]


def with_sum_of_another_model(replies: list[Message]) -> list[Message]:
    return [answered(replies[0], DONE[0], DONE[2], total={"w": np.ones(2)}), replies[1]]


def of_another_round(replies: list[Message]) -> list[Message]:
    replies[0].metadata.__dict__["_group_id"] = "train 7"
    return replies


def too_large(replies: list[Message]) -> list[Message]:
    replies[0].content["more"] = encode_arrays({"a": np.zeros(2**18)})
    return replies


def not_numpy(replies: list[Message]) -> list[Message]:
    replies[0].content.array_records["arrays"]["w"] = Array("float32", (3,), "pickle", b"no")
    return replies


HUGE = replace(moved(0, 1.0), arrays={"w": np.full(3, 1e16, dtype=np.float32)})
EVERYONE = Population.of(4)
CAPPED = Communication(robustness=Robustness(max_weight=0.125))
CASES: dict[
    str, tuple[Callable[[], ComposedStrategy[Any]], dict[int, ClientReply], Change, str, str]
] = {
    "failed": (gate, {0: ClientReply(0, Status.FAILED)}, unchanged, "failed", "it failed and gave"),
    "huge": (
        gate,
        {0: HUGE},
        unchanged,
        "rejected",
        r"'w' holds values up to 1e\+16, not 1e\+15",
    ),
    "capped": (
        lambda: FedAU(EVERYONE, communication=CAPPED),
        {},
        unchanged,
        "trained",
        r"^weight 0\.25 capped at 0\.125$",
    ),
    "sum": (gate, {}, with_sum, "rejected", "^a sum of updates, though none was asked for$"),
    "spoiled sum": (
        lambda: FedAU(EVERYONE),
        {},
        with_spoiled_sum,
        "rejected",
        r"^in one sum with client 2, whose num-examples is 0\.0, not a whole number",
    ),
    "other sum": (
        lambda: FedAU(EVERYONE),
        {},
        with_sum_of_another_model,
        "rejected",
        r"^array 'w' has shape \(2,\), the model's \(3,\)$",
    ),
    "other round": (gate, {}, of_another_round, "rejected", "^a reply to 'train 7', asked was 't"),
    "too large": (gate, {}, too_large, "rejected", r"^a reply of \d+ bytes, at most \d+ are exp"),
    "not numpy": (gate, {}, not_numpy, "rejected", "^array 'w' is serialised as 'pickle', not nu"),
}


@pytest.mark.parametrize("name", CASES)
def test_what_the_adapter_says_of_client_0(name: str) -> None:
    """Each way in which an update does not count as it came has a reason of its own."""
    make, replies_of, change, status, reason = CASES[name]
    decision = play(make(), replies_of, change).decisions[0]
    assert decision.status == status
    assert re.search(reason, str(decision.reason))


def test_a_node_that_tells_of_a_client_twice() -> None:
    """Neither of the two counts; its other client does."""
    decisions = play(gate(), {}, twice).decisions
    assert [d.status for d in decisions] == ["trained", "trained", "rejected", "trained"]
    assert decisions[2].reason == "its node replied for it twice"


def test_a_sum_counts_as_the_updates_in_it() -> None:
    """sum_k c_k Delta_k is the same, whether a node sends it or each model, by omega and data."""
    strategy = FedAU(EVERYONE)
    grid = grid_of(scripted_app(4, lambda k, config, arrays: moved(k, k + 1.0)), 2)
    messages = strategy.configure_train(1, encode_arrays(MODEL), ConfigRecord(), grid)
    replies = list(grid.send_and_receive(messages))
    # node 1 has the clients 0 and 2, which moved by 1 and 3: their sum with omega = 1 is 4
    answered(replies[0], DONE[0], DONE[2], total={"w": np.full(3, 4.0)})
    arrays, _ = strategy.aggregate_train(1, replies)
    assert arrays is not None
    np.testing.assert_allclose(arrays["w"].numpy(), MODEL["w"] + (1 + 2 + 3 + 4) / 4, rtol=1e-6)


def test_a_sum_of_clients_without_weight_changes_nothing() -> None:
    """Where none of a node's clients counts, nothing of its sum does, whatever is in it."""
    strategy = FedAU(EVERYONE)
    grid = grid_of(scripted_app(4, lambda k, config, arrays: moved(k, 1.0)), 2)
    messages = strategy.configure_train(1, encode_arrays(MODEL), ConfigRecord(), grid)
    replies = list(grid.send_and_receive(messages))
    away = [ClientReply(k, Status.UNAVAILABLE) for k in (0, 2)]
    answered(replies[0], *away, total={"w": np.full(3, 100.0)})
    arrays, _ = strategy.aggregate_train(1, replies)
    assert arrays is not None
    np.testing.assert_allclose(arrays["w"].numpy(), MODEL["w"] + 2 / 4, rtol=1e-6)


# --- evaluations -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "metrics", "problem"),
    [
        (Status.DONE, {}, None),
        (Status.DONE, {"loss": math.inf, "accuracy": math.nan, "test-metric": 1.0}, None),
        (Status.FAILED, {}, "failed"),
        (
            Status.DONE,
            {"num-examples": 1.5},
            "num-examples is 1.5, not a whole number in [1",
        ),
        (
            Status.DONE,
            {"test-num-examples": 0.0},
            "test-num-examples is 0.0, not a whole",
        ),
        (Status.DONE, {"test-loss": -1.0}, "test-loss is -1.0, not >= 0"),
        (Status.DONE, {"accuracy": 1.5}, "accuracy is 1.5, not in [0, 1]"),
        (Status.DONE, {"test-accuracy": -0.5}, "test-accuracy is -0.5, not in [0, 1]"),
        (Status.DONE, {"test-metric": 1.5}, "test-metric is 1.5, not in [0, 1]"),
        (Status.DONE, {"test-metric": -0.5}, "test-metric is -0.5, not in [0, 1]"),
    ],
)
def test_why_an_evaluation_is_not_used(
    status: Status, metrics: dict[str, float], problem: str | None
) -> None:
    """Diverged losses may be infinite or NaN; what no measurement can be is named."""
    reply = ClientReply(0, status, {"num-examples": 10.0, **metrics})
    found = evaluation_problem(reply)
    assert found == problem if problem is None else str(found).startswith(problem)


def test_a_failed_evaluation_has_its_own_reason() -> None:
    """What the client gave as its reason is passed on."""
    assert evaluation_problem(ClientReply(0, Status.FAILED, reason="no data")) == "no data"


def test_arrays_without_a_number_in_them_can_be_used() -> None:
    """There is nothing in them that could be wrong."""
    assert sum_problem({"w": np.zeros((0, 3))}, {"w": np.zeros((0, 3), np.float32)}) is None
