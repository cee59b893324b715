"""Compare batched with sequential training."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from fedquorum.errors import DataError
from fedquorum.rng import make_generator
from fedquorum.rules.parameters import AUGMENTATION
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import nn

from client_app.data.base import PixelNormalization, build_pooled_split, select_split
from client_app.data.examples import Examples
from client_app.losses import BinaryCrossEntropy, CrossEntropy, SquaredError, Task
from client_app.models import CNN, M5, MLP, CelebaCNN, LogisticRegression, SmallCNN
from client_app.rng import seed_torch
from client_app.training.batched import BatchedTrainer
from client_app.training.dropout import replace_dropout
from client_app.training.local_sgd import (
    LocalSGDConfig,
    TheoremLR,
    TrainingSetup,
    load_arrays,
    train_model,
)
from tests.cases import limit_examples
from tests.client_app.clients import CPU, copy_arrays, get_examples, make_ragged_data

CLASSES, SEED, T = 4, 9, 3
RAGGED = [7, 33, 20, 11, 26]
# Of batches of 8: none is small, as normalizing by two or three samples magnifies rounding.
NORMALIZED = [8, 24, 16, 30, 24]
PLENTY = 2**27


@dataclass(frozen=True)
class Kind:
    """A model with its inputs, the clients' sample counts, and a stable learning rate."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    counts: Sequence[int]
    lr: float
    closed_form: bool = False


KINDS = {
    "logistic_regression": Kind(
        lambda: LogisticRegression((12,), CLASSES), (12,), RAGGED, 0.1, closed_form=True
    ),
    "mlp": Kind(lambda: MLP((3, 4), CLASSES, 9), (3, 4), RAGGED, 0.1, closed_form=True),
    "small_cnn": Kind(lambda: SmallCNN((1, 8, 8), CLASSES, (6,)), (1, 8, 8), RAGGED, 0.05),
    "small_cnn, dropout": Kind(
        lambda: SmallCNN((1, 8, 8), CLASSES, (6, 5), 0.3), (1, 8, 8), RAGGED, 0.05
    ),
    "cnn": Kind(lambda: CNN((1, 16, 16), CLASSES), (1, 16, 16), NORMALIZED, 0.001),
    "celeba_cnn, groups": Kind(
        lambda: CelebaCNN((3, 6, 5), CLASSES, "aaggff"), (3, 6, 5), RAGGED, 0.01
    ),
    "m5": Kind(lambda: M5((1, 1800), CLASSES, 2), (1, 1800), NORMALIZED, 0.001),
}
OPTIONS = {
    "plain": LocalSGDConfig(0.1, 8, 2),
    "momentum": LocalSGDConfig(0.1, 8, 2, momentum=0.9),
    "weight decay": LocalSGDConfig(0.1, 8, 2, weight_decay=0.1),
    "proximal": LocalSGDConfig(0.1, 8, 2, proximal_mu=0.5),
    "momentum, decay, proximal": LocalSGDConfig(0.1, 8, 2, 0.5, 0.05, proximal_mu=0.3),
    "step": LocalSGDConfig(0.1, 8, 2, lr_schedule="step", lr_decay=0.5, lr_decay_every=2),
    "exponential": LocalSGDConfig(0.1, 8, 2, lr_schedule="exponential", lr_decay=0.5),
    "theorem": LocalSGDConfig(0.1, 8, 2, lr_schedule="theorem", theorem_lr=TheoremLR(L=4.0)),
    "theorem, momentum": LocalSGDConfig(
        0.1, 8, 2, 0.5, lr_schedule="theorem", theorem_lr=TheoremLR(L=4.0)
    ),
    "few local steps": LocalSGDConfig(0.1, 8, 1, local_steps=2),
    "many local steps": LocalSGDConfig(0.1, 8, 1, 0.5, local_steps=7),
    "all samples a step": LocalSGDConfig(0.1, 64, 3),
}
# Of models without a closed form those that together use every path.
FUNCTIONAL = ("plain", "momentum, decay, proximal", "theorem", "few local steps")
CASES = [
    (kind, option)
    for kind, model_kind in KINDS.items()
    for option in OPTIONS
    if model_kind.closed_form or kind.startswith("small_cnn") or option in FUNCTIONAL
]


