"""Losses by task: against formulas, against torch, and under torch.func."""

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from client_app.data.base import IGNORE_INDEX
from client_app.losses import (
    BinaryCrossEntropy,
    CrossEntropy,
    SequenceCrossEntropy,
    SquaredError,
    Task,
    compute_balanced_weights,
)
from tests.reference import losses

N, LENGTH, CLASSES = 7, 5, 4
WEIGHTS = torch.tensor([0.5, 2.0, 0.0, 3.0], dtype=torch.float64)


def list_cases() -> dict[str, tuple[Task, torch.Tensor, torch.Tensor]]:
    """Return each task with outputs and labels, in float64."""
    draw = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return 3 * torch.randn(shape, generator=draw, dtype=torch.float64)

    def whole(high: int, *shape: int) -> torch.Tensor:
        return torch.randint(high, shape, generator=draw)

    tokens = whole(CLASSES, N, LENGTH)
    tokens[0, 2:] = IGNORE_INDEX
    tokens[3] = IGNORE_INDEX
    classes = whole(CLASSES, N)
    return {
        "cross entropy": (CrossEntropy(), normal(N, CLASSES), classes),
        "class weights": (CrossEntropy(WEIGHTS), normal(N, CLASSES), classes),
        "binary": (BinaryCrossEntropy(), normal(N, 1), whole(2, N)),
        "binary, class weights": (BinaryCrossEntropy(WEIGHTS[:2]), normal(N, 1), whole(2, N)),
        "sequence": (SequenceCrossEntropy(), normal(N, LENGTH, CLASSES), tokens),
        "number": (SquaredError(), normal(N, 1), normal(N)),
    }


def compute_reference(name: str, outputs: NDArray[np.float64], y: NDArray[np.int64]) -> losses.Sums:
    """Return the sums by the formulas, one prediction after the other."""
    weights = WEIGHTS.tolist() if "class weights" in name else None
    if name.startswith("binary"):
        return losses.binary(outputs, y, weights)
    if name == "sequence":
        return losses.sequence(outputs, y, IGNORE_INDEX)
    if name == "number":
        return losses.squared_error(outputs, y)
    return losses.cross_entropy(outputs, y, weights)


@pytest.mark.parametrize("name", list_cases())
def test_terms_are_the_formula(name: str) -> None:
    """Every sample's loss, weight and number of correct predictions are those of the formula."""
    task, outputs, y = list_cases()[name]
    terms = task.compute_terms(outputs, y)
    for i in range(N):
        expected = compute_reference(name, outputs[i : i + 1].numpy(), y[i : i + 1].numpy())
        one = [float(split[i]) for split in (terms.loss, terms.weight, terms.correct, terms.count)]
        assert one == pytest.approx(
            [expected.loss, expected.weight, expected.correct, expected.count], abs=1e-12
        )
    assert {split.shape for split in vars(terms).values()} == {(N,)}
    assert terms.weight.dtype == terms.loss.dtype == outputs.dtype
    assert terms.correct.dtype == terms.count.dtype == torch.int64


@pytest.mark.parametrize("name", list_cases())
def test_the_mean_loss_is_sum_over_sum(name: str) -> None:
    """It divides by the weights, as torch's weighted mean does."""
    task, outputs, y = list_cases()[name]
    expected = compute_reference(name, outputs.numpy(), y.numpy())
    mean = float(task.compute_mean_loss(outputs, y))
    assert mean == pytest.approx(expected.loss / expected.weight, abs=1e-12)


def test_the_mean_loss_is_torchs() -> None:
    """Plain cross entropy to the last bit; class weights and missing targets to rounding."""
    found = {
        name: (task.compute_mean_loss(o, y), o, y) for name, (task, o, y) in list_cases().items()
    }
    functional = torch.nn.functional
    mean, outputs, y = found["cross entropy"]
    assert mean == functional.cross_entropy(outputs, y)
    mean, outputs, y = found["class weights"]
    torch.testing.assert_close(mean, functional.cross_entropy(outputs, y, weight=WEIGHTS))
    mean, outputs, y = found["binary"]
    torch.testing.assert_close(
        mean, functional.binary_cross_entropy_with_logits(outputs[:, 0], y.double())
    )
    mean, outputs, y = found["sequence"]
    torch.testing.assert_close(
        mean, functional.cross_entropy(outputs.transpose(1, 2), y, ignore_index=IGNORE_INDEX)
    )
    mean, outputs, y = found["number"]
    torch.testing.assert_close(mean, functional.mse_loss(outputs[:, 0], y))


