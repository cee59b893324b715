"""The results of one exchange, sorted by client."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fedquorum.errors import RunError
from fedquorum.flower.codec import (
    EvaluateResult,
    NamedArrays,
    Status,
    TrainResult,
    decode_evaluate_reply,
    encode_evaluate_reply,
)
from fedquorum.flower.evaluation import check_evaluation, select_usable_evaluations
from fedquorum.flower.protocol import NativeProtocol
from fedquorum.flower.secure.settings import SecureAggregation
from fedquorum.flower.session import (
    DISCONNECTED_ERRORS,
    NodeSession,
    NodeSum,
    ReplyResults,
    read_replies,
    reject_unusable_sum,
)
from fedquorum.flower.validation import ExpectedReply, Limits, find_origin_problem, find_sum_problem
from fedquorum.flower.waiting_grid import Arrival, WaitingGrid
from fedquorum.rules.types import KnownWeights, Population
from fedquorum.server.exact_sum import BinnedSum, ExponentBins
from fedquorum.server.fixed_bins import choose_fixed_bins
from fedquorum.server.quorum import Quorum
from flwr.app import Error, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.supercore.task_identity import TaskIdentity

from tests.builders_flower import build_named_strategy, make_grid

pytestmark = pytest.mark.usefixtures("in_a_run")
GROUP = "evaluate 3"
MODEL: NamedArrays = {"w": np.zeros(2, dtype=np.float32)}


@pytest.fixture
def in_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set a run id, as messages name the run in which they are created."""
    for name in ("_run_id", "_task_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 0)


def make_evaluate_result(client: int, loss: float = 1.0) -> EvaluateResult:
    """Return a client's evaluation of the model."""
    return EvaluateResult(client, Status.DONE, num_examples=5.0, loss=loss, accuracy=0.5)


def make_summed_result(client: int, num_examples: float = 5.0) -> TrainResult:
    """Return the result of a client whose update is in its node's sum."""
    return TrainResult(client, Status.DONE, num_examples=num_examples, loss=1.0, accuracy=0.5)


def make_reply(node: int, content: RecordDict | Error, group: str = GROUP) -> Message:
    """Return a node's reply to a message of a group."""
    asked = Message(RecordDict(), node, MessageType.EVALUATE, group_id=group)
    if isinstance(content, Error):
        return Message(content, reply_to=asked)
    return Message(content, reply_to=asked)


def of(node: int, *clients: EvaluateResult, **options: Any) -> Message:
    """Return a node's reply for some clients."""
    return make_reply(node, encode_evaluate_reply(clients), **options)


def collect_by_client(
    *replies: Message, of_first: tuple[int, ...] = (0, 1)
) -> ReplyResults[EvaluateResult]:
    """Return the results of node 7, with clients 0 and 1, and node 8, with client 2."""
    asked_at = {7: of_first, 8: (2,)}
    results = ReplyResults[EvaluateResult]()
    arriving = read_replies(
        replies,
        asked_at,
        ExpectedReply(GROUP),
        decode_evaluate_reply,
        results,
        kind=EvaluateResult,
        max_bytes=lambda count: 2**20,
        keeps_arrays=True,
    )
    assert {node for node, _ in arriving} <= asked_at.keys()
    return results


def test_results_are_sorted_by_client_and_counted() -> None:
    """Every result is stored by client, with its reply's content and bytes."""
    results = collect_by_client(
        of(8, make_evaluate_result(2)), of(7, make_evaluate_result(1), make_evaluate_result(0))
    )
    assert sorted(results.by_client) == [0, 1, 2]
    assert results.contents[0] is results.contents[1]
    assert results.num_bytes > 0
    assert not results.malformed


def test_a_client_twice_in_a_reply_is_not_used() -> None:
    """Neither result counts, in training or evaluation; other clients of the node do."""
    results = collect_by_client(
        of(7, make_evaluate_result(0), make_evaluate_result(0, loss=9.0), make_evaluate_result(1))
    )
    assert results.malformed == {0: "its node replied for it twice"}
    assert list(select_usable_evaluations(results)) == [1]


def test_a_result_for_another_nodes_client_is_not_used() -> None:
    """It is ignored, and clients without a result get the reason."""
    results = collect_by_client(of(7, make_evaluate_result(0), make_evaluate_result(2)))
    assert list(results.by_client) == [0]
    assert results.malformed == {1: "its node replied for 2, not asked there"}


def test_the_first_reply_of_a_node_counts() -> None:
    """A second reply is ignored with a note; a reply to another step does not block it."""
    late = of(7, make_evaluate_result(0, loss=9.0), make_evaluate_result(1), group="evaluate 2")
    first, second = (
        of(7, make_evaluate_result(0), make_evaluate_result(1)),
        of(7, make_evaluate_result(0, loss=5.0), make_evaluate_result(1)),
    )
    results = collect_by_client(late, first, second)
    assert not results.malformed
    assert results.by_client[0].loss == 1.0
    assert results.notes == dict.fromkeys((0, 1), "a second reply was ignored")
    only_late = collect_by_client(late)
    assert only_late.malformed == dict.fromkeys(
        (0, 1), f"a reply to 'evaluate 2', asked was '{GROUP}'"
    )


def test_a_reply_to_another_message_of_the_step_is_not_used() -> None:
    """A reply must name the message that its node was sent, or no message."""
    asked, other = (
        Message(RecordDict(), 7, MessageType.EVALUATE, group_id=GROUP) for _ in range(2)
    )
    for message, name in ((asked, "one"), (other, "two")):
        message.metadata.__dict__["_message_id"] = name
    sent = ExpectedReply(GROUP, {7: asked.metadata})
    content = encode_evaluate_reply([make_evaluate_result(0)])
    assert find_origin_problem(Message(content, reply_to=asked), sent) is None
    assert find_origin_problem(of(7, make_evaluate_result(0)), sent) is None
    assert find_origin_problem(Message(content, reply_to=other), sent) == (
        "a reply to another message than the one that its node was sent"
    )


def test_an_error_or_a_malformed_reply_affects_all_clients_of_the_node() -> None:
    """A node's error fails its clients with its reason; a malformed reply rejects them."""
    broken = make_reply(7, Error(code=0, reason="no data"))
    results = collect_by_client(broken, make_reply(8, RecordDict()))
    assert {k: (p.status, p.reason) for k, p in results.by_client.items()} == dict.fromkeys(
        (0, 1), (Status.FAILED, "no data")
    )
    assert list(results.malformed) == [2]
    assert not select_usable_evaluations(results)


def make_failed_results(*clients: int, reason: str = "no") -> list[EvaluateResult]:
    return [EvaluateResult(k, Status.FAILED, reason=reason) for k in clients]


NONSENSE = RecordDict()
AWAY = (
    ErrorCode.MESSAGE_UNAVAILABLE,
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE,
    ErrorCode.NODE_UNAVAILABLE,
)
RAISED, NOT_LOADED, UNREADABLE = (
    Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "boom"),
    Error(ErrorCode.LOAD_CLIENT_APP_EXCEPTION, "boom"),
    Error(ErrorCode.UNKNOWN, "boom"),
)