def make_model(kind: Kind, dtype: torch.dtype) -> nn.Module:
    with seed_torch(5, CPU):
        model = kind.make().to(dtype)
    return replace_dropout(model, torch.zeros((2, *kind.shape), dtype=dtype))


def make_problem(kind: Kind, dtype: torch.dtype = torch.float64) -> tuple[nn.Module, Examples]:
    data = make_ragged_data(kind.counts, kind.shape, CLASSES)
    return make_model(kind, dtype), get_examples(data, dtype=dtype)


def train_sequentially(
    model: nn.Module, examples: Examples, config: LocalSGDConfig, task: Task, clients: Sequence[int]
) -> list[NDArray[Any]]:
    """Return the clients' models, trained one after the other, stacked."""
    start = copy_arrays(model)
    models = []
    for client in clients:
        load_arrays(start, model)
        x, y = examples.select_clients([client])
        draws = partial(make_generator, SEED, round_number=T + 1, client=client)
        train_model(model, x, y, config, draws, t=T, task=task)
        models.append(copy_arrays(model))
    load_arrays(start, model)
    return [np.stack(arrays) for arrays in zip(*models, strict=True)]


def train_batched(
    model: nn.Module,
    examples: Examples,
    config: LocalSGDConfig,
    task: Task,
    clients: Sequence[int],
    *,
    memory_bytes: int = PLENTY,
) -> list[NDArray[Any]]:
    batched = BatchedTrainer(
        TrainingSetup(model, examples, config, task, seed=SEED), memory_bytes=memory_bytes
    )
    return [tensor.numpy() for tensor in batched.train(copy_arrays(model), clients, T)]


def assert_close(
    found: Sequence[NDArray[Any]], expected: Sequence[NDArray[Any]], tolerance: float
) -> None:
    for array, other in zip(found, expected, strict=True):
        assert (array.shape, array.dtype) == (other.shape, other.dtype)
        np.testing.assert_allclose(array, other, rtol=tolerance, atol=tolerance)


def check(
    kind: Kind,
    config: LocalSGDConfig,
    task: Task | None = None,
    dtype: torch.dtype = torch.float64,
    tolerance: float = 1e-10,
) -> None:
    """Compare all clients' models, each of which must differ from the received one."""
    model, examples = make_problem(kind, dtype)
    before = copy_arrays(model)
    chosen_task, clients = task or CrossEntropy(), range(len(kind.counts))
    expected = train_sequentially(model, examples, config, chosen_task, clients)
    found = train_batched(model, examples, config, chosen_task, clients)
    assert_close(found, expected, tolerance)
    for position in (0, -1):
        assert all(not np.array_equal(array, before[position]) for array in found[position])
    assert_close(copy_arrays(model), before, 0)


@pytest.mark.parametrize(("kind", "option"), CASES)
def test_batched_equals_sequential(kind: str, option: str) -> None:
    """Every model with every option ends as in sequential training, buffers included."""
    check(KINDS[kind], replace(OPTIONS[option], lr=KINDS[kind].lr))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("option", ["plain", "momentum, decay, proximal"])
def test_batched_equals_sequential_in_single_precision(kind: str, option: str) -> None:
    """To the rounding of float32 after a round, as runs compute."""
    config = replace(OPTIONS[option], lr=KINDS[kind].lr)
    check(KINDS[kind], config, dtype=torch.float32, tolerance=1e-5)


@pytest.mark.parametrize(
    ("lr", "dtype", "tolerance"),
    [(0.1, torch.float64, 1e-9), (0.01, torch.float32, 1e-6)],
    ids=["beyond stability, float64", "stable, float32"],
)
def test_many_inputs(lr: float, dtype: torch.dtype, tolerance: float) -> None:
    """784 inputs in [0, 1) have a curvature of some 100: beyond a rate of 2 / 100 SGD is chaotic.

    There rounding grows, in float32 to 1e-2 within a round, however the sums are ordered.
    """
    kind = Kind(lambda: LogisticRegression((784,), CLASSES), (784,), [100, 60], 0.0)
    check(kind, LocalSGDConfig(lr, 8, 2), dtype=dtype, tolerance=tolerance)


