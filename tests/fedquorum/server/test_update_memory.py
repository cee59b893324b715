"""The memory of last updates, of FedVarp and MIFA."""

import errno
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fedquorum.errors import RunError, StateError
from fedquorum.flower.server_memory import ServerMemory
from fedquorum.registry import FEDVARP
from fedquorum.rules.composition import UpdateMemoryConfig
from fedquorum.rules.rule import RunContext
from fedquorum.rules.selection import Sampling
from fedquorum.rules.server_optimizer import SGD
from fedquorum.rules.types import FloatArray, Population
from fedquorum.server.aggregation import apply_server_step, select_buffers
from fedquorum.server.update_memory import UpdateMemory, check_capacity
from numpy.typing import NDArray

Model = dict[str, NDArray[Any]]

MODEL: dict[str, NDArray[Any]] = {
    "w": np.array([1.0, -1.0], dtype=np.float32),
    "n": np.array(3, dtype=np.int64),
}


def shift_model(by: float) -> dict[str, NDArray[Any]]:
    return {"w": MODEL["w"] + np.float32(by), "n": np.array(3 + int(by), dtype=np.int64)}


def run_step(
    memory: UpdateMemory,
    model: Model,
    models: Sequence[tuple[int, float, Model]],
    num_registered: int,
) -> dict[str, FloatArray]:
    """Return the step of a round, and store its updates."""
    combined = memory.step(model, models, num_registered)
    memory.store_updates(model, models)
    return combined


@pytest.mark.parametrize("on_disk", [False, True])
def test_memory_by_hand(tmp_path: Path, on_disk: bool) -> None:
    """step = sum c_n (Delta_n - y_n) + mean y, then y_n <- Delta_n; in files as in memory."""
    memory = UpdateMemory(range(4), MODEL, tmp_path / "y" if on_disk else None)
    first = run_step(memory, MODEL, [(0, 0.5, shift_model(2)), (2, 0.5, shift_model(4))], 4)
    np.testing.assert_allclose(first["w"], [3.0, 3.0])
    assert first["n"] == 3.0
    # mean y = (2 + 4) / 4 = 1.5; client 2 again: 1 * (10 - 4) + 1.5
    second = run_step(memory, MODEL, [(2, 1.0, shift_model(10))], 4)
    np.testing.assert_allclose(second["w"], [7.5, 7.5])
    third = run_step(memory, MODEL, [], 4)
    np.testing.assert_allclose(third["w"], [3.0, 3.0])  # (2 + 10) / 4
    assert third["n"] == 0.0
    assert memory.nbytes == 4 * (2 * 4) + 2 * 8  # counters are not stored
    assert (
        len(list((tmp_path / "y").glob("*.npy"))) == 1 if on_disk else not list(tmp_path.iterdir())
    )


def test_mifa_is_the_mean_of_all_last_updates() -> None:
    """With c_n = 1 / N the step is the mean of the new memory, over any history."""
    rng = np.random.default_rng(4)
    n, memory = 5, UpdateMemory(range(5), {"w": np.zeros(3)})
    last = np.zeros((n, 3))
    for _ in range(30):
        present = np.flatnonzero(rng.random(n) < 0.4).tolist()
        model = {"w": rng.normal(size=3)}
        updates = rng.normal(size=(n, 3))
        got = run_step(
            memory, model, [(k, 1 / n, {"w": model["w"] + updates[k]}) for k in present], n
        )
        last[present] = updates[present]
        np.testing.assert_allclose(got["w"], last.mean(axis=0), atol=1e-12)


def test_fedvarp_with_everyone_is_the_average() -> None:
    """Full participation leaves no variance to reduce: the step is the mean update."""
    rng = np.random.default_rng(5)
    memory = UpdateMemory(range(3), {"w": np.zeros(2)})
    for _ in range(4):
        updates = rng.normal(size=(3, 2))
        got = run_step(
            memory, {"w": np.zeros(2)}, [(k, 1 / 3, {"w": updates[k]}) for k in range(3)], 3
        )
        np.testing.assert_allclose(got["w"], updates.mean(axis=0), atol=1e-12)