@pytest.mark.parametrize(
    ("of_first", "of_second", "reasons"),
    [
        (make_failed_results(0, 1), make_failed_results(2), "no"),
        (make_failed_results(0, 1), RAISED, "no, boom"),
        (UNREADABLE, NOT_LOADED, "boom"),
        (
            [make_evaluate_result(0, -1.0), make_evaluate_result(1, -1.0)],
            [make_evaluate_result(2, -1.0)],
            "loss is -1.0, not >= 0",
        ),
        (make_failed_results(0, 1), NONSENSE, "no, a reply needs the record 'metrics'"),
        ([make_evaluate_result(0), *make_failed_results(1)], make_failed_results(2), None),
        (make_failed_results(0, 1), [make_evaluate_result(2)], None),
        (make_failed_results(0, 1), None, None),
        (make_failed_results(0), make_failed_results(2), None),
        (None, None, None),
        (make_failed_results(0, 1), [EvaluateResult(2, Status.UNAVAILABLE)], None),
        *((make_failed_results(0, 1), Error(code, "gone"), None) for code in AWAY),
    ],
)
def test_an_evaluation_that_fails_everywhere(
    of_first: Any, of_second: Any, reasons: str | None
) -> None:
    """It failed if every selected client failed; not if one is disconnected or silent."""
    results = collect_by_client(
        *(
            make_reply(node, encode_evaluate_reply(said) if isinstance(said, list) else said)
            for node, said in ((7, of_first), (8, of_second))
            if said is not None
        )
    )
    asked_at, everyone = {7: (0, 1), 8: (2,)}, frozenset(range(3))

    def check(
        clients_by_node: dict[int, tuple[int, ...]], expected: frozenset[int] = everyone
    ) -> None:
        check_evaluation(
            results, clients_by_node, expected, model="the first model", metric="accuracy"
        )

    check({})
    if reasons is None:
        check(asked_at)
        return
    with pytest.raises(RunError) as refused:
        check(asked_at)
    assert str(refused.value) == f"none of 3 clients could measure the first model: {reasons}"
    # Other nodes are disconnected: several failed nodes are enough, one is not.
    with pytest.raises(RunError):
        check(asked_at, frozenset(range(9)))
    check({7: (0, 1)})
    with pytest.raises(RunError, match=r"^none of 2 clients"):
        check({7: (0, 1)}, frozenset({0, 1}))


