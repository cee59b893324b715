"""Compare the rows of every client's local steps with those of sequential training."""

from functools import partial

import numpy as np
import pytest
import torch
from fedquorum.errors import DataError
from fedquorum.rng import make_generator
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from client_app.data.base import PooledSplit, RowIndex
from client_app.data.examples import Examples
from client_app.training.batched.schedule import BatchSchedule, build_batch_schedule
from client_app.training.local_sgd import LocalSGDConfig, TheoremLR, train_model
from tests.cases import limit_examples

SEED, T = 4, 2


def make_examples(counts: list[int]) -> Examples:
    """Return clients whose samples are their row numbers."""
    ends = np.cumsum(counts)
    rows = {k: np.arange(e - c, e) for k, (c, e) in enumerate(zip(counts, ends, strict=True))}
    x = np.arange(sum(counts), dtype=np.float32)[:, None]
    return Examples(
        PooledSplit(x, np.zeros(len(x), np.int64), RowIndex.from_mapping(rows)),
        torch.device("cpu"),
        torch.float64,
    )


def make_schedule(
    counts: list[int], config: LocalSGDConfig, *, normalizes: bool = False, t: int = T
) -> BatchSchedule:
    clients = range(len(counts))
    draws = [partial(make_generator, SEED, round_number=t + 1, client=k) for k in clients]
    return build_batch_schedule(
        clients,
        draws,
        make_examples(counts),
        config,
        rounds=[t] * len(clients),
        batch_norm=normalizes,
    )