def test_a_rejected_round_does_not_change_the_memory() -> None:
    """Computing the step does not store the updates."""
    memory = UpdateMemory(range(4), MODEL)
    before = {name: array.copy() for name, array in memory.get_state().items()}
    memory.step(MODEL, [(0, 0.5, shift_model(2))], 4)
    for name, array in memory.get_state().items():
        np.testing.assert_array_equal(array, before[name])


@pytest.mark.parametrize("on_disk", [False, True])
def test_a_joining_client_starts_with_an_update_of_zero(tmp_path: Path, on_disk: bool) -> None:
    """The updates of the others stay; a newcomer counts as an update of zero until its first."""
    memory = UpdateMemory(range(2), MODEL, tmp_path / "y" if on_disk else None)
    run_step(memory, MODEL, [(0, 0.5, shift_model(2)), (1, 0.5, shift_model(4))], 2)
    memory.add_clients([0, 1, 7])
    assert run_step(memory, MODEL, [], 3)["w"].tolist() == [2.0, 2.0]  # (2 + 4 + 0) / 3
    assert run_step(memory, MODEL, [(7, 1.0, shift_model(3))], 3)["w"].tolist() == [5.0, 5.0]
    assert run_step(memory, MODEL, [], 3)["w"].tolist() == [3.0, 3.0]


# --- the client of each update ----------------------------------------------------------------


X: Model = {"w": np.zeros(1, dtype=np.float32)}
RULES = FEDVARP.build_rules({}, RunContext(), sampling=Sampling(), server_optimizer=SGD(1.0))


def make_updates(*clients: int) -> list[tuple[int, float, Model]]:
    """Return models whose update is ten times the client id."""
    return [(k, 1.0 / len(clients), {"w": np.array([10.0 * k], np.float32)}) for k in clients]


def get_last_updates(memory: UpdateMemory) -> dict[int, float]:
    """Return y_n by client."""
    state = memory.get_state()
    return dict(zip(state["client"].tolist(), state["updates.w"][:, 0].tolist(), strict=True))


@pytest.mark.parametrize("on_disk", [False, True])
def test_a_resumed_client_has_its_own_last_update(tmp_path: Path, on_disk: bool) -> None:
    """A client with a smaller id than another's joined later."""
    folders = [str(tmp_path / name) if on_disk else None for name in ("before", "after")]
    before, after = (
        ServerMemory(replace(RULES, memory=UpdateMemoryConfig(memory_dir=folder)))
        for folder in folders
    )
    first = Population.open().with_clients([0, 2, 5])
    memory = before.get_update_memory(X, first)
    assert memory is not None
    memory.store_updates(X, make_updates(0, 2, 5))
    larger = first.with_clients([0, 1, 2, 5])
    assert before.get_update_memory(X, larger) is memory
    memory.store_updates(X, make_updates(1))
    assert get_last_updates(memory) == {0: 0.0, 1: 10.0, 2: 20.0, 5: 50.0}
    state = {f"memory.{name}": array.copy() for name, array in memory.get_state().items()}
    after.restore(state, X, larger)
    resumed = after.updates
    assert resumed is not None
    assert get_last_updates(resumed) == get_last_updates(memory)
    assert (
        memory.step(X, make_updates(5), 4)["w"] == resumed.step(X, make_updates(5), 4)["w"] == 20.0
    )


