"""Rounds with masks have the bits of rounds without, and the server learns the sum alone."""

import random
from collections import Counter
from collections.abc import Collection, Mapping
from copy import copy
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from fedquorum import Population
from fedquorum.errors import ParameterError
from fedquorum.flower import masked_evaluation
from fedquorum.flower.codec import (
    EvaluateResult,
    EvaluateTask,
    decode_evaluate_reply,
    decode_masked_vector,
    decode_partial_sum,
    decode_sum_bins,
    decode_train_reply,
    encode_arrays,
)
from fedquorum.flower.codec.keys import SECURE_SUM_STEPS, SUMMED_NUMBERS
from fedquorum.flower.evaluation_sums import decode_evaluations, encode_evaluations
from fedquorum.flower.mods import NO_MASK_STATE, TOO_LARGE
from fedquorum.flower.protocol import NativeProtocol
from fedquorum.flower.round import NO_MASK_REASON
from fedquorum.flower.secure.keys import Vector
from fedquorum.flower.secure.settings import SecureAggregation
from fedquorum.rules.decisions import SUMMED_FIELDS
from fedquorum.rules.round import NO_OBJECTIVE, NOT_UNMASKED
from fedquorum.server.fixed_bins import FixedBins
from fedquorum.server.virtual_clock import NO_REPLY_REASON
from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.app.message.message import make_message
from flwr.common.serde import recorddict_to_proto

from client_app.node.client import FederatedClient
from tests.builders_flower import evaluate_round
from tests.builders_masks import damage_record
from tests.cases import sample_cases
from tests.client_app.sum_runs import NUM_CLIENTS, PRIVACY, RULES, RecordedRun

pytestmark = pytest.mark.usefixtures("no_node_from_before")

KEYS, SHARES, SUM, UNMASK = STEPS = SECURE_SUM_STEPS
MASKS: dict[str, Any] = {"secure_aggregation": SecureAggregation()}
NO_MASKS: dict[str, Any] = {"requires_sums": True, "fixed_bins": True}
ROUNDS = 3


def serialize(content: RecordDict) -> bytes:
    """Return a message's content as it is stored, arrays first."""
    records = {k: v for k, v in content.items() if not isinstance(v, ArrayRecord)}
    arrays = [record for record in content.values() if isinstance(record, ArrayRecord)]
    parts = [array.data for record in arrays for array in record.values()]
    return b"".join([*parts, recorddict_to_proto(RecordDict({**records})).SerializeToString()])


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("nodes", [3, NUM_CLIENTS])
def test_the_model_has_the_same_bits(name: str, nodes: int) -> None:
    """And so have all decisions; no update of the other run is in any message with masks."""
    plain = RecordedRun(nodes, name, rounds=ROUNDS, **NO_MASKS)
    masked = RecordedRun(nodes, name, rounds=ROUNDS, **MASKS)
    assert masked.bits == plain.bits
    expected = plain.strategy.step_result.report
    hidden: dict[str, Any] = dict.fromkeys(("loss", "accuracy", "num_examples"))
    if masked.strategy.rules.weighting.traits.weights_by_data:
        del hidden["num_examples"]
    decisions = tuple(replace(one, **hidden) for one in expected.decisions)
    assert any(getattr(one, key) is not None for one in expected.decisions for key in hidden)
    # Two of the clients have priority: F over these is not the mean over all, the only one known.
    expected = replace(expected, decisions=decisions, objective=NO_OBJECTIVE)
    assert masked.strategy.step_result.report == expected
    assert len(masked.grid.sent) == ROUNDS * 4 * nodes
    messages = [*masked.grid.sent, *masked.grid.evaluated]
    stored = [serialize(one.content) for sent in messages for one in sent]
    in_the_clear = [serialize(reply.content) for _, reply in plain.grid.sent]
    num_searched = 0
    for message, reply in plain.grid.sent:
        sums = decode_partial_sum(reply.content)
        assert sums is not None
        bins = decode_sum_bins(message.content, sums)
        assert isinstance(bins, FixedBins)
        parts = [part for one in sums.values() for part in (one.high, one.low)]
        assert any(parts[0].tobytes() in one for one in in_the_clear)
        for part in (*parts, *bins.to_integers(sums)):
            if part.any():
                assert not any(part.tobytes() in one for one in stored)
                num_searched += 1
    assert num_searched >= 4 * len(plain.grid.sent)