@pytest.mark.parametrize("name", list_cases())
def test_the_gradient_is_the_slope(name: str) -> None:
    """Autograd agrees with differences of the mean loss."""
    task, outputs, y = list_cases()[name]
    outputs.requires_grad_()
    assert torch.autograd.gradcheck(lambda o: task.compute_mean_loss(o, y), outputs)


@pytest.mark.parametrize("name", list_cases())
def test_tasks_under_vmap_and_grad(name: str) -> None:
    """Losses, gradients and terms of three clients at once are those of one after the other."""
    task, outputs, y = list_cases()[name]
    many, labels = torch.stack([outputs, 2 * outputs, -outputs]), torch.stack([y, y, y.flip(0)])

    def compute_masked_mean(o: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        terms = task.compute_terms(o, target)
        stored = torch.arange(N) < 5
        return (terms.loss * stored).sum() / (terms.weight * stored).sum()

    for function in (
        torch.func.grad(task.compute_mean_loss),
        torch.func.grad(compute_masked_mean),
        task.compute_mean_loss,
        lambda o, target: task.compute_terms(o, target).correct,
        lambda o, target: task.compute_terms(o, target).count,
        lambda o, target: task.compute_terms(o, target).weight,
    ):
        batched = torch.func.vmap(function)(many, labels)
        apart = torch.stack([function(o, t) for o, t in zip(many, labels, strict=True)])
        torch.testing.assert_close(batched, apart)


@pytest.mark.parametrize(
    ("task", "outputs", "y"),
    [
        (CrossEntropy(WEIGHTS), torch.randn(3, CLASSES), torch.full((3,), 2)),
        (SequenceCrossEntropy(), torch.randn(2, 3, CLASSES), torch.full((2, 3), IGNORE_INDEX)),
    ],
)
def test_a_batch_of_no_weight(task: Task, outputs: torch.Tensor, y: torch.Tensor) -> None:
    """Classes of weight 0, or no target at all: loss 0 and gradient 0, not NaN."""
    outputs.requires_grad_()
    loss = task.compute_mean_loss(outputs, y)
    loss.backward()
    assert float(loss.detach()) == 0.0
    assert outputs.grad is not None
    assert not outputs.grad.any()


@pytest.mark.parametrize("name", list_cases())
def test_huge_outputs_have_a_finite_loss(name: str) -> None:
    """A confident wrong model has a large loss, not inf or NaN."""
    task, outputs, y = list_cases()[name]
    assert math.isfinite(float(task.compute_mean_loss(1e6 * outputs, y)))


def test_scores_are_of_the_predictions() -> None:
    """For metrics each target is a row; a logit z is the two classes' 0 and z."""
    _, outputs, y = list_cases()["sequence"]
    scores, labels = SequenceCrossEntropy().select_predictions(outputs, y)
    stored = [(i, j) for i in range(N) for j in range(LENGTH) if y[i, j] != IGNORE_INDEX]
    assert torch.equal(scores, torch.stack([outputs[i, j] for i, j in stored]))
    assert labels.tolist() == [int(y[i, j]) for i, j in stored]
    _, outputs, y = list_cases()["binary"]
    scores, labels = BinaryCrossEntropy().select_predictions(outputs, y)
    torch.testing.assert_close(scores.softmax(dim=1)[:, 1], outputs[:, 0].sigmoid())
    assert torch.equal(labels, y)


def test_balanced_weights() -> None:
    """N / c for each class that is there: all have the same total weight."""
    counts = torch.tensor([1, 0, 30, 9])
    weights = compute_balanced_weights(counts)
    torch.testing.assert_close(weights * counts, torch.tensor([10.0, 0.0, 10.0, 10.0]))
