"""A client's model and metrics have the same bits, whichever clients train with it.

Problems are drawn by a seed, so that sizes meet that nobody thought of. A product of one row, one
column or one client takes another path in the libraries below, so those are drawn often.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from client_app.data.base import ClientData
from client_app.data.examples import Examples
from client_app.evaluation.batched import DenseEvaluator
from client_app.evaluation.evaluator import CachedEvaluator
from client_app.evaluation.passes import ClientMetrics
from client_app.losses import CrossEntropy
from client_app.models import CNN, MLP, LogisticRegression, SmallCNN
from client_app.rng import seed_torch
from client_app.training.batched import BatchedTrainer
from client_app.training.batched.gradients import build_dense_gradients
from client_app.training.local_sgd import LocalSGDConfig, TheoremLR, TrainingSetup
from client_app.training.workers import WorkerPool, use_torch_threads
from tests.cases import sample_cases
from tests.client_app.clients import (
    CPU,
    copy_arrays,
    get_examples,
    make_cached_evaluator,
    make_ragged_data,
)

SEED, T = 3, 2
PLENTY = 2**27
BATCH_SIZES = (1, 2, 7, 8, 10, 32, 1000)
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "momentum": {"momentum": 0.9},
    "weight decay": {"weight_decay": 0.1},
    "proximal": {"proximal_mu": 0.3},
    "momentum, decay, proximal": {"momentum": 0.5, "weight_decay": 0.01, "proximal_mu": 0.1},
    "theorem": {"lr_schedule": "theorem", "theorem_lr": TheoremLR(L=4.0), "proximal_mu": 0.1},
    "local steps": {"local_steps": 5},
}
CASES = [(batch, option, seed) for batch in BATCH_SIZES for option in OPTIONS for seed in range(4)]


@dataclass(frozen=True)
class Problem:
    """Clients with unequal data, and a model in closed form."""

    data: dict[int, ClientData]
    model: nn.Module
    task: CrossEntropy
    dtype: torch.dtype

    def examples(self, hosted: Iterable[int]) -> Examples:
        """Return the training rows of the clients that a process hosts, in its order."""
        return get_examples({k: self.data[k] for k in hosted}, dtype=self.dtype)


def problem(rng: np.random.Generator) -> Problem:
    clients = int(rng.integers(2, 12))
    inputs = int(rng.choice([1, 1, 2, 5, 12, 13, 60, 61, 100]))
    classes = int(rng.choice([2, 3, 5, 10, 26]))
    counts = rng.integers(1, 90, clients)
    counts[rng.random(clients) < 0.2] = 1
    dtype = torch.float64 if rng.random() < 0.3 else torch.float32
    model: nn.Module = LogisticRegression((inputs,), classes)
    if rng.random() < 0.6:
        model = MLP((inputs,), classes, int(rng.choice([1, 2, 9, 16, 64])))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.from_numpy(0.3 * rng.standard_normal(parameter.shape)))
    weights = torch.from_numpy(rng.random(classes)) if rng.random() < 0.3 else None
    data = make_ragged_data(counts.tolist(), (inputs,), classes, int(rng.integers(2**31)))
    return Problem(data, model.to(dtype), CrossEntropy(weights), dtype)


def list_groups(rng: np.random.Generator, clients: int) -> list[list[int]]:
    """Return groups: each client alone, every second one, all in another order, and half."""
    shuffled = rng.permutation(clients).tolist()
    half = rng.permutation(clients)[: max(1, clients // 2)].tolist()
    separate = [[int(k)] for k in rng.choice(clients, min(4, clients), replace=False)]
    return [*separate, list(range(0, clients, 2)), shuffled, half]


def assert_same_bits(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> None:
    for tensor, other in zip(found, expected, strict=True):
        assert tensor.numpy().tobytes() == other.numpy().tobytes()


@pytest.mark.parametrize(("batch_size", "option", "seed"), sample_cases(CASES, 60))
def test_a_client_trains_to_the_same_bits_in_any_group(
    batch_size: int, option: str, seed: int
) -> None:
    """The bits are the same alone, with others, in any order, and with any memory limit."""
    rng = np.random.default_rng([batch_size, list(OPTIONS).index(option), seed])
    case = problem(rng)
    lr, epochs = float(rng.choice([0.01, 0.1, 1.0])), int(rng.integers(1, 4))
    config = LocalSGDConfig(lr, batch_size, epochs, **OPTIONS[option])
    start = copy_arrays(case.model)

    def train_batched(
        clients: Sequence[int], hosted: Iterable[int], memory: int
    ) -> list[torch.Tensor]:
        setup = TrainingSetup(case.model, case.examples(hosted), config, case.task, seed=SEED)
        batched = BatchedTrainer(setup, memory_bytes=memory)
        assert batched.closed_form
        return batched.train(start, clients, T)

    all_clients = range(len(case.data))
    with use_torch_threads(1):
        whole = train_batched(all_clients, all_clients, PLENTY)
        for group in list_groups(rng, len(case.data)):
            hosted = all_clients if rng.random() < 0.5 else group
            found = train_batched(group, hosted, int(rng.choice([1, 20_000, PLENTY])))
            assert_same_bits(found, [tensor[group] for tensor in whole])
    assert not np.array_equal(whole[-1][0], start[-1])


def get_bits(metrics: ClientMetrics) -> bytes:
    """Return all numbers of a measurement in bytes: NaN equals itself, 0 differs from -0."""
    numbers = (metrics.num_examples, metrics.loss, metrics.accuracy, metrics.metric)
    return np.array(numbers, dtype=np.float64).tobytes()


@pytest.mark.parametrize("seed", sample_cases(range(120), 40))
def test_a_client_evaluates_to_the_same_bits_in_any_group(seed: int) -> None:
    """Closed-form metrics are the same with any others, in passes of any size, on any workers."""
    rng = np.random.default_rng([9, seed])
    case = problem(rng)
    gradients = build_dense_gradients(case.model, case.task)
    assert gradients is not None
    metric, state = str(rng.choice(["accuracy", "f1", "auroc"])), case.model.state_dict()

    def evaluate_bits(
        clients: Sequence[int], hosted: Iterable[int], rows: int, workers: int
    ) -> dict[int, bytes]:
        measuring = DenseEvaluator(gradients, case.examples(hosted), case.task, rows)
        found = measuring.evaluate(state, clients, metric, WorkerPool(workers))
        return {client: get_bits(one) for client, one in zip(clients, found, strict=True)}

    all_clients = range(len(case.data))
    whole = evaluate_bits(all_clients, all_clients, 4096, 1)
    for group in list_groups(rng, len(case.data)):
        hosted = all_clients if rng.random() < 0.5 else group
        rows, workers = int(rng.choice([1, 100, 4096])), int(rng.integers(1, 4))
        assert evaluate_bits(group, hosted, rows, workers) == {k: whole[k] for k in group}


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("kind", ["small_cnn", "cnn"])
def test_convolutions_evaluate_to_the_same_bits_in_any_group(
    monkeypatch: pytest.MonkeyPatch, kind: str, workers: int
) -> None:
    """The metrics are the same with any other clients and any number of workers."""
    with seed_torch(5, CPU):
        model = SmallCNN((1, 8, 8), 4, (6,)) if kind == "small_cnn" else CNN((1, 16, 16), 4)
    model = model.to(memory_format=torch.channels_last)
    shape = (1, 8, 8) if kind == "small_cnn" else (1, 16, 16)
    data = make_ragged_data([7, 33, 1, 20, 11, 300], shape, 4)

    def evaluate_bits(clients: Sequence[int], cores: int) -> dict[int, bytes]:
        monkeypatch.setattr("client_app.evaluation.evaluator.count_available_cores", lambda: cores)
        measurements: CachedEvaluator = make_cached_evaluator({k: data[k] for k in clients}, model)
        arrays = copy_arrays(model)
        measurements.prepare(arrays, "train", clients)
        return {k: get_bits(measurements.evaluate(arrays, "train", k)) for k in clients}

    whole = evaluate_bits(range(len(data)), 1)
    assert len(set(whole.values())) == len(data)
    for group in ([2], [5], [4, 0, 3], [5, 4, 3, 2, 1, 0]):
        assert evaluate_bits(group, workers) == {k: whole[k] for k in group}