def test_the_reasons_of_a_failed_evaluation_are_one_line() -> None:
    """The error has only the first reasons."""
    parts = {k: EvaluateResult(k, Status.FAILED, reason=f"reason {k}") for k in range(5)}
    with pytest.raises(RunError) as refused:
        check_evaluation(
            ReplyResults(by_client=parts),
            {1: tuple(parts)},
            frozenset(parts),
            model="it",
            metric="accuracy",
        )
    reasons = "reason 0, reason 1, reason 2, ... (5 in all)"
    assert str(refused.value) == f"none of 5 clients could measure it: {reasons}"


@pytest.mark.parametrize(
    ("asked_for", "array", "problem"),
    [
        (True, np.array([1.0, 2.0]), None),
        (False, np.array([1.0, 2.0]), "a sum of updates, though none was asked for"),
        (True, np.array([1.0, np.nan]), "array 'w' holds NaN or Inf"),
        (True, np.array([1.0]), r"array 'w' has shape (1,), the model's (2,)"),
        (True, np.ones(2, np.float32), "array 'w' has dtype float32, the model's float64"),
        (True, np.array([1.0, 1e17]), "array 'w' holds values up to 1e+17, not 9e+15"),
    ],
)
def test_unusable_sums_are_refused(asked_for: bool, array: Any, problem: str | None) -> None:
    """A sum must be requested and match the model, or none of its clients counts."""
    results = ReplyResults(by_client={0: make_summed_result(0), 1: make_summed_result(1)})
    node_sum = NodeSum({"w": BinnedSum(0, array, np.zeros(2))}, (0, 1))
    proportions = KnownWeights(by_data=True) if asked_for else None
    limits = Limits(needs_loss=True)
    reject_unusable_sum(
        node_sum, results, MODEL, proportions, limits=limits, bins=ExponentBins.for_num_terms(2)
    )
    assert results.malformed == ({} if problem is None else dict.fromkeys((0, 1), problem))


@pytest.mark.parametrize(
    ("sums", "problem"),
    [
        ({"v": 0}, "sums of arrays v, none of the model's"),
        ({"w": 10**6}, "the sum of array 'w' is in bin 1000000, not in [-19, 18]"),
        ({"w": -20}, "the sum of array 'w' is in bin -20, not in [-19, 18]"),
        ({}, None),
    ],
)
def test_a_sums_bins_must_be_ones_that_terms_can_reach(
    sums: dict[str, int], problem: str | None
) -> None:
    """A bin beyond the reach of updates would overflow; an array without a bin has terms of 0."""
    model: NamedArrays = {"w": np.zeros(2, np.float32)}
    binned = {name: BinnedSum(index, np.zeros(2), np.zeros(2)) for name, index in sums.items()}
    assert find_sum_problem(binned, model, ExponentBins.for_num_terms(2)) == problem


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({}, None),
        ({"b": None}, "no sums of the model's arrays b"),
        ({"w": BinnedSum(1, np.zeros(2), np.zeros(2))}, "array 'w' is in bin 1, not in [0, 0]"),
        ({"w": BinnedSum(0, np.full(2, 2.0**60), np.zeros(2))}, "holds values up to 1.15e+18"),
        ({"b": BinnedSum(0, np.zeros(1), np.full(1, 2.0**60))}, "holds values up to 1.15e+18"),
    ],
)
def test_a_sum_in_fixed_bins_has_all_arrays(
    changed: dict[str, BinnedSum[Any] | None], problem: str | None
) -> None:
    """In the one pair of each; a part has less than 2^53 multiples of its unit."""
    model: NamedArrays = {"w": np.zeros(2, np.float32), "b": np.zeros(1, np.float32)}
    bins = choose_fixed_bins(model, 2, 1.0, {"w": 2.0**-30, "b": 2.0**-30})
    sums = {name: BinnedSum(0, np.zeros(len(x)), np.zeros(len(x))) for name, x in model.items()}
    found = find_sum_problem(
        {name: one for name, one in (sums | changed).items() if one is not None}, model, bins
    )
    assert found is None if problem is None else problem in (found or "")


