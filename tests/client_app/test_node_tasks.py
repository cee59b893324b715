"""What a node does with targets of every kind, from the settings to what a client reports."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from fedquorum.flower.codec import EvaluateTask
from numpy.typing import NDArray

from client_app.data import ClientData
from client_app.data.base import (
    IGNORE_INDEX,
    Labels,
    PooledSplit,
    Split,
    Target,
    build_pooled_split,
    infer_target,
    select_split,
)
from client_app.data.coding.arrays import ArrayCoding
from client_app.data.coding.base import Coding
from client_app.data.summary import NO_SCALES, DataSummary
from client_app.losses import (
    BinaryCrossEntropy,
    CrossEntropy,
    SequenceCrossEntropy,
    SquaredError,
    build_task,
)
from client_app.models import build_model_for
from client_app.node import node
from client_app.node.node import Node
from conf import SettingsError, compose_settings
from tests.reference import losses

LENGTH, TOKENS = 6, 9


@dataclass(frozen=True)
class Data:
    """Three clients with targets of some kind."""

    clients: tuple[ClientData, ...]
    input_shape: tuple[int, ...]
    num_classes: int
    num_tokens: int | None = None
    priority: tuple[int, ...] = (0, 1, 2)
    scales = NO_SCALES

    @property
    def num_clients(self) -> int:
        return len(self.clients)

    @property
    def summary(self) -> DataSummary:
        return DataSummary(self.num_clients, "", "")

    client_names: tuple[str, ...] | None = None
    class_names: tuple[str, ...] | None = None

    @property
    def coding(self) -> Coding:
        return ArrayCoding(self.input_shape, "float32")

    @property
    def target(self) -> Target:
        return infer_target(self.clients[0].y_train)

    def get_client(self, client: int) -> ClientData:
        return self.clients[client]

    def get_labels(self, client: int) -> Labels:
        return self.clients[client].y_train

    def get_targets(self, client: int) -> tuple[Labels, Labels]:
        return self.clients[client].y_train, self.clients[client].y_test

    def get_pooled_split(self, split: Split, clients: Any) -> PooledSplit:
        return build_pooled_split({k: select_split(self.clients[k], split) for k in clients})


def make_data(kind: str) -> Data:
    rng = np.random.default_rng(0)

    def one(n: int) -> tuple[NDArray[Any], NDArray[Any]]:
        tokens = rng.integers(TOKENS, size=(n, LENGTH))
        if kind == "sequence":
            y = np.where(rng.random((n, LENGTH)) < 0.2, IGNORE_INDEX, rng.integers(TOKENS, size=1))
            return tokens, y
        if kind == "text":
            return tokens, (tokens == 3).any(axis=1).astype(np.int64)
        x = rng.standard_normal((n, 4)).astype(np.float32)
        if kind == "number":
            return x, x.sum(axis=1)
        return x, rng.integers(2 if kind == "two" else 7, size=n)

    clients = tuple(ClientData(*one(12 + k), *one(8)) for k in range(3))
    if kind in {"sequence", "text"}:
        return Data(clients, (LENGTH,), TOKENS if kind == "sequence" else 2, TOKENS)
    return Data(clients, (4,), {"number": 1, "two": 2}.get(kind, 7))


def make_settings(overrides: str) -> Any:
    return compose_settings("custom", f"strategy=fedavg client.batch_size=4 {overrides}").settings


DISTILBERT = "model=distilbert model.layers=1 model.width=8 model.heads=2 model.init=xavier"
# kind of data, further words -> task, number of outputs
CASES: dict[tuple[str, str], tuple[type, int]] = {
    ("classes", ""): (CrossEntropy, 7),
    ("classes", "evaluation.metric=top5"): (CrossEntropy, 7),
    ("classes", "evaluation.metric=f1 client.class_weights=balanced"): (CrossEntropy, 7),
    ("two", "client.loss=binary evaluation.metric=auroc"): (BinaryCrossEntropy, 1),
    ("two", "client.loss=binary 'client.class_weights=[1, 3]'"): (BinaryCrossEntropy, 1),
    ("text", "model=text"): (CrossEntropy, 2),
    ("text", "model=lstm evaluation.metric=f1"): (CrossEntropy, 2),
    ("text", "model=text model.dropout=0.3"): (CrossEntropy, 2),
    ("text", f"{DISTILBERT} model.dropout=0"): (CrossEntropy, 2),
    ("text", f"{DISTILBERT} model.dropout=0.01"): (CrossEntropy, 2),
    ("sequence", "model=lstm"): (SequenceCrossEntropy, TOKENS),
    ("sequence", "model=lstm evaluation.metric=top5"): (SequenceCrossEntropy, TOKENS),
    ("number", "evaluation.metric=loss client.lr=0.01"): (SquaredError, 1),
}


@pytest.mark.parametrize(("kind", "overrides"), CASES)
def test_a_client_learns_from_targets_of_every_kind(
    kind: str, overrides: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its loss falls while it trains, and what it reports is what its outputs and targets say."""
    data = make_data(kind)
    monkeypatch.setattr(node, "load_data", lambda *_: data)
    settings = make_settings(f"{overrides} client.local_epochs=20")
    task = build_task(settings, data)
    expected_task, outputs = CASES[kind, overrides]
    assert type(task) is expected_task
    client_node = Node(settings)
    client = client_node.get_client(1)
    model = build_model_for(settings, data)
    arrays = [tensor.numpy().copy() for tensor in model.state_dict().values()]
    request = {"server-round": 1, "global-loss": 1.0, "global-accuracy": 0.5}
    trained, count, before = client.fit(arrays, request)
    assert count == 13
    _, _, after = client.evaluate(trained, {})
    assert after["loss"] < 0.9 * before["loss"]

    x, y = data.clients[1].x_test, data.clients[1].y_test
    model.load_state_dict(
        {name: torch.from_numpy(a) for name, a in zip(model.state_dict(), trained, strict=True)}
    )
    with torch.no_grad():
        logits = model.eval()(torch.from_numpy(x)).double()
    assert logits.shape == (*y.shape, outputs)
    terms = task.compute_terms(logits, torch.from_numpy(y))
    loss = float(terms.loss.sum() / terms.weight.sum())
    assert after["test-loss"] == pytest.approx(loss, rel=1e-5)
    assert after["test-num-examples"] == 8
    if kind == "number":
        assert "test-accuracy" not in after
    else:
        accuracy = float(terms.correct.sum() / terms.count.sum())
        assert after["test-accuracy"] == pytest.approx(accuracy, abs=1e-6)
    assert ("test-metric" in after) == any(m in overrides for m in ("top5", "f1", "auroc"))
    assert 0 <= after.get("test-metric", 0) <= 1


