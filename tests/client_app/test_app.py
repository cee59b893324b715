"""The ClientApp: messages in and out, through Flower's Message and Context."""

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fedquorum.flower.codec import (
    PROTOCOL_VERSION,
    EvaluateRequest,
    Status,
    TrainRequest,
    TrainResult,
    decode_evaluate_reply,
    decode_hosted_clients,
    decode_partial_sum,
    decode_train_reply,
    encode_arrays,
    encode_evaluate_request,
    encode_train_request,
    to_metrics,
)
from fedquorum.rules.types import KnownWeights, Objective, RoundPlan
from flwr.app import ArrayRecord, Message, MessageType, RecordDict
from numpy.typing import NDArray

from client_app import app as client_app
from client_app.data import ClientData
from client_app.data.synth import SynthData
from client_app.models import build_model
from client_app.node.client import FederatedClient
from client_app.training.batched import BatchedTrainer
from conf import compose_settings
from conf.schema.data import SynthSettings
from server_app.engines.in_process import InProcessGrid
from tests.client_app.clients import assert_same_result
from tests.reference import sgd

NUM_CLIENTS, NUM_PRIORITY, SAMPLES, SEED = 5, 2, 20, 3
OVERRIDES = (
    f"data=synth data.num_clients={NUM_CLIENTS} data.num_priority={NUM_PRIORITY} "
    f"data.sizes=equal data.samples_per_client={SAMPLES} client.device=cpu "
    f"client.local_epochs=2 seed={SEED}"
)


NOT_NEEDED = (
    *("torchvision", "torch._dynamo", "sympy", "transformers", "datasets", "flwr_datasets"),
    *("pandas", "pyarrow", "scipy", "matplotlib", "tensorboard", "ray", "joblib"),
    *("fedquorum.flower.protocol", "fedquorum.flower.strategy", "fedquorum.records.writer"),
)
"""What neither a closed-form model nor the client's half of a round needs."""

MESSAGES = f"""
import gc, sys
from client_app import app as client_app
import numpy as np
import torch
from fedquorum.flower.codec import *
from fedquorum.rules.types import Objective, RoundPlan
from flwr.app import Message, MessageType
from server_app.engines.in_process import InProcessGrid

print([name for name in {NOT_NEEDED} if name in sys.modules])
grid = InProcessGrid(client_app.app, {{"experiment": "custom", "overrides": {OVERRIDES!r}}}, 1)
model = {{"linear.weight": np.zeros((10, 60), "f4"), "linear.bias": np.zeros(10, "f4")}}
train = TrainRequest(1, RoundPlan((0, 1)), (True, False), Objective(1.0, 0.5))
evaluate = EvaluateRequest(1, (0, 1), (True, True), (True, True))
for kind, content in (
    (MessageType.TRAIN, encode_train_request(encode_arrays(model), train)),
    (MessageType.EVALUATE, encode_evaluate_request(encode_arrays(model), evaluate)),
):
    (reply,) = grid.send_and_receive([Message(content, 1, kind)])
    assert not reply.has_error(), reply.error
print([name for name in {NOT_NEEDED} if name in sys.modules])
print(any(tracked is vars(torch) for tracked in gc.get_objects()))
"""


pytestmark = pytest.mark.usefixtures("no_node_from_before")


def make_grid(num_nodes: int, overrides: str = OVERRIDES) -> InProcessGrid:
    return InProcessGrid(
        client_app.app, {"experiment": "custom", "overrides": overrides}, num_nodes
    )


def send_requests(
    grid: InProcessGrid, kind: str, contents: dict[int, RecordDict] | None = None
) -> list[Message]:
    """Return the replies of the nodes (from 1), of all of them without contents."""
    wanted = contents or {node: RecordDict() for node in grid.get_node_ids()}
    messages = [Message(content, node, kind) for node, content in wanted.items()]
    return list(grid.send_and_receive(messages))


def model() -> dict[str, NDArray[np.float32]]:
    rng = np.random.default_rng(0)
    return {
        "linear.weight": rng.normal(0, 0.1, (10, 60)).astype(np.float32),
        "linear.bias": rng.normal(0, 0.1, 10).astype(np.float32),
    }


