"""Test the rows of several clients, resident or read on demand."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from client_app.data.base import PooledSplit, RowIndex, to_inputs
from client_app.data.examples import Examples

CPU = torch.device("cpu")
ROWS: dict[int, list[int]] = {7: [4, 1, 9], 2: [0], 5: [], 3: [8, 2, 3, 6]}
READY = {True: 2**30, False: 0}
KINDS: dict[str, NDArray[Any]] = {
    "gray": np.random.default_rng(1).integers(256, size=(10, 4, 3), dtype=np.uint8),
    "color": np.random.default_rng(2).integers(256, size=(10, 4, 3, 3), dtype=np.uint8),
    "sound": np.random.default_rng(3).integers(-(2**15), 2**15, size=(10, 6), dtype=np.int16),
    "numbers": np.random.default_rng(4).standard_normal((10, 5)).astype(np.float32),
}

each_kind = pytest.mark.parametrize("kind", KINDS)
each_way = pytest.mark.parametrize("ready", READY)


def make_pool(x: NDArray[Any]) -> PooledSplit:
    rows = {k: np.asarray(numbers, dtype=np.int64) for k, numbers in ROWS.items()}
    return PooledSplit(x, np.arange(10) * 10, RowIndex.from_mapping(rows))


def make_examples(x: NDArray[Any], *, ready: bool, dtype: torch.dtype = torch.float32) -> Examples:
    return Examples(make_pool(x), CPU, dtype, READY[ready])


def compute_expected_inputs(
    x: NDArray[Any], client: int, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    samples = x[np.asarray(ROWS[client], dtype=np.int64)]
    if dtype == torch.float32:
        return torch.from_numpy(to_inputs(samples))
    scale = {np.dtype(np.uint8): 255, np.dtype(np.int16): 32768}.get(x.dtype, 1)
    first = (
        samples[:, None]
        if samples.dtype == np.int16 or samples.ndim == 3
        else np.moveaxis(samples, -1, 1)
    )
    return torch.from_numpy(
        np.ascontiguousarray(first if scale > 1 else samples) / np.float64(scale)
    )


@each_kind
@each_way
def test_each_client_has_its_rows(kind: str, ready: bool) -> None:
    """Inputs as models take them and labels, in the order of the client's rows."""
    x = KINDS[kind]
    examples = make_examples(x, ready=ready)
    assert frozenset(examples.clients.tolist()) == {7, 2, 5, 3}
    for client, rows in ROWS.items():
        inputs, labels = examples.select_clients([client])
        assert torch.equal(inputs, compute_expected_inputs(x, client))
        assert inputs.dtype == torch.float32
        assert labels.tolist() == [10 * row for row in rows]
        assert examples.count(client) == len(rows)


@each_kind
@each_way
@pytest.mark.parametrize("clients", [[7, 2], [2, 5, 3], [3, 7], [3, 2, 7, 5], [7, 3]])
def test_several_clients_are_one_after_the_other(
    kind: str, ready: bool, clients: list[int]
) -> None:
    """Clients are returned in the given order, adjacent or not."""
    examples = make_examples(KINDS[kind], ready=ready)
    inputs, labels = examples.select_clients(clients)
    assert torch.equal(
        inputs, torch.cat([compute_expected_inputs(KINDS[kind], k) for k in clients])
    )
    assert labels.tolist() == [10 * row for k in clients for row in ROWS[k]]


@each_kind
@each_way
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_by_their_number(kind: str, ready: bool, dtype: torch.dtype) -> None:
    """A client's rows begin at its start; any rows of several clients are one gather."""
    examples = make_examples(KINDS[kind], ready=ready, dtype=dtype)
    chosen = [(3, 2), (7, 0), (2, 0), (3, 2), (3, 3)]
    rows = torch.tensor([examples.get_start(k) + i for k, i in chosen])
    expected = torch.stack([compute_expected_inputs(KINDS[kind], k, dtype)[i] for k, i in chosen])
    made = examples.gather_inputs(rows)
    assert made.dtype == dtype
    assert torch.equal(made, expected)
    out = torch.full_like(made, -1.0)
    assert examples.gather_inputs(rows, out=out).data_ptr() == out.data_ptr()
    assert torch.equal(out, expected)
    assert examples.gather_labels(rows).tolist() == [10 * ROWS[k][i] for k, i in chosen]


def test_neighbors_are_views() -> None:
    """Ready inputs of clients next to each other are not copied, nor are labels."""
    examples = make_examples(KINDS["numbers"], ready=True)
    whole, all_labels = examples.select_clients([7, 2, 5, 3])
    for clients in ([7], [2, 5], [5, 3]):
        inputs, labels = examples.select_clients(clients)
        start = examples.get_start(clients[0])
        assert inputs.data_ptr() == whole[start:].data_ptr()
        assert labels.data_ptr() == all_labels[start:].data_ptr()


class Counting(np.memmap[Any, Any]):
    """A file's samples that count how many are read."""

    read = 0

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, np.ndarray):
            Counting.read += len(key)
        return super().__getitem__(key)


def test_samples_of_a_file_are_read_on_demand(tmp_path: Path) -> None:
    """Samples that are not resident are read on demand, and only the requested rows."""
    x = KINDS["color"]
    mapped = Counting(tmp_path / "x", dtype=np.uint8, mode="w+", shape=x.shape)
    mapped[:] = x
    Counting.read = 0
    pool = make_pool(mapped)
    examples = Examples(pool, CPU, max_resident_bytes=0)
    assert Counting.read == 0
    assert examples._pool is pool.x
    inputs = examples.gather_inputs(
        torch.tensor([examples.get_start(3) + 1, examples.get_start(2)])
    )
    assert Counting.read == 2
    assert torch.equal(inputs, torch.from_numpy(to_inputs(x[[2, 0]])))
    assert torch.equal(examples.select_clients([7])[0], compute_expected_inputs(x, 7))
    assert Counting.read == 5


def test_the_limit_of_resident_samples() -> None:
    """The limit applies to the size of all clients' samples as read."""
    needed = 8 * 4 * 3  # 8 rows of 12 pixels in a byte each
    for limit, ready in {needed: True, needed - 1: False}.items():
        examples = Examples(make_pool(KINDS["gray"]), CPU, max_resident_bytes=limit)
        assert (examples._samples is not None) is ready


def test_labels_of_sequences() -> None:
    """Labels may have further axes."""
    y = np.arange(30).reshape(10, 3)
    pool = PooledSplit(
        KINDS["numbers"], y, RowIndex.from_mapping({0: np.array([3, 1]), 1: np.array([7])})
    )
    examples = Examples(pool, CPU)
    assert examples.select_clients([1, 0])[1].tolist() == y[[7, 3, 1]].tolist()
    assert examples.gather_labels(torch.tensor([2])).tolist() == [y[7].tolist()]


def test_no_clients() -> None:
    """A process without clients has no examples."""
    examples = Examples(PooledSplit(KINDS["gray"], np.arange(10), RowIndex.from_mapping({})), CPU)
    assert frozenset(examples.clients.tolist()) == frozenset()