@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_the_order_in_which_clients_join_does_not_matter(
    tmp_path: Path, seed: int, on_disk: bool
) -> None:
    """One client after the other, each with an update; the restored memory has the same bits."""
    order = np.random.default_rng(seed).permutation(7).tolist()
    folders = [tmp_path / name if on_disk else None for name in ("joined", "restored")]
    memory = UpdateMemory(order[:2], X, folders[0])
    for client in order:
        memory.add_clients([*memory.get_state()["client"].tolist(), client])
        memory.store_updates(X, make_updates(client))
    assert get_last_updates(memory) == {k: 10.0 * k for k in range(7)}
    assert [*get_last_updates(memory)] == [*range(7)]
    restored = UpdateMemory(range(9), X, folders[1])  # two more have joined since
    restored.store_updates(X, make_updates(*range(9)))
    restored.restore({name: array.copy() for name, array in memory.get_state().items()})
    assert get_last_updates(restored) == {**get_last_updates(memory), 7: 0.0, 8: 0.0}
    memory.add_clients(range(9))
    for name, array in memory.get_state().items():
        np.testing.assert_array_equal(restored.get_state()[name], array, strict=True)


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        ([0, 1, 7], r"'client' must be each once of the clients 0, 1, 2, got 0, 1, 7"),
        ([0, 1, 1], r"'client' must be each once of the clients 0, 1, 2, got 0, 1, 1"),
        ([0, 1], r"'updates\.w' is float32 of shape \(3, 1\), expected float32 of \(2, 1\)"),
        (None, "'client' is missing"),
    ],
)
def test_a_memory_of_other_clients_is_refused(clients: list[int] | None, message: str) -> None:
    """Each row must belong to one of the memory's clients."""
    state = UpdateMemory(range(3), X).get_state()
    del state["client"]
    if clients is not None:
        state["client"] = np.array(clients)
    with pytest.raises(StateError, match=message):
        UpdateMemory(range(3), X).restore(state)


# --- statistics of normalization layers ---------------------------------------------------------


@pytest.mark.parametrize("name", ["mifa", "fedvarp"])
def test_no_variance_becomes_negative(name: str) -> None:
    """Last updates of a running variance could make it negative, and the model's output NaN."""
    import torch  # takes seconds

    def with_state(model: Model | None = None) -> torch.nn.Module:
        layers = torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU()
        net = torch.nn.Sequential(*layers, torch.nn.Linear(8, 2))
        if model is not None:
            net.load_state_dict({name: torch.tensor(array) for name, array in model.items()})
        return net

    def state_of(net: torch.nn.Module) -> Model:
        return {name: tensor.numpy().copy() for name, tensor in net.state_dict().items()}

    def trained_on(model: Model, client: int) -> Model:
        net = with_state(model)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
        x, y = data[client]
        for _ in range(5):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()
        return state_of(net)

    torch.manual_seed(0)
    x = state_of(with_state())
    rng, rng_present = np.random.default_rng(0), np.random.default_rng(1)
    data = [
        (
            torch.tensor(rng.normal(size=(64, 4)), dtype=torch.float32),
            torch.tensor(rng.integers(0, 2, 64)),
        )
        for _ in range(10)
    ]
    memory = UpdateMemory(range(10), x)
    for _ in range(60):
        clients = [k for k in range(10) if rng_present.random() < 0.2]
        if not clients and name == "fedvarp":
            continue
        weight = 0.1 if name == "mifa" else 1.0 / max(1, len(clients))
        models = [(k, weight, trained_on(x, k)) for k in clients]
        update = memory.step(x, models, 10)
        _, after = apply_server_step(SGD(), None, x, update, sum(c for _, c, _ in models))
        assert after is not None
        memory.store_updates(x, models)
        for statistic in select_buffers(x):
            sent = np.stack([x[statistic], *(model[statistic] for _, _, model in models)])
            slack = 1e-6 * np.abs(sent).max()
            assert (after[statistic] >= sent.min(axis=0) - slack).all()
            assert (after[statistic] <= sent.max(axis=0) + slack).all()
        x = after
        assert x["1.running_var"].min() > 0
    with torch.no_grad():
        assert torch.isfinite(with_state(x).eval()(data[0][0])).all()


def test_half_precision_cannot_make_the_memory_infinite() -> None:
    """The difference of two finite numbers may exceed the range of their dtype."""
    model = {"w": np.full(2, -60_000, dtype=np.float16)}
    memory = UpdateMemory(range(2), model)
    run_step(memory, model, [(0, 0.5, {"w": np.full(2, 60_000, dtype=np.float16)})], 2)
    stored = memory.get_state()["updates.w"]
    assert stored.dtype == np.float16
    assert stored[0].tolist() == [65504.0, 65504.0]
    assert memory.get_state()["total.w"].tolist() == [65504.0, 65504.0]
    assert np.isfinite(run_step(memory, model, [], 2)["w"]).all()


