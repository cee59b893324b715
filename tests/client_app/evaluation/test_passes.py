"""Evaluation of several clients in one pass against a NumPy reference."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from fedquorum.metrics.calibration import UNITS_PER_BIN, add_bins
from fedquorum.rules.metrics import METRICS
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import nn

from client_app.data.base import IGNORE_INDEX
from client_app.evaluation import passes as evaluation
from client_app.evaluation.passes import ClientMetrics, evaluate_clients
from client_app.losses import (
    BinaryCrossEntropy,
    CrossEntropy,
    SequenceCrossEntropy,
    SquaredError,
    Task,
)
from client_app.metrics import compute_metric
from client_app.models import CNN, LogisticRegression
from tests.cases import limit_examples
from tests.client_app.clients import EachToken
from tests.reference import calibration, losses, sgd

FEATURES, CLASSES = 6, 7
OF_CLASSES = [name for name, one in METRICS.items() if not one.is_regression]
FURTHER = [name for name in OF_CLASSES if name not in evaluation.BASIC_METRICS]


def make_problem(n: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    rng = np.random.default_rng(n)
    return rng.standard_normal((n, FEATURES)), rng.integers(CLASSES, size=n)


def make_model(precision: torch.dtype) -> LogisticRegression:
    rng = np.random.default_rng(3)
    model = LogisticRegression((FEATURES,), CLASSES).to(precision)
    for tensor in model.state_dict().values():
        tensor.copy_(torch.from_numpy(rng.standard_normal(tuple(tensor.shape))))
    return model


def get_weights(model: nn.Module) -> sgd.Softmax:
    return sgd.read([tensor.numpy().copy() for tensor in model.state_dict().values()])


def evaluate_alone(
    model: nn.Module, x: torch.Tensor, y: torch.Tensor, task: Task | None = None, name: str = "loss"
) -> ClientMetrics:
    """Return what a client measures that has these rows, all there are."""
    (evaluate,) = evaluate_clients(model, x, y, [len(y)], task=task, metric_name=name)
    return evaluate


def make_sequences(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return sequences of length 5, of which some targets are none, and all of the first."""
    rng = np.random.default_rng(n)
    y = rng.integers(CLASSES, size=(n, 5))
    y[rng.random((n, 5)) < 0.3] = IGNORE_INDEX
    y[0] = IGNORE_INDEX
    return torch.from_numpy(rng.standard_normal((n, 5, FEATURES))), torch.from_numpy(y)


# --- one client ------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 23, 300])
def test_evaluate_is_the_formula(n: int) -> None:
    """Mean cross entropy, accuracy and count are those of the formula, sample by sample."""
    x, y = make_problem(n)
    model = make_model(torch.float64)
    loss, accuracy = sgd.measure(get_weights(model), x, y)
    evaluate = evaluate_alone(model, torch.from_numpy(x), torch.from_numpy(y))
    assert evaluate.num_examples == n
    assert evaluate.loss == pytest.approx(loss, abs=1e-12)
    assert evaluate.accuracy == accuracy


def test_evaluate_survives_huge_logits() -> None:
    """A confident wrong model has a large finite loss, not inf or NaN."""
    model = LogisticRegression((1,), 2)
    model.load_state_dict(
        {"linear.weight": torch.tensor([[1e6], [0.0]]), "linear.bias": torch.zeros(2)}
    )
    evaluate = evaluate_alone(model, torch.ones(3, 1), torch.tensor([1, 1, 0]))
    assert evaluate.loss == pytest.approx(2e6 / 3)
    assert evaluate.accuracy == 1 / 3