@pytest.mark.parametrize("kind", PRIVACY)
def test_a_private_round_has_the_same_bits(kind: str) -> None:
    """The nodes clip before they mask."""
    overrides = f"strategy=average_all privacy={kind}"
    plain, masked = (
        RecordedRun(NUM_CLIENTS, "average_all", overrides, privacy=PRIVACY[kind], **options)
        for options in (NO_MASKS, MASKS)
    )
    assert masked.bits == plain.bits
    assert masked.statuses == plain.statuses


@pytest.mark.slow
def test_unavailable_clients_are_known_before_the_masks() -> None:
    """With the exchange of keys, so that they cost no holder of shares; also on one node of two."""
    overrides = "availability=bernoulli availability.mean=0.9"
    plain, masked = (
        RecordedRun(3, "fedau", overrides, rounds=8, **options) for options in (NO_MASKS, MASKS)
    )
    statuses = set()
    for server_round in range(9, 30):
        for run in (plain, masked):
            run.play(server_round)
        if masked.strategy.step_result.report.rejection_reason is None:
            assert [s for s, _ in masked.statuses.values()] == [
                s for s, _ in plain.statuses.values()
            ]
            statuses |= {s for s, _ in masked.statuses.values()}
        else:
            assert {s for s, _ in masked.statuses.values()} <= {"rejected", "unavailable"}
    assert statuses == {"trained", "unavailable"}


# --- nodes that are lost -----------------------------------------------------------------------


@cache
def play_without_masks(lost: tuple[int, ...], when: int) -> tuple[dict[str, bytes], ...]:
    """Return the bits after each round, if the replies of some nodes are lost in one of them."""
    run = RecordedRun(NUM_CLIENTS, rounds=0, **NO_MASKS)
    bits = []
    for server_round in range(1, ROUNDS + 1):
        repair(run)
        if server_round == when:
            fail("silent", "", run, lost)
        run.play(server_round)
        bits.append(run.bits)
    return tuple(bits)


def fail(kind: str, step: str, run: RecordedRun, nodes: tuple[int, ...]) -> None:
    """Let nodes fail in a step, in one of three ways."""

    def change(found: str, node: int, reply: Message) -> Message | None:
        if found != step or node not in nodes or kind == "restart":
            return reply
        error = Error(1, "it broke")
        return None if kind == "silent" else make_message(metadata=reply.metadata, error=error)

    def forget(found: str, node: int, context: Context) -> None:
        if found == step and node in nodes and kind == "restart":
            context.state.clear()

    run.grid.change, run.grid.before = change, forget


def repair(run: RecordedRun) -> None:
    """Let all nodes reply again."""
    run.grid.change = lambda step, node, reply: reply
    run.grid.before = lambda step, node, context: None


REASONS = {"silent": NO_REPLY_REASON, "error": "it broke", "restart": NO_MASK_STATE}


@pytest.mark.parametrize("step", SECURE_SUM_STEPS)
@pytest.mark.parametrize("kind", REASONS)
def test_a_node_that_fails_in_a_step(step: str, kind: str) -> None:
    """Its update counts if its vector arrived; it is asked anew in the next round."""
    if (step, kind) == (KEYS, "restart"):
        return  # it has no secrets yet
    run = RecordedRun(NUM_CLIENTS, rounds=1, **MASKS)
    fail(kind, step, run, (2,))
    run.play(2)
    lost = () if step == UNMASK else (2,)
    assert run.bits == play_without_masks(lost, 2)[1]
    status: tuple[str, str | None] = ("failed", REASONS[kind])
    if step == UNMASK:
        note = f"it did not help to unmask the sum: {REASONS[kind]}"
        status = ("trained", None if kind == "silent" else note)
    assert run.statuses == {**dict.fromkeys(range(NUM_CLIENTS), ("trained", None)), 1: status}
    repair(run)
    run.play(3)
    assert run.bits == play_without_masks(lost, 2)[2]
    assert {status for status, _ in run.statuses.values()} == {"trained"}


