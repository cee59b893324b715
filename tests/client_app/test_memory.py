"""Large data: what a process holds does not grow with the clients that it does not host."""

import tracemalloc
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from client_app.data import load_data
from client_app.data.partitioned import PartitionedData
from conf.schema.data import NpzSettings

CLIENTS, EACH, WIDTH = 10_000, 4, 784
MEGABYTE = 2**20


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write 120 MB of float32 inputs with 10,000 clients of their own."""
    path = tmp_path_factory.mktemp("large") / "large.npz"
    n = CLIENTS * EACH
    x = np.zeros((n, WIDTH), dtype=np.float32)
    x[:, 0] = np.arange(n)
    y = np.arange(n) % 10
    np.savez(
        path,
        allow_pickle=False,
        x_train=x,
        y_train=y,
        x_test=x[:10],
        y_test=y[:10],
        client_train=np.arange(n) % CLIENTS,
    )
    assert path.stat().st_size > 115 * MEGABYTE
    return path


@pytest.mark.slow
@pytest.mark.parametrize("partition", ["natural", "iid", "quantity"])
def test_ten_thousand_clients_share_one_array(large: Path, partition: str) -> None:
    """Loading, and the data of a few clients, take a small part of the array's size."""
    settings = NpzSettings(
        path=str(large), partition=partition, priority="all", num_clients=CLIENTS
    )
    if partition != "natural":
        settings.num_clients = 10  # the test set has 10 rows
    import_module("flwr_datasets.partitioner")  # whose own memory is not measured
    tracemalloc.start()
    try:
        data = load_data(settings, 1)
        clients = [data.get_client(k) for k in range(0, data.num_clients, data.num_clients // 2)]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert isinstance(data, PartitionedData)
    x = data._arrays.x_train
    assert isinstance(x, np.ndarray)
    client_bytes = sum(client.x_train.nbytes + client.x_test.nbytes for client in clients)
    assert peak < 40 * MEGABYTE + 2 * client_bytes
    assert not any(np.shares_memory(client.x_train, x) for client in clients)
    for client in clients:
        np.testing.assert_array_equal(client.y_train, client.x_train[:, 0] % 10)


@pytest.mark.slow
def test_rows_of_natural_clients(large: Path) -> None:
    """Each of the 10,000 has its own rows, and no other's."""
    data = load_data(NpzSettings(path=str(large), partition="natural", priority="all"), 1)
    for k in (0, 1, 9_999):
        client = data.get_client(k)
        seen = sorted([*client.x_train[:, 0].tolist(), *client.x_test[:, 0].tolist()])
        assert seen == [k + i * CLIENTS for i in range(EACH)]