@pytest.mark.parametrize("name", [name for name in AUGMENTATION.choices if name != "none"])
@pytest.mark.parametrize("kind", ["mlp", "small_cnn"])
def test_augmentation(name: str, kind: str) -> None:
    """Each client's images change by its own random stream, at any index."""
    shape = (3, 8, 8)
    makers: dict[str, Callable[[], nn.Module]] = {
        "mlp": lambda: MLP(shape, CLASSES, 9),
        "small_cnn": lambda: SmallCNN(shape, CLASSES, (6,), 0.2),
    }
    images = Kind(makers[kind], shape, RAGGED, 0.05)
    check(images, LocalSGDConfig(0.05, 8, 2, augmentation=name))
    scale = PixelNormalization((0.5, 0.4, 0.3), (0.2, 0.3, 0.25))
    check(images, LocalSGDConfig(0.05, 8, 2, augmentation=name, pixel_scale=scale))


WEIGHTS = torch.tensor([0.5, 0.0, 2.0, 1.5], dtype=torch.float64)


@pytest.mark.parametrize("kind", ["logistic_regression", "mlp", "small_cnn"])
def test_class_weights(kind: str) -> None:
    """The mean loss of a batch divides by the weights of that batch's samples."""
    check(KINDS[kind], OPTIONS["plain"], CrossEntropy(WEIGHTS))


@pytest.mark.parametrize("task", [BinaryCrossEntropy(), SquaredError()], ids=repr)
def test_other_tasks(task: Task) -> None:
    """A model of one output, for which there is no closed form."""
    kind = Kind(lambda: MLP((5,), 1, 4), (5,), RAGGED, 0.05)
    data = make_ragged_data(kind.counts, kind.shape, 2)
    model, examples = make_model(kind, torch.float64), get_examples(data, dtype=torch.float64)
    if isinstance(task, SquaredError):
        examples._y = examples._y.double() - 0.3
    all_clients = range(len(RAGGED))
    expected = train_sequentially(model, examples, OPTIONS["momentum"], task, all_clients)
    assert_close(
        train_batched(model, examples, OPTIONS["momentum"], task, all_clients), expected, 1e-10
    )


@pytest.mark.slow
@given(
    st.lists(st.integers(1, 25), min_size=1, max_size=7),
    st.integers(1, 9),
    st.sampled_from([None, 1, 4]),
    st.sampled_from([0.0, 0.7]),
    st.booleans(),
)
@limit_examples(40)
def test_any_numbers_of_samples(
    counts: list[int], batch_size: int, local_steps: int | None, momentum: float, dense: bool
) -> None:
    """However unequal the clients are, with a closed form and without."""
    kind = Kind(lambda: MLP((3,), CLASSES, 4), (3,), counts, 0.1)
    config = LocalSGDConfig(0.1, batch_size, 2, momentum, local_steps=local_steps)
    model, examples = make_problem(kind)
    task = CrossEntropy() if dense else Weighted()
    all_clients = range(len(counts))
    batched = BatchedTrainer(
        TrainingSetup(model, examples, config, task, seed=SEED), memory_bytes=PLENTY
    )
    assert batched.closed_form is dense
    expected = train_sequentially(model, examples, config, task, all_clients)
    assert_close(train_batched(model, examples, config, task, all_clients), expected, 1e-10)


class Weighted(CrossEntropy):
    """Cross entropy, for which no closed form is known."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mlp", "small_cnn, dropout", "cnn"])
def test_other_clients_do_not_matter(kind: str) -> None:
    """A client's model is the same in any order, with any other clients, and alone."""
    model, examples = make_problem(KINDS[kind])
    config = replace(OPTIONS["momentum"], lr=KINDS[kind].lr, augmentation="none")
    all_clients = train_sequentially(model, examples, config, CrossEntropy(), range(5))
    for clients in ([4, 2, 0, 3, 1], [3, 1], [2], [0, 4]):
        found = train_batched(model, examples, config, CrossEntropy(), clients)
        assert_close(found, [array[clients] for array in all_clients], 1e-10)