@pytest.mark.parametrize("step", SECURE_SUM_STEPS)
def test_below_the_threshold_the_round_is_refused(step: str) -> None:
    """The model stays, the run continues, and records have the reason."""
    run = RecordedRun(NUM_CLIENTS, rounds=1, **MASKS)
    before = run.bits
    fail("silent", step, run, (1, 3, 5))
    run.play(2)
    assert run.bits == before
    assert run.strategy.step_result.report.rejection_reason == NOT_UNMASKED
    status, reason = run.statuses[1]
    assert status == "rejected"
    assert (reason or "").startswith(f"{NOT_UNMASKED}: ")
    if step != UNMASK:
        assert run.statuses[0] == ("failed", NO_REPLY_REASON)
    asked = [message.content for message, _ in run.grid.sent if "arrays" in message.content]
    assert len(asked) == NUM_CLIENTS * (1 if step in (KEYS, SHARES) else 2)
    repair(run)
    run.play(3)
    assert run.strategy.step_result.report.rejection_reason is None
    assert run.bits != before


def test_a_round_of_too_few_nodes_is_refused() -> None:
    """Where nodes are missing from the beginning, nobody is asked to train."""
    run = RecordedRun(NUM_CLIENTS, rounds=1, **MASKS)
    before, sent = run.bits, len(run.grid.sent)
    run.strategy._session.registry.group_by_node = lambda clients: {1: (0,), 2: (1,)}  # type: ignore[method-assign]
    run.play(2)
    assert run.bits == before
    assert len(run.grid.sent) == sent
    assert run.strategy.step_result.report.rejection_reason == NOT_UNMASKED
    assert "none with fewer than 3 nodes" in (run.statuses[0][1] or "")


# --- nodes that break the protocol -------------------------------------------------------------


def test_an_update_in_the_clear_is_rejected() -> None:
    """Of a node that sends its sum or its model without a mask; the others' sum is exact."""
    plain = RecordedRun(NUM_CLIENTS, rounds=2, **NO_MASKS)
    model = encode_arrays(plain.model)
    for records in (plain.grid.sent[-4][1].content, RecordDict({"arrays": model})):
        run = RecordedRun(NUM_CLIENTS, rounds=1, **MASKS)

        def change(
            step: str, node: int, reply: Message, records: RecordDict = records
        ) -> Message | None:
            if (step, node) != (SUM, 2):
                return reply
            kept = {k: v for k, v in reply.content.items() if k != SUM}
            arrays = {k: v for k, v in records.items() if k != "metrics"}
            return replace_content(reply, {**kept, **arrays})

        run.grid.change = change
        run.play(2)
        assert run.statuses[1] == ("rejected", NO_MASK_REASON)
        assert run.bits == play_without_masks((2,), 2)[1]


def test_a_masked_sum_with_an_unusable_client_is_left_out() -> None:
    """Nothing can be taken out of a masked vector, so its node counts as lost."""
    run = RecordedRun(NUM_CLIENTS, "fedavg", rounds=1, **MASKS)
    plain = RecordedRun(NUM_CLIENTS, "fedavg", rounds=1, **NO_MASKS)
    fail("silent", "", plain, (2,))
    plain.play(2)

    def change(step: str, node: int, reply: Message) -> Message:
        if (step, node) != (SUM, 2):
            return reply
        metrics = MetricRecord({**reply.content["metrics"], "num-examples": 0.5})  # type: ignore[dict-item]
        return replace_content(reply, {**reply.content, "metrics": metrics})

    run.grid.change = change
    run.play(2)
    status, reason = run.statuses[1]
    assert status == "rejected"
    assert "in one sum with client 1, whose num-examples is 0.5" in (reason or "")
    assert run.bits == plain.bits


# --- what else leaves a node -------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fedau", "fedavg"])
def test_no_number_of_a_client_leaves_its_node(name: str) -> None:
    """With training: no loss and no accuracy, and its amount of data only for weights by data."""
    plain = RecordedRun(NUM_CLIENTS, name, rounds=1, **NO_MASKS)
    results = [one for _, reply in plain.grid.sent for one in decode_train_reply(reply.content)]
    assert all(one.num_examples for one in results)
    assert all((one.loss is None) is (name == "fedau") for one in results)
    masked = RecordedRun(NUM_CLIENTS, name, rounds=1, **MASKS)
    for message, reply in masked.grid.sent:
        step = next(one for one in SECURE_SUM_STEPS if one in message.content)
        allowed = {"protocol", "client-id", "status"}
        if step == SUM and name == "fedavg":
            allowed |= {"num-examples"}
        assert reply.content["metrics"].keys() == allowed
        assert reply.content.keys() == {"metrics", step}


