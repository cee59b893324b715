"""The clients that a process hosts."""

from typing import Any

import pytest
import torch

from client_app.node import compute_device, hosted_clients
from conf import SettingsError

# --- which clients a node hosts --------------------------------------------------------------


@pytest.mark.parametrize("num_nodes", range(1, 8))
@pytest.mark.parametrize("num_clients", [1, 5, 6])
def test_every_client_is_on_one_node(num_nodes: int, num_clients: int) -> None:
    """With M nodes, node j hosts the k with k mod M = j: each client once."""
    for j in range(num_nodes):
        config = {"partition-id": j, "num-partitions": num_nodes}
        expected = [k for k in range(num_clients) if k % num_nodes == j]
        assert list(hosted_clients(config, num_clients)) == expected


@pytest.mark.parametrize("client", [0, 4])
def test_named_client(client: int) -> None:
    """A node with client-id hosts that client, whatever its partition."""
    assert hosted_clients({"client-id": client}, 5) == (client,)
    config = {"client-id": client, "partition-id": 1, "num-partitions": 2}
    assert hosted_clients(config, 5) == (client,)


@pytest.mark.parametrize("client", [-1, 5, "3", 3.0, None])
def test_impossible_client(client: object) -> None:
    """A client-id that is not one of the clients raises with range and value."""
    with pytest.raises(SettingsError) as caught:
        hosted_clients({"client-id": client}, 5)
    assert str(caught.value) == f"client-id must be a whole number from 0 to 4, got {client!r}"


def test_truth_is_no_client() -> None:
    """A client-id of true is refused like any other value that is no whole number."""
    with pytest.raises(SettingsError, match="client-id must be a whole number"):
        hosted_clients({"client-id": True}, 5)


@pytest.mark.parametrize("config", [{}, {"partition-id": 0}, {"num-partitions": 2}, {"x": 1}])
def test_node_config_without_clients(config: dict[str, Any]) -> None:
    """A node config that says nothing about clients raises and is shown."""
    with pytest.raises(SettingsError) as caught:
        hosted_clients(config, 5)
    assert "must hold client-id, or partition-id and num-partitions" in str(caught.value)
    assert str(caught.value).endswith(f"got {config}")


def test_auto_takes_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is a GPU auto means CUDA, and cpu still means the CPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    names = {name: compute_device(name).type for name in ("auto", "cuda", "cpu")}
    assert names == {"auto": "cuda", "cuda": "cuda", "cpu": "cpu"}
