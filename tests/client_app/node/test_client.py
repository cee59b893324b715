"""One client as a NumPyClient."""

import math
from collections.abc import Sequence
from itertools import repeat
from typing import Any

import numpy as np
import pytest
import torch
from fedquorum.flower.codec import EvaluateTask
from fedquorum.flower.validation import find_evaluation_problem
from fedquorum.rng import make_generator
from numpy.typing import NDArray
from torch import nn

from client_app.data import ClientData
from client_app.evaluation.batched import DenseEvaluator
from client_app.models import LogisticRegression, SmallCNN
from client_app.node.client import FederatedClient
from client_app.training.local_sgd import LocalSGDConfig
from tests.client_app.clients import make_federated_client
from tests.reference import sgd

FEATURES, CLASSES, SEED = 5, 3, 11
HOW = LocalSGDConfig(lr=0.1, batch_size=4, local_epochs=2, momentum=0.5, weight_decay=0.01)


def data(seed: int, train: int = 18, test: int = 7) -> ClientData:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((train + test, FEATURES)).astype(np.float32)
    y = rng.integers(CLASSES, size=train + test)
    return ClientData(x[:train], y[:train], x[train:], y[train:])


def client(
    client_id: int = 2,
    model: nn.Module | None = None,
    client_data: ClientData | None = None,
    how: LocalSGDConfig = HOW,
) -> FederatedClient:
    model = model or LogisticRegression((FEATURES,), CLASSES)
    return make_federated_client(client_id, client_data or data(client_id), model, how, SEED)


def broadcast(seed: int = 0) -> list[NDArray[Any]]:
    rng = np.random.default_rng(seed)
    return [
        rng.standard_normal((CLASSES, FEATURES)).astype(np.float32),
        rng.standard_normal(CLASSES).astype(np.float32),
    ]


def request(round_number: int = 1, **config: Any) -> dict[str, Any]:
    """Return the config of a train request, with keys as on the wire."""
    common = {"server-round": round_number, "global-loss": 1.0, "global-accuracy": 0.5}
    return common | {key.replace("_", "-"): value for key, value in config.items()}


def make_gated_request(
    criterion: str, epsilon: float, loss: float, accuracy: float
) -> dict[str, Any]:
    return request(
        priority=False,
        criterion=criterion,
        epsilon=epsilon,
        global_loss=loss,
        global_accuracy=accuracy,
    )


def evaluate_broadcast(client_id: int = 2) -> tuple[float, float]:
    """Return loss and accuracy of the broadcast model on a client's training split."""
    client_data = data(client_id)
    return sgd.measure(sgd.read(broadcast()), client_data.x_train, client_data.y_train)


def test_get_properties_returns_only_the_id() -> None:
    """Asked for its properties a client gives its id and nothing else."""
    assert client(2).get_properties({"anything": 1}) == {"client-id": 2}


LOSS, ACCURACY = evaluate_broadcast()
TRAIN_KEYS = {"num-examples", "loss", "accuracy"}


@pytest.mark.parametrize(
    ("config", "silent"),
    [
        (make_gated_request("loss", 0.2, LOSS - 0.3, 0.0), True),
        (make_gated_request("loss", 0.2, LOSS - 0.1, 1.0), False),
        (make_gated_request("loss", 0.0, LOSS + 9.0, 0.0), True),
        (make_gated_request("loss", math.inf, 0.0, 1.0), False),
        (make_gated_request("loss", 0.2, math.nan, 0.0), True),
        (make_gated_request("accuracy", 0.2, 9.0, ACCURACY + 0.3), True),
        (make_gated_request("accuracy", 0.2, 0.0, ACCURACY + 0.1), False),
        (make_gated_request("accuracy", 0.2, 0.0, ACCURACY + 0.2 - 1e-9), False),
        (make_gated_request("loss", 0.0, 0.0, 1.0) | {"priority": True}, False),
        (request(priority=False), False),
        (request(), False),
    ],
)
def test_who_trains(config: dict[str, Any], silent: bool) -> None:
    """The gate is for non-priority clients of a gated strategy, by the received model."""
    arrays, num_examples, metrics = client().fit(broadcast(), config)
    if silent:
        assert (arrays, num_examples, metrics) == ([], 0, {"status": 1})
        assert type(metrics["status"]) is int
    else:
        assert len(arrays) == 2
        assert num_examples == 18
        assert metrics.keys() == TRAIN_KEYS


def test_fit_evaluates_the_received_model() -> None:
    """Loss and accuracy are of the model before training, on the training split."""
    _, _, metrics = client().fit(broadcast(), request())
    assert metrics["loss"] == pytest.approx(LOSS, abs=1e-6)
    assert metrics["accuracy"] == ACCURACY