@pytest.mark.parametrize("count", [0, 2, 6, 2**63])
def test_a_count_of_unclipped_updates_that_cannot_be_is_refused(count: int) -> None:
    """A node may send any, as it may add anything to the sum; more than all clients is no count."""
    overrides = "strategy=average_all privacy=dp_adaptive_client"
    privacy = PRIVACY["dp_adaptive_client"]
    run = RecordedRun(NUM_CLIENTS, "average_all", overrides, rounds=1, privacy=privacy, **MASKS)
    before = run.bits

    def change(step: str, node: int, reply: Message) -> Message:
        if (step, node) != (SUM, 2):
            return reply
        vector = decode_masked_vector(reply.content)
        assert vector is not None
        values = vector.values.copy()
        values[-1:] += np.uint64(count)  # an array wraps without a warning
        return replace_content(reply, {**reply.content, SUM: encode_arrays({"values": values})})

    run.grid.change = change
    run.play(2)
    refused = run.strategy.step_result.report.rejection_reason
    assert refused == (NOT_UNMASKED if count > NUM_CLIENTS else None)
    assert (run.bits == before) is (refused is not None)


def replace_content(reply: Message, records: Mapping[str, Any]) -> Message:
    """Return a reply with other records."""
    changed = copy(reply)
    changed.content = RecordDict({**records})
    return changed


DAMAGED = [f"{step} {number}" for number in range(250) for step in SECURE_SUM_STEPS]


@pytest.mark.parametrize("case", sample_cases(DAMAGED, 24))
def test_a_damaged_reply_changes_no_sum(case: str) -> None:
    """The sum is that of the nodes that count, and the one to blame is named; or it is refused."""
    step, chance = case.partition(" ")[0], random.Random(case)
    node = chance.randint(1, NUM_CLIENTS)
    run = RecordedRun(NUM_CLIENTS, rounds=1, **MASKS)
    before = run.bits
    earlier = {
        message.metadata.dst_node_id: reply
        for message, reply in run.grid.sent
        if step in message.content
    }
    way = chance.choice(["damage", "damage", "damage", "missing", "of round 1", "of another"])

    def change(found: str, sender: int, reply: Message) -> Message | None:
        if (found, sender) != (step, node) or step not in reply.content:
            return reply
        records = {**reply.content}
        if way == "missing":
            del records[step]
        elif way == "damage":
            records[step] = damage_record(records[step], chance)
        else:
            other = node if way == "of round 1" else node % NUM_CLIENTS + 1
            records[step] = earlier[other].content[step]
        return replace_content(reply, records)

    run.grid.change = change
    run.play(2)
    refused = run.strategy.step_result.report.rejection_reason
    if refused is not None:
        assert run.bits == before
        assert refused == NOT_UNMASKED
    else:
        lost = {k for k, (status, _) in run.statuses.items() if status != "trained"}
        assert run.bits == play_without_masks(tuple(sorted(k + 1 for k in lost)), 2)[1]
        # It is rejected, or others name it as the one whose shares they cannot use.
        for client, (status, reason) in run.statuses.items():
            if client == node - 1:
                # Nobody needs the hash of its own share of its mask key unless it is lost.
                noted = "its answer to unmask the sum was refused: " in (reason or "")
                assert lost or noted or step == SHARES
            elif client in lost:
                assert status == "failed"
                assert f"node {node}: its shares " in (reason or "")
    repair(run)
    run.play(3)
    assert {status for status, _ in run.statuses.values()} == {"trained"}


# --- evaluation ----------------------------------------------------------------------------------

ALL = Population.from_size(NUM_CLIENTS)


def compute_means(run: RecordedRun, *, by_data: bool) -> dict[str, float]:
    """Return the means over the clients' evaluations of the last round."""
    evaluations = run.strategy.step_result.evaluations
    weights = [e.num_examples if by_data else 1.0 for e in evaluations]
    assert len({e.num_examples for e in evaluations}) > 1
    return {
        name: float(np.average([getattr(e, name) for e in evaluations], weights=weights))
        for name in ("loss", "accuracy", "test_loss", "test_accuracy")
    }