@pytest.mark.slow
def test_two_memories_never_share_a_folder(tmp_path: Path) -> None:
    """The second one is refused before it changes a file; the folder is free afterwards."""
    memory = UpdateMemory(range(2), MODEL, tmp_path)
    run_step(memory, MODEL, [(0, 1.0, shift_model(2))], 2)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(
        RunError, match=r"^strategy\.memory_dir must be .* no other run uses .* got"
    ):
        UpdateMemory(range(2), MODEL, tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    memory.step(MODEL, [], 2)
    del memory
    UpdateMemory(range(2), MODEL, tmp_path)


@pytest.mark.slow
def test_a_memory_of_a_run_that_ended_may_linger(tmp_path: Path) -> None:
    """It may be part of a cycle that the garbage collector has not found yet."""

    class Holder:
        def __init__(self) -> None:
            self.memory, self.cycle = UpdateMemory(range(2), MODEL, tmp_path), self

    Holder()
    UpdateMemory(range(2), MODEL, tmp_path)


def test_the_space_of_the_files_is_allocated_on_creation(tmp_path: Path) -> None:
    """A write to a hole in a file on a full disk would kill the process (SIGBUS)."""
    model = {"w": np.zeros(100_000, dtype=np.float32)}
    memory = UpdateMemory(range(5), model, tmp_path)
    for clients in (5, 8):
        memory.add_clients(range(clients))
        (file,) = tmp_path.glob("*.npy")
        assert file.stat().st_size > clients * 400_000
        assert file.stat().st_blocks * 512 >= file.stat().st_size


def test_a_full_disk_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On creation of the files, not when an update is written."""

    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(RunError, match=r"memory_dir must be .* with space .* No space left"):
        UpdateMemory(range(2), MODEL, tmp_path)


def test_a_memory_that_exceeds_the_machine_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before training, with the figures of the memory, or of the disk for files."""
    model = {"w": np.broadcast_to(np.float32(0), (25 * 10**7,))}  # 1 GB
    monkeypatch.setattr("fedquorum.server.update_memory.get_total_memory", lambda: 8 * 10**9)
    monkeypatch.setattr("fedquorum.server.update_memory.get_free_disk", lambda folder: 9 * 10**9)
    check_capacity(8, model)
    check_capacity(9, model, tmp_path)
    with pytest.raises(RunError) as error:
        check_capacity(9, model)
    assert str(error.value) == (
        "strategy.memory_dir must be set where this machine's memory does not hold all clients' "
        "updates: 9 models of 1 GB are 9 GB, there are 8 GB, got None"
    )
    with pytest.raises(RunError, match="a folder with space for all clients' updates: 10 models"):
        check_capacity(10, model, tmp_path)


def test_files_of_an_earlier_run_are_removed(tmp_path: Path) -> None:
    """Also those for a larger population of a stopped run, but no other files."""
    memory = UpdateMemory(range(2), MODEL, tmp_path)
    memory.add_clients(range(3))
    (tmp_path / "mine.npy").write_bytes(b"kept")
    del memory
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.npy", "updates-000-3.npy"]
    memory_after = UpdateMemory(range(3), MODEL, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.npy", "updates-000.npy"]
    assert not memory_after.get_state()["updates.w"].any()


def test_files_of_an_earlier_run_count_as_free_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new memory overwrites them."""
    monkeypatch.setattr("fedquorum.server.update_memory.get_free_disk", lambda folder: 0)
    UpdateMemory(range(4), MODEL, tmp_path)
    check_capacity(4, MODEL, tmp_path)
    with pytest.raises(RunError, match="must be a folder with space for"):
        check_capacity(40, MODEL, tmp_path)