def record() -> ArrayRecord:
    return encode_arrays(model())


def train_request(
    clients: tuple[int, ...], epsilon: float | None = None, global_loss: float = 1.0
) -> RecordDict:
    return encode_train_request(
        record(),
        TrainRequest(
            server_round=1,
            plan=RoundPlan(clients, epsilon=epsilon, criterion="loss"),
            priority=tuple(k < NUM_PRIORITY for k in clients),
            objective=Objective(global_loss, 0.5),
        ),
    )


def train_clients(
    num_nodes: int, epsilon: float | None = None, overrides: str = OVERRIDES
) -> dict[int, TrainResult]:
    """Return every client's result of one round, with this number of nodes."""
    contents = {
        j + 1: train_request(tuple(range(j, NUM_CLIENTS, num_nodes)), epsilon)
        for j in range(min(num_nodes, NUM_CLIENTS))
    }
    results: dict[int, TrainResult] = {}
    for reply in send_requests(make_grid(num_nodes, overrides), MessageType.TRAIN, contents):
        for result in decode_train_reply(reply.content):
            assert result.client is not None
            assert result.client not in results
            results[result.client] = result
    return results


def get_arrays(result: TrainResult) -> dict[str, NDArray[Any]]:
    assert result.arrays is not None
    return dict(result.arrays)


def get_data(client: int) -> ClientData:
    settings = SynthSettings(
        num_clients=NUM_CLIENTS,
        num_priority=NUM_PRIORITY,
        sizes="equal",
        samples_per_client=SAMPLES,
    )
    return SynthData(settings, SEED).get_client(client)


def evaluate_broadcast(client: int, split: str) -> tuple[float, float]:
    """Return loss and accuracy of the broadcast model on a client's train or test split."""
    client_data = get_data(client)
    return sgd.measure(
        sgd.read(list(model().values())),
        getattr(client_data, f"x_{split}"),
        getattr(client_data, f"y_{split}"),
    )


# --- query -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_nodes", "expected"),
    [
        (1, [(0, 1, 2, 3, 4)]),
        (2, [(0, 2, 4), (1, 3)]),
        (7, [(0,), (1,), (2,), (3,), (4,), (), ()]),
    ],
)
def test_query(num_nodes: int, expected: list[tuple[int, ...]]) -> None:
    """Each node names its clients and nothing else, also where it has none."""
    replies = send_requests(make_grid(num_nodes), MessageType.QUERY)
    assert [decode_hosted_clients(reply.content) for reply in replies] == expected
    for reply in replies:
        assert list(reply.content) == ["metrics"]
        assert sorted(reply.content.metric_records["metrics"]) == ["client-id", "protocol"]


def test_query_of_a_device() -> None:
    """A node with client-id in its node config hosts that client."""
    grid = make_grid(1)
    grid._contexts[1].node_config = {"client-id": 3}
    reply = send_requests(grid, MessageType.QUERY)[0]
    assert decode_hosted_clients(reply.content) == (3,)


# --- train -----------------------------------------------------------------------------------


@pytest.mark.parametrize("num_nodes", [2, 3, 5, 7])
@pytest.mark.parametrize("batching", ["auto", "batched", "sequential"])
def test_training_does_not_depend_on_the_number_of_nodes(num_nodes: int, batching: str) -> None:
    """Every client's result is the same on one node, on several, and on a node alone."""
    overrides = f"{OVERRIDES} client.batching={batching}"
    expected, results = (
        train_clients(1, overrides=overrides),
        train_clients(num_nodes, overrides=overrides),
    )
    assert sorted(expected) == sorted(results) == list(range(NUM_CLIENTS))
    for k, result in results.items():
        assert_same_result(result, expected[k])
    assert not np.array_equal(
        get_arrays(results[0])["linear.weight"], get_arrays(results[1])["linear.weight"]
    )


def test_training_reply() -> None:
    """A client's result has its model, its count, and its metrics before training."""
    for k, result in train_clients(2).items():
        loss, accuracy = evaluate_broadcast(k, "train")
        assert result.status is Status.DONE
        assert to_metrics(result) == pytest.approx(
            {"num-examples": len(get_data(k).y_train), "loss": loss, "accuracy": accuracy},
            abs=1e-6,
        )
        assert {name: a.shape for name, a in get_arrays(result).items()} == {
            "linear.weight": (10, 60),
            "linear.bias": (10,),
        }