@pytest.mark.parametrize("name", ["fedavg", "fedau"])
@pytest.mark.parametrize("nodes", [3, NUM_CLIENTS])
def test_means_are_those_of_the_clients_evaluations(nodes: int, name: str) -> None:
    """Rounded to the grid of the sums; the objective is one of them where all have priority.

    Only where the weights of the updates are by data, so are these means.
    """
    by_data = name == "fedavg"
    plain = RecordedRun(nodes, name, population=ALL, evaluated_training=True, **NO_MASKS)
    masked = RecordedRun(nodes, name, population=ALL, **MASKS)
    result, expected = masked.strategy.step_result, compute_means(plain, by_data=by_data)
    assert result.evaluations == ()
    assert result.sums is not None
    assert result.sums.evaluated == NUM_CLIENTS
    found = {name: result.sums.means[name] for name in expected}
    assert found == pytest.approx(expected, abs=1e-6)
    assert result.sums.counts == {
        name: NUM_CLIENTS if name in expected else 0 for name in SUMMED_FIELDS
    }
    masked.play(3)
    plain.play(3)
    objective = masked.strategy.step_result.report.objective
    assert np.isnan(objective.loss) != by_data
    if by_data:
        assert objective.loss == pytest.approx(plain.strategy.step_result.report.objective.loss)
        assert objective.loss == pytest.approx(expected["loss"], abs=1e-6)


def test_no_number_of_an_evaluation_is_in_a_message() -> None:
    """Neither in a reply nor in a request; those without masks have each client's."""
    plain = RecordedRun(NUM_CLIENTS, rounds=1, **NO_MASKS)
    masked = RecordedRun(NUM_CLIENTS, rounds=1, **MASKS)
    replies = [reply.content for _, reply in plain.grid.evaluated]
    evaluated = [result for reply in replies for result in decode_evaluate_reply(reply)]
    numbers = {
        np.float64(value).tobytes()
        for result in evaluated
        for value in (result.loss, result.test_loss)
        if not np.isnan(value)
    }
    assert len(numbers) >= NUM_CLIENTS
    assert len(evaluated) == NUM_CLIENTS
    in_the_clear = b"".join(map(serialize, replies))
    assert all(number in in_the_clear for number in numbers)
    integers = {
        encode_evaluations([result], NUM_CLIENTS, by_data=by_data).reshape(3, -1)[0][i].tobytes()
        for by_data in (False, True)
        for result in evaluated
        for i, name in enumerate(SUMMED_FIELDS)
        if getattr(result, name) > 0 and name.endswith("loss")
    }
    assert len(integers) >= len(numbers)
    messages = [one for sent in (*masked.grid.sent, *masked.grid.evaluated) for one in sent]
    stored = [serialize(one.content) for one in messages]
    assert len(masked.grid.evaluated) == 4 * NUM_CLIENTS
    assert not any(number in one for number in (*numbers, *integers) for one in stored)
    for message, reply in masked.grid.evaluated:
        step = next(one for one in SECURE_SUM_STEPS if one in message.content)
        assert reply.content["metrics"].keys() == {"protocol", "client-id", "status"}
        names = {SUMMED_NUMBERS} if step in {KEYS, SUM} else set()
        assert reply.content.keys() == {"metrics", step, *names}


def leave_out(
    monkeypatch: pytest.MonkeyPatch, holders: Collection[int], *, expected: bool
) -> list[Vector]:
    """Let only some clients have a test loss; return the list of sums that the server unmasks.

    With ``expected`` their nodes know it before the evaluation.
    """
    evaluate, find = FederatedClient.evaluate_task, FederatedClient.find_summed_fields
    totals: list[Vector] = []

    def evaluate_task(self: FederatedClient, received: Any, task: EvaluateTask) -> EvaluateResult:
        result = evaluate(self, received, task)
        return result if result.client in holders else replace(result, test_loss=np.nan)

    def find_fields(self: FederatedClient) -> frozenset[str]:
        lacks = expected and self.client_id not in holders
        return find(self).difference(["test_loss"] if lacks else [])

    def decode(total: Vector, *args: Any, **options: Any) -> Any:
        totals.append(total)
        return decode_evaluations(total, *args, **options)

    monkeypatch.setattr(FederatedClient, "evaluate_task", evaluate_task)
    monkeypatch.setattr(FederatedClient, "find_summed_fields", find_fields)
    monkeypatch.setattr(masked_evaluation, "decode_evaluations", decode)
    return totals