class Spy(nn.Module):
    """A model that records the rows that it is trained on."""

    def __init__(self, *, normalizes: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(1, 2, dtype=torch.float64)
        self.normalize = nn.BatchNorm1d(1, dtype=torch.float64) if normalizes else nn.Identity()
        self.batches: list[list[int]] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        self.batches.append(x.flatten().int().tolist())
        logits: torch.Tensor = self.linear(self.normalize(x) / 100)
        return logits


def list_sequential_batches(
    counts: list[int], client: int, config: LocalSGDConfig, *, normalizes: bool
) -> list[list[int]]:
    """Return the rows of each step of a client in sequential training."""
    x, y = make_examples(counts).select_clients([client])
    spy = Spy(normalizes=normalizes)
    train_model(
        spy, x, y, config, partial(make_generator, SEED, round_number=T + 1, client=client), t=T
    )
    return spy.batches


def list_batches(schedule: BatchSchedule, index: int) -> list[list[int]]:
    """Return the rows of each step of the client in this place."""
    steps = zip(schedule.rows[:, index].tolist(), schedule.sizes[:, index].tolist(), strict=True)
    return [rows[:size] for rows, size in steps if size]


HOW = {
    "epochs": LocalSGDConfig(0.1, 4, 3),
    "one sample a step": LocalSGDConfig(0.1, 1, 1),
    "all samples a step": LocalSGDConfig(0.1, 100, 2),
    "fewer steps than an epoch": LocalSGDConfig(0.1, 4, 9, local_steps=2),
    "more steps than an epoch": LocalSGDConfig(0.1, 4, 1, local_steps=9),
}


@pytest.mark.parametrize("normalizes", [False, True])
@pytest.mark.parametrize("config", HOW.values(), ids=list(HOW))
@given(st.lists(st.integers(1, 13), min_size=1, max_size=5))
@limit_examples(10)
def test_the_rows_are_those_of_sequential_training(
    normalizes: bool, config: LocalSGDConfig, counts: list[int]
) -> None:
    """Every client's batches and their order do not depend on the other clients."""
    if normalizes and (config.batch_size == 1 or 1 in counts):
        with pytest.raises(DataError, match="batch normalization needs"):
            make_schedule(counts, config, normalizes=True)
        return
    schedule = make_schedule(counts, config, normalizes=normalizes)
    assert sorted(schedule.order) == list(range(len(counts)))
    for index, client in enumerate(schedule.order):
        assert list_batches(schedule, index) == list_sequential_batches(
            counts, client, config, normalizes=normalizes
        )


@given(st.lists(st.integers(1, 30), min_size=1, max_size=6), st.sampled_from([None, 7]))
@limit_examples(40)
def test_shapes_and_what_counts(counts: list[int], local_steps: int | None) -> None:
    """Clients with most steps come first; padding repeats a row of the same batch."""
    schedule = make_schedule(counts, LocalSGDConfig(0.1, 8, 2, local_steps=local_steps))
    steps, clients, widest = schedule.rows.shape
    assert schedule.sizes.shape == schedule.learning_rates.shape == (steps, clients)
    assert (clients, widest) == (len(counts), min(8, max(counts)))
    lengths = (schedule.sizes > 0).sum(axis=0)
    assert list(lengths) == sorted(lengths, reverse=True)
    assert lengths[0] == steps
    for step in range(steps):
        active = schedule.num_active[step]
        assert (schedule.sizes[step, :active] > 0).all()
        assert (schedule.sizes[step, active:] == 0).all()
        for index in range(active):
            size = int(schedule.sizes[step, index])
            rows = schedule.rows[step, index].tolist()
            assert rows[size:] == [rows[0]] * (widest - size)
    within = np.arange(widest) < schedule.sizes[:, :, None]
    np.testing.assert_array_equal(schedule.mask.numpy(), within)


def test_clients_with_as_many_steps_stay_in_order() -> None:
    """Only those with more steps overtake."""
    assert make_schedule([8, 5, 20, 6, 20], LocalSGDConfig(0.1, 8, 2)).order == (2, 4, 0, 1, 3)


RATES = {
    "constant": LocalSGDConfig(0.2, 8, 2),
    "step": LocalSGDConfig(0.2, 8, 2, lr_schedule="step", lr_decay=0.5, lr_decay_every=2),
    "exponential": LocalSGDConfig(0.2, 8, 2, lr_schedule="exponential", lr_decay=0.5),
    "inverse_sqrt": LocalSGDConfig(0.2, 8, 2, lr_schedule="inverse_sqrt", lr_decay_every=3),
    "theorem": LocalSGDConfig(0.2, 8, 2, lr_schedule="theorem", theorem_lr=TheoremLR(mu=4.0)),
    "theorem, local steps": LocalSGDConfig(0.2, 8, 2, lr_schedule="theorem", local_steps=5),
}


@pytest.mark.parametrize("name", RATES)
@pytest.mark.parametrize("t", [0, 3])
def test_rates(name: str, t: int) -> None:
    """Each step has the rate of its round and step; the theorem's is of the client's own steps."""
    config, counts = RATES[name], [23, 5, 40]
    schedule = make_schedule(counts, config, t=t)
    assert schedule.learning_rates.dtype == torch.float64
    for index, client in enumerate(schedule.order):
        steps = config.count_steps(counts[client])
        expected = [config.compute_learning_rate(t, step, steps) for step in range(steps)]
        assert schedule.learning_rates[:steps, index].tolist() == expected
        assert schedule.learning_rates[steps:, index].tolist() == [0.0] * (
            len(schedule.learning_rates) - steps
        )
    of_all = {tuple(schedule.learning_rates[:2, index].tolist()) for index in range(3)}
    assert len(of_all) == (3 if name == "theorem" else 1)


def test_batches_follow_from_client_and_round() -> None:
    """A client's rows do not depend on the other clients, and differ between rounds."""
    config = LocalSGDConfig(0.1, 4, 2)
    examples = make_examples([9, 9, 9])

    def get_rows(clients: list[int], t: int) -> dict[int, list[list[int]]]:
        draws = [partial(make_generator, SEED, round_number=t + 1, client=k) for k in clients]
        schedule = build_batch_schedule(
            clients, draws, examples, config, rounds=[t] * len(clients), batch_norm=False
        )
        return {clients[i]: list_batches(schedule, index) for index, i in enumerate(schedule.order)}

    batched, separate, later = get_rows([2, 0, 1], 0), get_rows([1], 0), get_rows([1], 1)
    assert batched[1] == separate[1]
    assert sorted(row for batch in batched[2][:3] for row in batch) == list(range(18, 27))
    assert later[1] != separate[1]
    assert [row - 9 for batch in batched[1] for row in batch] != [
        row for batch in batched[0] for row in batch
    ]