def test_clients_not_selected_do_nothing() -> None:
    """Only the clients that the request names are in the reply, in its order."""
    reply = send_requests(make_grid(1), MessageType.TRAIN, {1: train_request((4, 1))})[0]
    assert [result.client for result in decode_train_reply(reply.content)] == [4, 1]
    expected = train_clients(1)
    for result in decode_train_reply(reply.content):
        assert_same_result(result, expected[result.client or 0])


def test_declined_clients_send_id_and_status_only() -> None:
    """Those below the gate are in no list but that of ids and statuses."""
    reply = send_requests(
        make_grid(1), MessageType.TRAIN, {1: train_request((0, 1, 2, 3, 4), 0.0)}
    )[0]
    metrics = dict(reply.content.metric_records["metrics"])
    assert metrics.pop("client-id") == [0, 1, 2, 3, 4]
    assert metrics.pop("status") == [0, 0, 1, 1, 1]
    assert metrics.pop("protocol") == PROTOCOL_VERSION
    assert metrics.keys() == {"num-examples", "loss", "accuracy"}
    assert all(isinstance(v, list) and len(v) == NUM_PRIORITY for v in metrics.values())
    stacked = {name: a.numpy().shape for name, a in reply.content.array_records["arrays"].items()}
    assert stacked == {"linear.weight": (2, 10, 60), "linear.bias": (2, 10)}
    assert sorted(reply.content) == ["arrays", "metrics"]


def test_all_clients_decline() -> None:
    """A node whose clients all decline replies without arrays."""
    replies = send_requests(
        make_grid(1), MessageType.TRAIN, {1: train_request((2, 3), epsilon=0.0)}
    ) + send_requests(make_grid(1), MessageType.TRAIN, {1: train_request((2,), epsilon=0.0)})
    contents = [{name: dict(record) for name, record in r.content.items()} for r in replies]
    assert contents == [
        {"metrics": {"client-id": [2, 3], "status": [1, 1], "protocol": PROTOCOL_VERSION}},
        {"metrics": {"client-id": 2, "status": 1, "protocol": PROTOCOL_VERSION}},
    ]


def test_each_client_decides_by_its_own_loss() -> None:
    """A client joins if its own loss is within epsilon of the global loss."""
    losses = {k: evaluate_broadcast(k, "train")[0] for k in range(NUM_PRIORITY, NUM_CLIENTS)}
    middle = sorted(losses.values())[1]
    request = train_request(tuple(losses), epsilon=0.5, global_loss=middle - 0.5 + 1e-5)
    reply = send_requests(make_grid(1), MessageType.TRAIN, {1: request})[0]
    joined = {p.client for p in decode_train_reply(reply.content) if p.status is Status.DONE}
    assert len(set(losses.values())) == 3
    assert joined == {k for k, loss in losses.items() if loss <= middle}


