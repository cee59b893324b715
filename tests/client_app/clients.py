"""Build clients from arrays for tests."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from fedquorum.errors import DataError
from fedquorum.flower.codec import TrainResult, to_metrics
from numpy.typing import NDArray
from torch import nn

from client_app.data.base import ClientData, Split, build_pooled_split, select_split
from client_app.data.examples import Examples
from client_app.evaluation.evaluator import CachedEvaluator
from client_app.losses import CrossEntropy, Task
from client_app.node.client import FederatedClient
from client_app.training.local_sgd import LocalSGDConfig, TrainingSetup
from client_app.training.trainer import Trainer

CPU = torch.device("cpu")


def assert_one_line(read: Callable[[], object], reason: str, start: str = "") -> None:
    """Fail unless data is refused in one line, which has the reason and begins like this."""
    with pytest.raises(DataError, match=reason) as caught:
        read()
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(start)


def get_examples(
    data: Mapping[int, ClientData], split: Split = "train", dtype: torch.dtype = torch.float32
) -> Examples:
    """Return one split of these clients."""
    return Examples(
        build_pooled_split(
            {k: select_split(client_data, split) for k, client_data in data.items()}
        ),
        CPU,
        dtype,
    )


def make_cached_evaluator(
    data: Mapping[int, ClientData],
    model: nn.Module,
    task: Task | None = None,
    metric: str = "accuracy",
) -> CachedEvaluator:
    """Return an evaluator of ``model`` on both splits of these clients."""
    splits: Sequence[Split] = ("train", "test")
    examples = {split: get_examples(data, split) for split in splits}
    return CachedEvaluator(model, examples, task or CrossEntropy(), metric)


def make_federated_client(
    client: int, client_data: ClientData, model: nn.Module, config: LocalSGDConfig, seed: int
) -> FederatedClient:
    """Return a client that is the only one in its process."""
    data = {client: client_data}
    trainer = Trainer(TrainingSetup(model, get_examples(data), config, CrossEntropy(), seed=seed))
    return FederatedClient(client, make_cached_evaluator(data, model), trainer.train_client)


def copy_arrays(model: nn.Module) -> list[NDArray[Any]]:
    """Return copies of a model's parameters and buffers."""
    return [tensor.detach().numpy().copy() for tensor in model.state_dict().values()]


def make_ragged_data(
    counts: Sequence[int], shape: tuple[int, ...], classes: int, seed: int = 0
) -> dict[int, ClientData]:
    """Return clients 0, 1, ... with these numbers of training samples and 3 to test, in [0, 1)."""
    rng = np.random.default_rng(seed)
    data = {}
    for client, count in enumerate(counts):
        x = rng.random((count + 3, *shape), dtype=np.float32)
        y = rng.integers(classes, size=count + 3)
        data[client] = ClientData(x[:count], y[:count], x[count:], y[count:])
    return data


def assert_same_result(result: TrainResult, other: TrainResult, tolerance: float = 0.0) -> None:
    """Compare a trained client's results in two replies, by default bit for bit."""
    assert (result.client, result.status) == (other.client, other.status)
    assert to_metrics(result) == pytest.approx(to_metrics(other), rel=tolerance, abs=tolerance)
    assert result.arrays is not None
    assert other.arrays is not None
    assert list(result.arrays) == list(other.arrays)
    for name, array in other.arrays.items():
        found = result.arrays[name]
        assert (found.shape, found.dtype) == (array.shape, array.dtype)
        np.testing.assert_allclose(found, array, rtol=0, atol=tolerance)


class EachToken(nn.Module):
    """Logits of every position."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(features, classes, dtype=torch.float64)
        self.rows: list[int] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits (n, l, c) of inputs (n, l, d)."""
        self.rows.append(len(x))
        logits: torch.Tensor = self.linear(x)
        return logits