@pytest.fixture
def row_counts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the number of evaluated rows, client by client."""
    rows: list[int] = []
    evaluate = DenseEvaluator.evaluate

    def note_rows(
        self: DenseEvaluator, state: Any, clients: Sequence[int], *rest: Any, **options: Any
    ) -> Any:
        found = evaluate(self, state, clients, *rest, **options)
        rows.extend(one.num_examples for one in found)
        return found

    monkeypatch.setattr(DenseEvaluator, "evaluate", note_rows)
    return rows


@pytest.mark.parametrize("priority", [True, False])
@pytest.mark.parametrize("gate", [False, True])
@pytest.mark.parametrize("measures", [False, True])
def test_the_evaluation_can_be_skipped(
    priority: bool, gate: bool, measures: bool, row_counts: list[int]
) -> None:
    """Without a gate the evaluation can be skipped, and the model is the same."""
    config = make_gated_request("loss", math.inf, 0.0, 1.0) if gate else request()
    arrays, num_examples, metrics = client().fit(
        broadcast(), config | {"priority": priority, "measures-loss": measures}
    )
    assert num_examples == 18
    said: dict[str, float] = {"num-examples": 18}
    if gate or measures:
        said |= {"loss": LOSS, "accuracy": ACCURACY}
    assert metrics == pytest.approx(said, abs=1e-6)
    assert row_counts == [18] * int(gate or measures)
    for array, expected in zip(arrays, client().fit(broadcast(), request())[0], strict=True):
        np.testing.assert_array_equal(array, expected)


@pytest.mark.parametrize("round_number", [1, 2])
def test_fit_trains_by_the_formula(round_number: int) -> None:
    """The arrays are SGD from the received model with the batches of (seed, round, client)."""
    client_data = data(2)
    expected = sgd.train(
        sgd.read(broadcast()),
        client_data.x_train,
        client_data.y_train,
        make_generator(SEED, "batches", round_number=round_number, client=2),
        rates=repeat(0.1),
        batch_size=4,
        local_epochs=2,
        momentum=0.5,
        weight_decay=0.01,
    )
    arrays, _, _ = client().fit(broadcast(), request(round_number))
    assert [a.shape for a in arrays] == [(CLASSES, FEATURES), (CLASSES,)]
    assert [a.dtype for a in arrays] == [np.float32, np.float32]
    np.testing.assert_allclose(arrays[0], expected.weight, rtol=0, atol=1e-5)
    np.testing.assert_allclose(arrays[1], expected.bias, rtol=0, atol=1e-5)


def test_batches_follow_from_round_and_client() -> None:
    """Round and id decide the order of batches: the same repeats, another differs."""
    client_data = data(2)
    base = client(2, client_data=client_data).fit(broadcast(), request(3))[0]
    again = client(2, client_data=client_data).fit(broadcast(), request(3))[0]
    other_round = client(2, client_data=client_data).fit(broadcast(), request(4))[0]
    other_client = client(5, client_data=client_data).fit(broadcast(), request(3))[0]
    np.testing.assert_array_equal(base[0], again[0])
    assert not np.array_equal(base[0], other_round[0])
    assert not np.array_equal(base[0], other_client[0])


def test_a_client_remembers_nothing() -> None:
    """A round does not depend on earlier rounds."""
    busy, fresh = client(), client()
    for round_number in (1, 2):
        busy.fit(broadcast(7), request(round_number))
    busy.evaluate(broadcast(8), {})
    for a, b in zip(
        busy.fit(broadcast(), request(3))[0], fresh.fit(broadcast(), request(3))[0], strict=True
    ):
        np.testing.assert_array_equal(a, b)


def with_batch_norm() -> nn.Module:
    return nn.Sequential(nn.BatchNorm1d(FEATURES), nn.Dropout(0.0), nn.Linear(FEATURES, CLASSES))


@pytest.mark.parametrize(
    "make", [lambda: LogisticRegression((FEATURES,), CLASSES), with_batch_norm]
)
def test_shared_model_leaks_nothing(make: Any) -> None:
    """Clients that share a model object reply as clients with separate ones."""
    torch.manual_seed(0)
    state = [tensor.numpy().copy() for tensor in make().state_dict().values()]
    shared = make()
    answers, expected = [], []
    for client_id in (1, 2, 1):
        answers.append(client(client_id, shared).fit(state, request()))
        expected.append(client(client_id, make()).fit(state, request()))
    for (arrays, count, metrics), (expected_arrays, expected_count, expected_metrics) in zip(
        answers, expected, strict=True
    ):
        assert (count, metrics) == (expected_count, expected_metrics)
        assert len(arrays) == len(state)
        for a, b, start in zip(arrays, expected_arrays, state, strict=True):
            np.testing.assert_array_equal(a, b)
            assert (a.shape, a.dtype) == (start.shape, start.dtype)
    assert not np.array_equal(answers[0][0][-1], answers[1][0][-1])


def test_what_is_dropped_and_augmented_follows_from_round_and_client() -> None:
    """Dropout and augmentation repeat in any order of clients; another round or id differs."""
    rng = np.random.default_rng(0)
    x, y = rng.random((9, 1, 8, 8), dtype=np.float32), np.arange(9) % CLASSES
    images, model = ClientData(x, y, x, y), SmallCNN((1, 8, 8), CLASSES, [6], dropout=0.5)
    how = LocalSGDConfig(0.1, 9, 1, augmentation="crop_flip")
    state = [tensor.numpy().copy() for tensor in model.state_dict().values()]
    whom = [(1, 1), (2, 1), (1, 2)]

    def results(order: list[tuple[int, int]]) -> dict[tuple[int, int], NDArray[Any]]:
        return {
            (k, t): client(k, model, images, how).fit(state, request(t))[0][-2] for k, t in order
        }

    first, again = results(whom), results(whom[::-1])
    for key in whom:
        np.testing.assert_array_equal(first[key], again[key])
    assert not np.array_equal(first[1, 1], first[2, 1])
    assert not np.array_equal(first[1, 1], first[1, 2])


def test_received_arrays_are_not_written_to() -> None:
    """Training leaves the arrays that came with the request as they are."""
    parameters = broadcast()
    client().fit(parameters, request())
    for array, original in zip(parameters, broadcast(), strict=True):
        np.testing.assert_array_equal(array, original)


@pytest.mark.parametrize("arrays", [broadcast()[:1], [*broadcast(), np.zeros(3)]])
def test_wrong_number_of_arrays(arrays: list[NDArray[Any]]) -> None:
    """Arrays that are not the model's raise instead of training something else."""
    with pytest.raises(ValueError, match="zip"):
        client().fit(arrays, request())