@pytest.mark.parametrize("selected", [(0, 1, 2), (1,)])
def test_a_failing_client_fails_alone(
    selected: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that raises is reported with its reason; the others' results do not change."""
    expected = train_clients(1)
    join = FederatedClient.evaluate_and_decide

    def fails_for_one(self: FederatedClient, parameters: Any, config: Any) -> Any:
        if self.client_id == 1:
            raise RuntimeError("out of battery")
        return join(self, parameters, config)

    monkeypatch.setattr(FederatedClient, "evaluate_and_decide", fails_for_one)
    reply = send_requests(make_grid(1), MessageType.TRAIN, {1: train_request(selected)})[0]
    results = {result.client: result for result in decode_train_reply(reply.content)}
    failed = results.pop(1)
    assert failed == TrainResult(1, Status.FAILED, reason="RuntimeError: out of battery")
    assert sorted(results, key=str) == [k for k in selected if k != 1]
    for k, result in results.items():
        assert_same_result(result, expected[k or 0])


def test_data_that_cannot_be_made_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a client's data cannot be loaded, only that client fails."""
    load = SynthData.get_client

    def fails_for_one(self: SynthData, client: int) -> ClientData:
        if client == 4:
            raise OSError("disk is gone")
        return load(self, client)

    monkeypatch.setattr(SynthData, "get_client", fails_for_one)
    reply = send_requests(make_grid(1), MessageType.TRAIN, {1: train_request((0, 4))})[0]
    one, other = decode_train_reply(reply.content)
    assert (one.client, one.status) == (0, Status.DONE)
    assert other == TrainResult(4, Status.FAILED, reason="OSError: disk is gone")


@pytest.mark.parametrize("kind", [MessageType.TRAIN, MessageType.EVALUATE])
def test_foreign_client(kind: str) -> None:
    """A request for a client of another node is refused entirely."""
    reply = send_requests(make_grid(2), kind, {2: train_request((1, 2))})[0]
    assert reply.has_error()
    assert "clients [2] are not on this node, which hosts [1, 3]" in str(reply.error.reason)


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        ("client.lr=-1", "client.lr must be a number > 0, got -1.0"),
        ("data.no_such_key=1", "data.no_such_key is not a setting"),
    ],
)
def test_wrong_settings(overrides: str, reason: str) -> None:
    """A run config that does not compose is an error reply that names the setting."""
    reply = send_requests(make_grid(1, overrides), MessageType.QUERY)[0]
    assert reply.has_error()
    assert reason in str(reply.error.reason)


def test_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA without a GPU is an error; auto then selects the CPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    grid = make_grid(1, OVERRIDES.replace("client.device=cpu", "client.device=cuda"))
    reply = send_requests(grid, MessageType.QUERY)[0]
    assert "client.device must be auto or cpu where there is no GPU" in str(reply.error.reason)
    grid = make_grid(1, OVERRIDES.replace("client.device=cpu", "client.device=auto"))
    assert not send_requests(grid, MessageType.TRAIN, {1: train_request((0,))})[0].has_error()


# --- training together -----------------------------------------------------------------------


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Record the clients of each pass of batched training."""
    whom: list[list[int]] = []
    train_chunk = BatchedTrainer.train_chunk

    def note_chunk(
        self: BatchedTrainer, arrays: Any, clients: Sequence[int], chunk: Sequence[int], *of: Any
    ) -> Any:
        whom.append([clients[index] for index in chunk])
        return train_chunk(self, arrays, clients, chunk, *of)

    monkeypatch.setattr(BatchedTrainer, "train_chunk", note_chunk)
    return whom


SMALL_BATCHES = f"{OVERRIDES} client.batch_size=4"
"""All clients have a full batch, so that their products have one shape."""


def test_clients_of_a_node_train_in_one_pass(passes: list[list[int]]) -> None:
    """All that joined at once; with client.batching=sequential one after the other."""
    train_clients(2, overrides=SMALL_BATCHES)
    assert passes == [[0, 2, 4], [1, 3]]
    passes.clear()
    train_clients(2, overrides=f"{SMALL_BATCHES} client.batching=sequential")
    assert passes == [[0], [2], [4], [1], [3]]


def test_declined_clients_cost_no_training(passes: list[list[int]]) -> None:
    """Clients that decline are in no pass; if all decline there is none."""
    grid = make_grid(1, SMALL_BATCHES)
    send_requests(grid, MessageType.TRAIN, {1: train_request((0, 1, 2, 3, 4), 0.0)})
    assert passes == [[0, 1]]
    send_requests(grid, MessageType.TRAIN, {1: train_request((2, 3), 0.0)})
    assert passes == [[0, 1]]


@pytest.mark.parametrize("selected", [(0, 1, 2), (1,)])
def test_a_client_that_fails_in_the_pass_fails_alone(
    selected: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If batched training fails, each client trains alone, and the others' results are the same."""
    expected = train_clients(1)
    client_app._build_node.cache_clear()
    train_chunk = BatchedTrainer.train_chunk

    def fails(
        self: BatchedTrainer, arrays: Any, clients: Sequence[int], chunk: Sequence[int], *of: Any
    ) -> Any:
        if any(clients[index] == 1 for index in chunk):
            raise RuntimeError("out of battery")
        return train_chunk(self, arrays, clients, chunk, *of)

    monkeypatch.setattr(BatchedTrainer, "train_chunk", fails)
    reply = send_requests(make_grid(1), MessageType.TRAIN, {1: train_request(selected)})[0]
    results = {result.client: result for result in decode_train_reply(reply.content)}
    assert results.pop(1) == TrainResult(1, Status.FAILED, reason="RuntimeError: out of battery")
    assert sorted(results, key=str) == [k for k in selected if k != 1]
    for k, result in results.items():
        assert_same_result(result, expected[k or 0])