@pytest.mark.parametrize("nodes", [4, NUM_CLIENTS])
@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_a_number_of_one_or_two_nodes_does_not_reach_the_server(
    monkeypatch: pytest.MonkeyPatch, nodes: int, count: int
) -> None:
    """All other sums keep their bits; clients 0 and 4 share the first of four nodes."""
    holders = [k for k in range(NUM_CLIENTS) if k % nodes < count]
    plain = leave_out(monkeypatch, range(NUM_CLIENTS), expected=True)
    RecordedRun(nodes, rounds=1, **MASKS)
    monkeypatch.undo()
    totals = leave_out(monkeypatch, holders, expected=True)
    run = RecordedRun(nodes, rounds=1, **MASKS)
    sums = run.strategy.step_result.sums
    assert sums is not None
    assert sums.counts["test_loss"] == (len(holders) if count == 3 else 0)
    assert np.isnan(sums.means["test_loss"]) == (count < 3)
    column = SUMMED_FIELDS.index("test_loss")
    found, expected = totals[0].reshape(3, -1), plain[0].reshape(3, -1)
    assert found[:, column].any() == (count == 3)
    others = np.arange(len(SUMMED_FIELDS)) != column
    assert found[:, others].tobytes() == expected[:, others].tobytes()
    assert found[:, others].any()


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_a_number_that_few_turn_out_to_have_keeps_its_masks(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, count: int
) -> None:
    """As a loss that is not finite; the model is evaluated again without it.

    The shares that would remove the masks of the first sums are not asked for.
    """
    totals = leave_out(monkeypatch, range(count), expected=False)
    with caplog.at_level("WARNING", "flwr"):
        run = RecordedRun(NUM_CLIENTS, rounds=1, **MASKS)
    steps = Counter(
        step for message, _ in run.grid.evaluated for step in message.content if step in STEPS
    )
    is_rare = count in {1, 2}
    num_evaluations = 2 if is_rare else 1
    assert steps == {k: NUM_CLIENTS * (1 if k == UNMASK else num_evaluations) for k in STEPS}
    assert len(totals) == 1
    column = SUMMED_FIELDS.index("test_loss")
    assert totals[0].reshape(3, -1)[:, column].any() == (count == 3)
    sums = run.strategy.step_result.sums
    assert sums is not None
    assert sums.counts["test_loss"] == (count if count == 3 else 0)
    assert sums.counts["test_accuracy"] == NUM_CLIENTS
    assert ("Not evaluated: test-loss. Only one or two nodes" in caplog.text) == is_rare


def test_a_lost_node_leaves_a_number_to_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """It had said with its keys that it has the number."""
    totals = leave_out(monkeypatch, (0, 1, 2), expected=True)
    run = RecordedRun(NUM_CLIENTS, rounds=1, **MASKS)
    assert len(totals) == 1
    fail("silent", f"evaluation {SUM}", run, (2,))
    run.play(2)
    sums = run.strategy.step_result.sums
    assert sums is not None
    assert (sums.counts["loss"], sums.counts["test_loss"]) == (NUM_CLIENTS - 1, 0)
    assert len(totals) == 2


def test_the_objective_of_the_same_model_stays() -> None:
    """A refused round does not evaluate, and the next one broadcasts what is known."""
    run = RecordedRun(NUM_CLIENTS, "fedavg", rounds=1, population=ALL, **MASKS)
    fail("silent", SHARES, run, (1, 3, 5))
    for server_round in (2, 3):
        run.play(server_round)
        evaluate_round(run.strategy, run.grid, server_round, encode_arrays(run.model))
        objective = run.strategy.step_result.report.objective
        assert not np.isnan(objective.loss)
        assert run.strategy.step_result.report.rejection_reason == NOT_UNMASKED
    resumed = RecordedRun(NUM_CLIENTS, "fedavg", rounds=0, population=ALL, **MASKS)
    resumed.model = run.model
    resumed.strategy.restore(run.strategy.get_state(), run.model)
    resumed.play(4)
    assert resumed.strategy.step_result.report.objective == objective
    assert resumed.strategy.step_result.sums is not None