TEST_KEYS = {"test-num-examples", "test-loss", "test-accuracy"}


@pytest.mark.parametrize(
    ("config", "keys", "count"),
    [
        ({}, TRAIN_KEYS | TEST_KEYS, 7),
        ({"train-part": True, "test-part": True}, TRAIN_KEYS | TEST_KEYS, 7),
        ({"train-part": True, "test-part": False}, TRAIN_KEYS, 18),
        ({"train-part": False, "test-part": True}, {"num-examples"} | TEST_KEYS, 7),
        ({"train-part": False, "test-part": False}, {"num-examples"}, 0),
    ],
)
def test_evaluate_returns_the_requested_metrics(
    config: dict[str, Any], keys: set[str], count: int
) -> None:
    """The metrics hold only the requested values, which equal the formula."""
    client_data = data(2)
    model = sgd.read(broadcast())
    train = sgd.measure(model, client_data.x_train, client_data.y_train)
    test = sgd.measure(model, client_data.x_test, client_data.y_test)
    expected = {
        "num-examples": 18,
        "loss": train[0],
        "accuracy": train[1],
        "test-num-examples": 7,
        "test-loss": test[0],
        "test-accuracy": test[1],
    }
    loss, num_examples, metrics = client().evaluate(broadcast(), config)
    assert metrics == pytest.approx({key: expected[key] for key in keys}, abs=1e-6)
    assert num_examples == count
    assert loss == pytest.approx({7: test[0], 18: train[0], 0: 0.0}[count], abs=1e-6)


def test_a_client_without_test_rows_says_nothing_of_them() -> None:
    """Its training loss counts: 0 test rows would make the whole evaluation unusable."""
    without = client(client_data=data(2, test=0))
    loss, num_examples, metrics = without.evaluate(broadcast(), {})
    assert metrics.keys() == TRAIN_KEYS
    assert (math.isnan(loss), num_examples) == (True, 0)
    result = without.evaluate_task(broadcast(), EvaluateTask(2))
    assert find_evaluation_problem(result) is None


def test_evaluate_touches_only_the_requested_split(row_counts: list[int]) -> None:
    """Only the requested split is evaluated."""
    federated = client()
    federated.evaluate(broadcast(), {"train-part": False, "test-part": True})
    federated.evaluate(broadcast(), {"train-part": True, "test-part": False})
    federated.evaluate(broadcast(), {"train-part": False, "test-part": False})
    assert row_counts == [7, 18]


@pytest.mark.parametrize("wrong", [np.zeros((1, 1)), np.zeros(3)])
def test_a_model_of_another_shape_is_refused(wrong: NDArray[Any]) -> None:
    """Arrays that would broadcast to the model's shape are not taken for it."""
    parameters = broadcast()
    with pytest.raises(RuntimeError, match="size mismatch"):
        client().fit([wrong.astype(np.float32), *parameters[1:]], request())