@pytest.mark.parametrize("batching", ["batched", "sequential"])
def test_updates_that_are_not_finite_are_not_in_the_sum(batching: str) -> None:
    """A client that diverges is rejected by its node, with the reason; all of them: no sum."""
    overrides = f"{OVERRIDES} client.batching={batching} client.lr=1e38"
    request = TrainRequest(1, RoundPlan((0, 1)), (True, True), Objective(1.0, 0.5), KnownWeights())
    [reply] = send_requests(
        make_grid(1, overrides), MessageType.TRAIN, {1: encode_train_request(record(), request)}
    )
    for result in decode_train_reply(reply.content):
        assert result.status is Status.REJECTED
        assert re.fullmatch(r"array '[a-z.]+' holds NaN or Inf", result.reason or "")
    assert decode_partial_sum(reply.content) is None


@pytest.mark.parametrize("batching", ["batched", "sequential"])
@pytest.mark.parametrize("by_data", [False, True])
def test_a_node_returns_one_sum(
    batching: str, by_data: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With weights known beforehand no client's model, but their weighted sum, in float64.

    A client that fails is not in it.
    """
    overrides = f"{OVERRIDES} client.batching={batching}"
    expected = train_clients(1, overrides=overrides)
    clients, factor = (0, 1, 2, 3), {0: 0.5, 1: 2.0, 2: 1.5, 3: 1.0}
    content = encode_train_request(
        record(),
        TrainRequest(
            server_round=1,
            plan=RoundPlan(clients),
            priority=tuple(k < NUM_PRIORITY for k in clients),
            objective=Objective(1.0, 0.5),
            known_weights=KnownWeights(factor, by_data=by_data),
        ),
    )
    join = FederatedClient.evaluate_and_decide

    def fails_for_one(self: FederatedClient, parameters: Any, config: Any) -> Any:
        if self.client_id == 3:
            raise RuntimeError("out of battery")
        return join(self, parameters, config)

    monkeypatch.setattr(FederatedClient, "evaluate_and_decide", fails_for_one)
    [reply] = send_requests(make_grid(1, overrides), MessageType.TRAIN, {1: content})
    results = decode_train_reply(reply.content)
    assert [result.client for result in results] == list(clients)
    assert [result.status for result in results] == [Status.DONE] * 3 + [Status.FAILED]
    assert all(result.arrays is None for result in results)
    total, start = decode_partial_sum(reply.content), model()
    assert total is not None
    assert total.keys() == start.keys()
    for name, one in total.items():
        array = one.high + one.low
        assert array.dtype == np.float64
        whole = np.zeros_like(array)
        for k in (0, 1, 2):
            examples = expected[k].num_examples or 0 if by_data else 1
            whole += factor[k] * examples * (get_arrays(expected[k])[name] - start[name])
        scale = np.abs(whole).max()
        np.testing.assert_allclose(array, whole, rtol=0, atol=1e-5 * scale)


@pytest.mark.parametrize(
    "words",
    [
        "model=mlp model.hidden=9 client.momentum=0.5",
        "model=small_cnn model.hidden=[6] model.dropout=0.3 client.augmentation=crop_flip",
        "model=cnn client.lr=0.001 client.batch_size=10",
    ],
)
def test_batched_and_sequential_replies_are_equal(tmp_path: Path, words: str) -> None:
    """Batched and sequential clients reply with the same models to 1e-5."""
    rng = np.random.default_rng(0)
    x, y = rng.integers(256, size=(40, 16, 16), dtype=np.uint8), np.arange(40) % 2
    np.savez(tmp_path / "data.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    overrides = (
        f"data=npz data.path={tmp_path}/data.npz data.num_clients=4 data.num_priority=2 "
        f"data.partition=shards data.shard_size=5 client.device=cpu client.local_epochs=1 {words}"
    )
    settings = compose_settings("custom", overrides).settings
    network = build_model(settings.model, (1, 16, 16), 2, settings.seed)
    received = {name: tensor.numpy() for name, tensor in network.state_dict().items()}
    request = TrainRequest(1, RoundPlan((0, 1, 2, 3)), (False,) * 4, Objective(1.0, 0.5))
    content = encode_train_request(encode_arrays(received), request)
    batched, sequential = (
        decode_train_reply(
            send_requests(
                make_grid(1, f"{overrides} client.batching={batching}"),
                MessageType.TRAIN,
                {1: content},
            )[0].content
        )
        for batching in ("batched", "sequential")
    )
    assert len(batched) == len(sequential) == 4
    for result, expected in zip(batched, sequential, strict=True):
        assert get_arrays(result).keys() == received.keys()
        assert_same_result(result, expected, 1e-5)


# --- evaluate --------------------------------------------------------------------------------


def evaluate_request(
    clients: tuple[int, ...], measure_train: tuple[bool, ...], *, measure_test: bool
) -> RecordDict:
    return encode_evaluate_request(
        record(),
        EvaluateRequest(1, clients, measure_train, (measure_test,) * len(clients)),
    )


def test_evaluation_measures_the_requested_splits_of_each_client() -> None:
    """Each client's metrics are of that client's splits; those not requested are NaN."""
    request = evaluate_request((0, 3), (True, False), measure_test=True)
    one, other = decode_evaluate_reply(
        send_requests(make_grid(1), MessageType.EVALUATE, {1: request})[0].content
    )
    for result, k in ((one, 0), (other, 3)):
        client_data = get_data(k)
        expected: dict[str, float] = {"num-examples": len(client_data.y_train)}
        if k == 0:
            expected |= dict(zip(("loss", "accuracy"), evaluate_broadcast(k, "train"), strict=True))
        test_loss, test_accuracy = evaluate_broadcast(k, "test")
        expected |= {
            "test-num-examples": len(client_data.y_test),
            "test-loss": test_loss,
            "test-accuracy": test_accuracy,
        }
        assert (result.client, result.status) == (k, Status.DONE)
        assert to_metrics(result) == pytest.approx(expected, abs=1e-6)


def test_evaluation_of_training_parts_only() -> None:
    """Without a request for the test split its metrics are absent."""
    request = evaluate_request((1,), (True,), measure_test=False)
    result = decode_evaluate_reply(
        send_requests(make_grid(1), MessageType.EVALUATE, {1: request})[0].content
    )[0]
    assert to_metrics(result).keys() == {"num-examples", "loss", "accuracy"}


def test_evaluation_between_rounds_changes_no_training() -> None:
    """A node that evaluated trains as one that did not."""
    expected = train_clients(1)
    grid = make_grid(1)
    request = evaluate_request((0, 1, 2, 3, 4), (True,) * 5, measure_test=True)
    send_requests(grid, MessageType.EVALUATE, {1: request})
    reply = send_requests(grid, MessageType.TRAIN, {1: train_request((0, 1, 2, 3, 4))})[0]
    for result in decode_train_reply(reply.content):
        assert_same_result(result, expected[result.client or 0])


def test_another_run_config_is_another_node() -> None:
    """A process that serves two runs in turn uses each one's settings."""
    first = train_clients(1)
    other = OVERRIDES.replace(f"seed={SEED}", f"seed={SEED + 1}")
    reply = send_requests(make_grid(1, other), MessageType.TRAIN, {1: train_request((0, 1))})[0]
    changed = decode_train_reply(reply.content)[0]
    assert not np.array_equal(
        get_arrays(changed)["linear.bias"], get_arrays(first[0])["linear.bias"]
    )
    assert_same_result(train_clients(1)[0], first[0])


@pytest.mark.slow
def test_a_message_imports_what_it_needs() -> None:
    """A deployed node starts a process for each: neither imports nor their collection are free."""
    command = [sys.executable, "-c", MESSAGES]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    before, after, collected = done.stdout.splitlines()
    assert (before, after) == ("[]", "[]")
    assert collected == "False"