def test_balanced_weights_are_of_all_clients() -> None:
    """N / (c N_j) over the training labels of all, not of the client alone."""
    data = make_data("two")
    task = build_task(make_settings("client.class_weights=balanced"), data)
    assert isinstance(task, CrossEntropy)
    assert task.class_weights is not None
    labels = np.concatenate([client_data.y_train for client_data in data.clients])
    expected = [len(labels) / (2 * (labels == c).sum()) for c in range(2)]
    assert task.class_weights.tolist() == pytest.approx(expected)
    client_data = data.clients[0]
    logits = torch.randn(len(client_data.y_train), 2, dtype=torch.float64)
    sums = losses.cross_entropy(logits.numpy(), client_data.y_train, expected)
    mean = float(task.compute_mean_loss(logits, torch.from_numpy(client_data.y_train)))
    assert mean == pytest.approx(sums.loss / sums.weight)


def test_a_device_cannot_balance(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device has only its own labels, so balanced weights are refused and a list works."""
    monkeypatch.setattr(node, "load_data", lambda *_: make_data("two"))
    message = "class_weights must be null or a list where a device hosts one client, got balanced"
    with pytest.raises(SettingsError, match=message):
        Node(make_settings("client.class_weights=balanced")).get_hosted_clients({"client-id": 1})
    node_with_list = Node(make_settings("'client.class_weights=[1, 2]'"))
    assert node_with_list.get_hosted_clients({"client-id": 1}) == (1,)


MISTAKES = {
    (
        "classes",
        "client.loss=binary",
    ): "client.loss=binary needs .* two classes, got . classes",
    ("sequence", "model=lstm client.loss=binary"): "client.loss=binary needs .* got a sequence",
    ("two", "'client.class_weights=[1, 2, 3]'"): (
        r"client.class_weights must be null, balanced or 2 numbers, .* got \[1, 2, 3\]"
    ),
    ("sequence", "model=lstm client.class_weights=balanced"): (
        "client.class_weights must be null where the target is a sequence, got balanced"
    ),
    ("number", "evaluation.metric=accuracy"): (
        "evaluation.metric must be one of rmse, mae, r2, loss where targets are numbers"
    ),
    ("number", "evaluation.metric=loss strategy=fedalign strategy.criterion=accuracy"): (
        "strategy.criterion must be loss where targets are numbers, got accuracy"
    ),
    ("number", "evaluation.metric=loss strategy=composed strategy.selection.criterion=accuracy"): (
        "strategy.selection.criterion must be loss where targets are numbers, got accuracy"
    ),
    ("two", "evaluation.metric=top5"): "evaluation.metric=top5 needs more than 5 classes, got 2",
    ("sequence", "model=text"): "model must be lstm or module where each position has a target",
    ("text", "model=mlp"): "model must be one of lstm, text, distilbert, module where inputs are t",
    ("two", "model=lstm"): "model=lstm needs inputs of tokens, got data of numbers",
}


@pytest.mark.parametrize(("kind", "overrides"), MISTAKES)
def test_settings_that_are_not_for_the_targets(
    kind: str, overrides: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused in one line, by the server and by a client, before any work."""
    monkeypatch.setattr(node, "load_data", lambda *_: make_data(kind))
    for begin in (lambda settings: build_model_for(settings, make_data(kind)), Node):
        with pytest.raises(SettingsError, match=MISTAKES[kind, overrides]) as caught:
            begin(make_settings(overrides))
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("weights", ["equal", "[]", "[0, 0]", "[1, -1]", "[1, a]", "3"])
def test_what_are_no_class_weights(weights: str) -> None:
    """Refused when composed."""
    message = "client.class_weights must be null, balanced, or a list of numbers >= 0, one above 0"
    with pytest.raises(SettingsError, match=message):
        make_settings(f"'client.class_weights={weights}'")


def test_a_diverged_model_has_no_metric(monkeypatch: pytest.MonkeyPatch) -> None:
    """NaN, which the server leaves out of its mean."""
    data = make_data("two")
    monkeypatch.setattr(node, "load_data", lambda *_: data)
    client_node = Node(make_settings("evaluation.metric=auroc"))
    arrays = [np.full((2, 4), np.nan, np.float32), np.zeros(2, np.float32)]
    metrics = client_node.get_client(0).evaluate_task(arrays, EvaluateTask(0))
    assert metrics.test_num_examples > 0
    assert math.isnan(metrics.test_metric)


@pytest.mark.parametrize("batching", ["auto", "batched"])
def test_recurrent_models_train_alone(batching: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch cannot stack them: they are not tried, so that it does not warn of that."""
    data = make_data("sequence")
    monkeypatch.setattr(node, "load_data", lambda *_: data)
    settings = make_settings(f"model=lstm client.batching={batching}")
    client_node = Node(settings)
    client_node.load_clients([0, 1, 2])
    assert not client_node.trainer.is_batched()