@pytest.mark.parametrize("kind", ["mlp", "small_cnn, dropout"])
def test_as_many_at_once_as_memory_allows(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With little memory clients train in several groups, one by one at the least."""
    model, examples = make_problem(KINDS[kind])
    config, task = replace(OPTIONS["momentum"], lr=KINDS[kind].lr), CrossEntropy()
    expected = train_sequentially(model, examples, config, task, range(5))
    batched = BatchedTrainer(
        TrainingSetup(model, examples, config, task, seed=SEED), memory_bytes=PLENTY
    )
    of_one = batched._estimate_client_bytes(1)
    assert batched._estimate_client_bytes(0) < of_one  # it has no full batch: the largest counts
    assert of_one > sum(array.nbytes for array in copy_arrays(model))
    groups: list[int] = []
    train_chunk = BatchedTrainer._train_chunk

    def note_group(self: BatchedTrainer, received: Any, clients: Sequence[int], *of: Any) -> Any:
        groups.append(len(clients))
        return train_chunk(self, received, clients, *of)

    monkeypatch.setattr(BatchedTrainer, "_train_chunk", note_group)
    of_groups = {0: [1] * 5, of_one: [1] * 5, 3 * of_one: [3, 2], 4 * of_one: [3, 2], PLENTY: [5]}
    for memory_bytes, sizes in of_groups.items():
        groups.clear()
        found = train_batched(model, examples, config, task, range(5), memory_bytes=memory_bytes)
        assert groups == sizes
        assert_close(found, expected, 1e-10)


@pytest.mark.parametrize("kind", ["mlp", "small_cnn"])
def test_frozen_parameters_stay(kind: str) -> None:
    """Frozen parameters do not change; all others train as in sequential training."""
    model, examples = make_problem(KINDS[kind])
    config = OPTIONS["momentum, decay, proximal"]
    names = list(model.state_dict())
    parameters = dict(model.named_parameters())
    for name in names[:2]:
        parameters[name].requires_grad_(False)
    start = copy_arrays(model)
    expected = train_sequentially(model, examples, config, CrossEntropy(), range(5))
    found = train_batched(model, examples, config, CrossEntropy(), range(5))
    assert_close(found, expected, 1e-10)
    for position, array in enumerate(found):
        assert np.array_equal(array, np.stack([start[position]] * 5)) is (position < 2)


def test_inputs_that_are_not_ready() -> None:
    """Batches made when they are needed give the same models, to the last bit."""
    model, ready = make_problem(KINDS["mlp"])
    data = make_ragged_data(RAGGED, KINDS["mlp"].shape, CLASSES)
    pool = build_pooled_split(
        {k: select_split(client_data, "train") for k, client_data in data.items()}
    )
    made = Examples(pool, CPU, torch.float64, max_resident_bytes=0)
    config, task = OPTIONS["plain"], CrossEntropy()
    both = [train_batched(model, examples, config, task, range(5)) for examples in (ready, made)]
    assert_close(both[0], both[1], 0)


def test_rounds_are_independent() -> None:
    """A second round from the same model gives the same result after any other training."""
    model, examples = make_problem(KINDS["small_cnn, dropout"])
    task, config = CrossEntropy(), OPTIONS["momentum"]
    batched = BatchedTrainer(
        TrainingSetup(model, examples, config, task, seed=SEED), memory_bytes=PLENTY
    )
    start = copy_arrays(model)
    before = [array.copy() for array in start]
    first = [tensor.numpy() for tensor in batched.train(start, range(5), T)]
    batched.train([array + 1 for array in start], [3, 0], T + 1)
    again = [tensor.numpy() for tensor in batched.train(start, range(5), T)]
    assert_close(again, first, 0)
    assert_close(start, before, 0)


def test_torchs_generator_is_not_used() -> None:
    """Training together neither uses nor advances torch's global generator."""
    model, examples = make_problem(KINDS["small_cnn, dropout"])
    before = torch.get_rng_state()
    train_batched(model, examples, OPTIONS["plain"], CrossEntropy(), range(5))
    assert torch.equal(torch.get_rng_state(), before)


def test_batch_normalization_needs_two_samples() -> None:
    """A client with one sample is refused in one line, as in sequential training."""
    kind = replace(KINDS["cnn"], counts=[8, 1])
    model, examples = make_problem(kind)
    with pytest.raises(DataError, match="batch normalization needs batches of at least 2"):
        train_batched(model, examples, OPTIONS["plain"], CrossEntropy(), [0, 1])