@pytest.mark.parametrize("chunk", [1, 7, 23, 24])
def test_evaluate_in_chunks(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The size of the chunks, also with a smaller last one, does not change the measure."""
    x, y = make_problem(23)
    model = make_model(torch.float64)
    loss, accuracy = sgd.measure(get_weights(model), x, y)
    sizes: list[int] = []
    model.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
    monkeypatch.setattr(evaluation, "MAX_PREDICTIONS", chunk)
    evaluate = evaluate_alone(model, torch.from_numpy(x), torch.from_numpy(y))
    assert sum(sizes) == 23
    assert max(sizes) == min(chunk, 23)
    assert evaluate.num_examples == 23
    assert evaluate.loss == pytest.approx(loss, abs=1e-12)
    assert evaluate.accuracy == accuracy


def test_evaluate_changes_nothing() -> None:
    """Evaluation leaves parameters, buffers and gradients as they are."""
    model = CNN((1, 16, 16), CLASSES)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    evaluate_alone(model, torch.rand(5, 1, 16, 16), torch.arange(5))
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])
    assert all(parameter.grad is None for parameter in model.parameters())


def test_evaluating_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loss and accuracy are means over all targets; few sequences at once where they are long."""
    x, y = make_sequences(23)
    model = EachToken(FEATURES, CLASSES)
    monkeypatch.setattr(evaluation, "MAX_PREDICTIONS", 20)
    evaluate = evaluate_alone(model, x, y, SequenceCrossEntropy())
    assert model.rows == [4] * 5 + [3]
    sums = losses.sequence(model(x).detach().numpy(), y.numpy(), IGNORE_INDEX)
    assert evaluate.num_examples == 23
    assert evaluate.loss == pytest.approx(sums.loss / sums.weight, abs=1e-12)
    assert evaluate.accuracy == sums.correct / sums.count
    assert sums.count < 23 * 5


def test_large_inputs_are_evaluated_few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However large one input is, it is evaluated."""
    x, y = (torch.from_numpy(a) for a in make_problem(7))
    model = make_model(torch.float64)
    sizes: list[int] = []
    model.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
    for numbers, expected in {3 * FEATURES: [3, 3, 1], 1: [1] * 7}.items():
        sizes.clear()
        monkeypatch.setattr(evaluation, "MAX_INPUT_NUMBERS", numbers)
        evaluate_alone(model, x, y)
        assert sizes == expected


def test_evaluating_where_there_is_nothing() -> None:
    """No sample: nothing is defined. No target or weight: loss 0. Numbers have no accuracy."""
    x, y = (torch.from_numpy(a) for a in make_problem(4))
    assert_nothing(evaluate_alone(make_model(torch.float64), x[:0], y[:0]))
    x, y = make_sequences(3)
    each_token = EachToken(FEATURES, CLASSES)
    evaluate = evaluate_alone(
        each_token, x, torch.full_like(y, IGNORE_INDEX), SequenceCrossEntropy()
    )
    assert evaluate.loss == 0
    assert math.isnan(evaluate.accuracy)
    model = nn.Linear(FEATURES, 1, dtype=torch.float64)
    x, targets = torch.from_numpy(make_problem(9)[0]), torch.linspace(-1, 1, 9, dtype=torch.float64)
    measurement = evaluate_alone(model, x, targets, SquaredError())
    assert measurement.loss == pytest.approx(
        float(((model(x)[:, 0] - targets) ** 2).mean().detach())
    )
    assert math.isnan(measurement.accuracy)


def assert_nothing(measurement: ClientMetrics) -> None:
    assert measurement.num_examples == 0
    assert math.isnan(measurement.loss)
    assert math.isnan(measurement.accuracy)
    assert math.isnan(measurement.metric)


# --- several clients -------------------------------------------------------------------------


def get_values(measurement: ClientMetrics) -> tuple[Any, ...]:
    return measurement.num_examples, measurement.loss, measurement.accuracy, measurement.metric


def split_rows(tensor: torch.Tensor, counts: list[int]) -> list[torch.Tensor]:
    return list(tensor.split(counts))


@pytest.mark.parametrize("name", OF_CLASSES)
@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=6).filter(lambda n: sum(n) > 0),
    st.sampled_from([1, 4, 4096]),
)
@limit_examples(15)
def test_clients_evaluated_together_equal_each_alone(
    name: str, counts: list[int], chunk: int
) -> None:
    """Any numbers of rows, none among them, whichever rows pass through the model at once."""
    x, y = (torch.from_numpy(a) for a in make_problem(sum(counts)))
    model = make_model(torch.float64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluation, "MAX_PREDICTIONS", chunk)
        batched = evaluate_clients(model, x, y, counts, metric_name=name)
    metrics = zip(batched, split_rows(x, counts), split_rows(y, counts), strict=True)
    for evaluate, client_x, client_y in metrics:
        expected = evaluate_alone(model, client_x, client_y, name=name)
        assert get_values(evaluate) == pytest.approx(get_values(expected), abs=1e-12, nan_ok=True)


def test_clients_without_samples() -> None:
    """Before, between and after others they measure nothing, and change nothing of theirs."""
    x, y = make_problem(11)
    model = make_model(torch.float64)
    counts = [0, 4, 0, 0, 7, 0]
    measures = evaluate_clients(
        model, torch.from_numpy(x), torch.from_numpy(y), counts, metric_name="f1"
    )
    for n, evaluate in zip(counts, measures, strict=True):
        if n == 0:
            assert_nothing(evaluate)
    softmax = get_weights(model)
    first, second = sgd.measure(softmax, x[:4], y[:4]), sgd.measure(softmax, x[4:], y[4:])
    assert [measures[1].loss, measures[4].loss] == pytest.approx([first[0], second[0]], abs=1e-12)
    assert [measures[1].accuracy, measures[4].accuracy] == [first[1], second[1]]


@pytest.mark.parametrize("name", FURTHER)
def test_a_metric_is_of_each_clients_own_predictions(name: str) -> None:
    """It is that of the client's logits and labels alone, and differs between clients."""
    x, y = (torch.from_numpy(a) for a in make_problem(60))
    model = make_model(torch.float64)
    measures = evaluate_clients(model, x, y, [25, 35], metric_name=name)
    logits = model(x).detach()
    expected = [
        *compute_metric(name, logits[:25], y[:25], [25]),
        *compute_metric(name, logits[25:], y[25:], [35]),
    ]
    assert [evaluate.metric for evaluate in measures] == pytest.approx(expected, abs=1e-12)
    assert expected[0] != expected[1]


@pytest.mark.parametrize("name", sorted(evaluation.BASIC_METRICS))
def test_accuracy_and_loss_are_no_further_metric(name: str) -> None:
    """They are measured in any case, and so the metric beside is NaN."""
    x, y = (torch.from_numpy(a) for a in make_problem(5))
    assert math.isnan(evaluate_alone(make_model(torch.float64), x, y, name=name).metric)


def test_weighted_classes_of_several_clients() -> None:
    """Each client's mean divides by its own weights; where they are all 0 its loss is 0."""
    class_weights = torch.tensor([0.5, 2.0, 0.0, 1.0, 1.0, 3.0, 1.0], dtype=torch.float64)
    x, y = (torch.from_numpy(a) for a in make_problem(12))
    y[8:] = 2
    model = make_model(torch.float64)
    first, second = evaluate_clients(model, x, y, [8, 4], task=CrossEntropy(class_weights))
    table = get_weights(model).log_probabilities(x.numpy())
    sample_weights = class_weights.numpy()[y[:8]]
    mean = -(sample_weights * table[np.arange(8), y[:8]]).sum() / sample_weights.sum()
    assert first.loss == pytest.approx(mean, abs=1e-12)
    assert second.loss == 0


def test_sequences_of_several_clients() -> None:
    """Each client's means are over its own targets."""
    x, y = make_sequences(10)
    model = EachToken(FEATURES, CLASSES)
    for evaluate, rows in zip(
        evaluate_clients(model, x, y, [1, 9], task=SequenceCrossEntropy()),
        (slice(0, 1), slice(1, 10)),
        strict=True,
    ):
        sums = losses.sequence(model(x[rows]).detach().numpy(), y[rows].numpy(), IGNORE_INDEX)
        loss = sums.loss / sums.weight if sums.weight else 0.0
        accuracy = sums.correct / sums.count if sums.count else math.nan
        found = (evaluate.num_examples, evaluate.loss, evaluate.accuracy)
        assert found == pytest.approx((rows.stop - rows.start, loss, accuracy), nan_ok=True)


def test_one_pass_for_all_clients() -> None:
    """The model sees the rows of all clients at once."""
    x, y = (torch.from_numpy(a) for a in make_problem(30))
    sizes: list[int] = []
    model = make_model(torch.float64)
    model.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
    evaluate_clients(model, x, y, [10, 5, 15])
    assert sizes == [30]


# --- calibration -----------------------------------------------------------------------------


class PassThrough(nn.Module):
    """A model whose outputs are its inputs."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def sum_bins(
    logits: torch.Tensor, y: torch.Tensor, counts: list[int], task: Task | None = None
) -> list[bytes]:
    """Return the clients' sums of bins of these logits."""
    found = evaluate_clients(PassThrough(), logits, y, counts, task=task, has_calibration=True)
    return [one.calibration for one in found]


@pytest.mark.parametrize("classes", [2, 3, 10, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_calibration_is_that_of_pooled_rows(
    classes: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the clients, the passes and the chunks of probabilities are: the same bits."""
    rng = np.random.default_rng(classes)
    logits = torch.from_numpy(rng.normal(scale=2.0, size=(300, classes))).to(dtype)
    labels = torch.from_numpy(rng.integers(classes, size=300))
    probabilities = calibration.compute_softmax(logits.double().numpy())
    expected = calibration.compute_ece(probabilities, labels.numpy())
    pooled = sum_bins(logits, labels, [300])
    assert add_bins(pooled).ece == pytest.approx(expected, abs=1e-6)
    accuracy = float((logits.argmax(dim=1) == labels).float().mean())
    monkeypatch.setattr(evaluation, "MAX_PREDICTIONS", 37)
    monkeypatch.setattr(evaluation, "MAX_PROBABILITIES", 5 * classes)
    of_clients = sum_bins(logits, labels, [1, 0, 99, 200])
    assert of_clients[1] == b""
    assert add_bins(of_clients).ece == add_bins(pooled).ece
    assert add_bins(of_clients).correct.sum() / 300 == pytest.approx(accuracy, abs=1e-7)


def test_one_output_has_the_confidence_of_two_classes() -> None:
    """A logit z of class 1 is right with probability sigmoid(z), its opposite with the rest."""
    z = torch.tensor([[0.0], [2.0], [-3.0], [40.0], [-800.0]], dtype=torch.float64)
    y = torch.tensor([0, 0, 0, 1, 1])
    probabilities = calibration.compute_softmax(torch.cat([torch.zeros_like(z), z], 1).numpy())
    expected = calibration.compute_ece(probabilities, y.numpy())
    found = add_bins(sum_bins(z, y, [5], BinaryCrossEntropy()))
    assert found.ece == pytest.approx(expected, abs=1e-6)
    assert (found.count[14], found.correct[14]) == (3, 2)  # of confidence 0.95, 1 and 1
    assert found.count[7] == 1  # 0.5


@pytest.mark.parametrize("classes", [1, 3, 5, 15])
def test_equal_outputs_are_on_an_edge(classes: int) -> None:
    """An untrained model's confidence is 1 / c, at the upper end of a bin; of one class it is 1."""
    (bins,) = sum_bins(torch.full((4, classes), 0.3), torch.zeros(4, dtype=torch.int64), [4])
    found = add_bins([bins])
    edge = 15 // classes
    assert found.count[edge - 1] == 4
    assert found.confidence[edge - 1] == 4 * edge * UNITS_PER_BIN


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_client_without_probabilities_has_no_calibration(value: float) -> None:
    """A prediction of NaN leaves the client out, and the others as they are."""
    x, y = (torch.from_numpy(a) for a in make_problem(9))
    x = torch.cat([x, x[:, :1]], dim=1)
    expected = sum_bins(x, y, [2, 3, 4])
    x[3, 1] = value
    found = sum_bins(x, y, [2, 3, 4])
    assert found == [expected[0], b"", expected[2]]
    assert all(expected)
    x[3, 1] = -math.inf  # a class that is never predicted
    assert all(sum_bins(x, y, [2, 3, 4]))


def test_the_calibration_of_sequences_is_over_targets() -> None:
    """Each target is a prediction; positions without one do not count."""
    x, y = make_sequences(10)
    logits = torch.cat([x, x[..., :1]], dim=2)
    task = SequenceCrossEntropy()
    one, others = sum_bins(logits, y, [1, 9], task)
    assert one == b""  # its sequence has no target
    is_target = y != IGNORE_INDEX
    probabilities = calibration.compute_softmax(logits[is_target].numpy())
    expected = calibration.compute_ece(probabilities, y[is_target].numpy())
    assert add_bins([others]).ece == pytest.approx(expected, abs=1e-6)
    assert add_bins([others]).count.sum() == int(is_target.sum())


def test_numbers_have_no_calibration() -> None:
    """Nor is it summed unless it is requested."""
    x, y = (torch.from_numpy(a) for a in make_problem(5))
    assert sum_bins(x[:, :1], y.double(), [5], SquaredError()) == [b""]
    assert evaluate_alone(PassThrough(), x, y % FEATURES).calibration == b""