def test_a_model_is_evaluated_once() -> None:
    """Two sums over two sets of clients would tell the loss of one that is in only one of them."""
    run = RecordedRun(NUM_CLIENTS, rounds=1, **MASKS)
    asked = len(run.grid.evaluated)
    fail("silent", SHARES, run, (1, 3, 5))
    run.play(2)  # is refused, so that the model stays
    evaluate_round(run.strategy, run.grid, 2, encode_arrays(run.model))
    assert len(run.grid.evaluated) == asked
    assert run.strategy.step_result.sums is None
    repair(run)
    run.play(3)
    assert len(run.grid.evaluated) == 2 * asked
    assert run.strategy.step_result.sums is not None
    run.strategy.restore(run.strategy.get_state(), run.model)
    evaluate_round(run.strategy, run.grid, 3, encode_arrays(run.model))
    assert len(run.grid.evaluated) == 2 * asked


def test_a_model_whose_bits_stay_is_not_evaluated_again() -> None:
    """Though a round with updates made it, as with a tiny learning rate of the server."""
    run = RecordedRun(NUM_CLIENTS, rounds=1, **MASKS)
    asked, model = len(run.grid.evaluated), encode_arrays(run.model)
    messages = run.strategy.configure_train(2, model, ConfigRecord(), run.grid)
    run.strategy.aggregate_train(2, run.grid.send_and_receive(messages))
    assert run.strategy.step_result.report.rejection_reason is None
    evaluate_round(run.strategy, run.grid, 2, model)
    assert len(run.grid.evaluated) == asked


def test_no_number_of_a_model_is_in_a_reason() -> None:
    """Of an update that cannot be added the server learns no more than that."""
    words = "strategy=average_all client.lr=1e30"
    run = RecordedRun(NUM_CLIENTS, "average_all", words, rounds=1, **MASKS)
    assert {*run.statuses.values()} == {("rejected", TOO_LARGE)}


@pytest.mark.parametrize("step", SECURE_SUM_STEPS)
@pytest.mark.parametrize("nodes", [(2,), (1, 3, 5)])
def test_nodes_that_fail_in_a_step_of_an_evaluation(step: str, nodes: tuple[int, ...]) -> None:
    """The means are those of the others; with too few there are none, and the run continues."""
    run = RecordedRun(NUM_CLIENTS, rounds=1, population=ALL, **MASKS)
    fail("silent", f"evaluation {step}", run, nodes)
    run.play(2)
    sums = run.strategy.step_result.sums
    assert {status for status, _ in run.statuses.values()} == {"trained"}
    if len(nodes) > 1:
        assert sums is None
    else:
        assert sums is not None
        assert sums.evaluated == NUM_CLIENTS - (step != UNMASK)
        assert set(sums.counts.values()) == {0, sums.evaluated}
    repair(run)
    run.play(3)
    assert run.strategy.step_result.sums is not None
    assert run.strategy.step_result.report.rejection_reason is None


@pytest.mark.parametrize("change", ["of another", "in the clear", "without names", "huge"])
def test_a_hostile_node_in_an_evaluation(change: str) -> None:
    """What is no masked vector is left out; a vector of any numbers takes the means with it."""
    run = RecordedRun(NUM_CLIENTS, rounds=1, population=ALL, **MASKS)

    def alter(step: str, node: int, reply: Message) -> Message:
        if (step, node) != (f"evaluation {SUM}", 2):
            return reply
        if change == "in the clear":
            return replace_content(reply, {k: v for k, v in reply.content.items() if k != SUM})
        if change == "without names":
            records = {k: v for k, v in reply.content.items() if k != SUMMED_NUMBERS}
            return replace_content(reply, records)
        vector = decode_masked_vector(reply.content)
        assert vector is not None
        values = vector.values[:-1] if change == "of another" else vector.values + np.uint64(2**60)
        return replace_content(reply, {**reply.content, SUM: encode_arrays({"values": values})})

    run.grid.change = alter
    run.play(2)
    sums = run.strategy.step_result.sums
    if change == "huge":
        assert sums is None
    else:
        assert sums is not None
        assert sums.evaluated == NUM_CLIENTS - 1


def test_a_metric_that_is_no_sum_is_refused() -> None:
    """Before the run, as are clients that never train."""
    with pytest.raises(ParameterError, match=r"metric=auroc \(the server would learn for which"):
        NativeProtocol(metric="auroc", **MASKS)
    held_out = Population((0, 1, 2), frozenset((0, 1)), held_out=(3, 4))
    with pytest.raises(ParameterError, match="with clients that never train"):
        RecordedRun(NUM_CLIENTS, population=held_out, rounds=1, **MASKS)