@pytest.mark.parametrize("bit", [None, 0.5, math.nan])
def test_a_client_in_a_sum_says_if_it_clipped_its_update(bit: float | None) -> None:
    """Where the clipping norm adapts, its sum does not count without."""
    results = ReplyResults(by_client={0: make_summed_result(0), 1: make_summed_result(1)})
    results.by_client[1] = replace(results.by_client[1], norm_bit=bit)
    results.by_client[0] = replace(results.by_client[0], norm_bit=1.0)
    node_sum = NodeSum({"w": BinnedSum(0, np.ones(2), np.zeros(2))}, (0, 1))
    options: Any = {"limits": Limits(), "bins": ExponentBins.for_num_terms(2)}
    reject_unusable_sum(node_sum, results, MODEL, KnownWeights(), **options)
    assert results.malformed == {}
    reject_unusable_sum(
        node_sum, results, MODEL, KnownWeights(), needs_clip_indicator=True, **options
    )
    assert results.malformed.keys() == {0, 1}
    assert "in one sum with client 1, whose norm_bit is missing" in results.malformed[0]


def test_one_bad_client_spoils_its_sum() -> None:
    """The problem of one client is reported for every client in the same sum."""
    results = ReplyResults(
        by_client={0: make_summed_result(0), 1: make_summed_result(1, num_examples=-1.0)}
    )
    node_sum = NodeSum({"w": BinnedSum(0, np.ones(2), np.zeros(2))}, (0, 1))
    results.node_sums[7] = node_sum
    proportions = KnownWeights(by_data=True)
    reject_unusable_sum(
        node_sum, results, MODEL, proportions, limits=Limits(), bins=ExponentBins.for_num_terms(2)
    )
    assert {k for one in results.node_sums.values() for k in one.clients} == {0, 1}
    assert results.malformed[0].startswith("in one sum with client 1, whose num-examples is -1.0")


class Compared(int):
    """A client id that counts how often it is compared."""

    count = 0

    def __eq__(self, other: object) -> bool:
        Compared.count += 1
        return int(self) == other

    __hash__ = int.__hash__


def test_a_reply_is_sorted_in_time_for_its_length() -> None:
    """Each client is looked up in a set, for any number of clients."""
    clients = range(2_000)
    reply = of(7, *map(make_evaluate_result, clients))
    asked = tuple(map(Compared, clients))
    Compared.count = 0
    results = collect_by_client(reply, of_first=asked)
    assert len(results.by_client) == len(clients)
    assert Compared.count <= 10 * len(clients)


@pytest.mark.parametrize("code", sorted(DISCONNECTED_ERRORS))
def test_the_message_of_a_killed_node_is_no_late_reply(code: int) -> None:
    """The SuperLink writes it when it notices; the error of a ClientApp is a reply."""
    session = NodeSession(
        NativeProtocol(), Population.from_size(2), build_named_strategy("fedavg", 2).rules
    )
    session._grid = grid = WaitingGrid(make_grid(ClientApp(), 2))
    session._clients_by_round[1] = {5: (0,), 7: (1,)}
    for node, error in (
        (5, Error(code, "gone")),
        (7, Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "x")),
    ):
        reply = make_reply(node, error, group="train 1")
        grid._store_arrival("", Arrival(node, reply, 45.0, 0.0))
    (late,) = session.collect_late_replies(2)
    assert (late.client, late.reply_seconds) == (1, 45.0)


def test_an_exchange_of_masks_closes_by_its_clients_and_its_nodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Half of the clients are not enough on a single node; each exchange counts anew."""
    protocol = NativeProtocol(quorum=Quorum(0.5), secure_aggregation=SecureAggregation())
    strategy = build_named_strategy("average_all", 4, communication=protocol)
    session = NodeSession(protocol, strategy.population, strategy.rules)
    hosted = {7: (0,), 8: (1,), 9: (2, 3)}
    monkeypatch.setattr(session.registry, "group_by_node", lambda _: dict(hosted))
    grid = WaitingGrid(make_grid(ClientApp(), 1))
    session.open_exchange(grid, range(4), None, priority=frozenset(range(4)))
    assert session.quorum_share == 0.5
    for node, expected in ((9, False), (9, False), (7, True), (8, True)):
        if expected is False:
            session.count_replies_again(lambda nodes: len(nodes) >= 2)
        reply = make_reply(node, encode_evaluate_reply([make_evaluate_result(hosted[node][0])]))
        assert session.is_quorum(Arrival(node, reply, 1.0, 1.0)) is expected
    session.open_exchange(grid, range(4), None, priority=frozenset(range(4)))
    reply = make_reply(9, encode_evaluate_reply([make_evaluate_result(k) for k in (2, 3)]))
    assert session.is_quorum(Arrival(9, reply, 1.0, 1.0))  # of a round without masks
