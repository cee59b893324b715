"""The clients that a process hosts."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fedquorum.flower.mods import AvailabilityMod, ResponseTimeMod
from numpy.typing import NDArray

from client_app.app import get_node
from client_app.data.base import PooledSplit, Split
from client_app.data.synth import SynthData
from client_app.node.node import Node, compute_hosted_clients, resolve_device
from conf import SettingsError, compose_settings

# --- which clients a node hosts --------------------------------------------------------------


@pytest.mark.parametrize("num_nodes", range(1, 8))
@pytest.mark.parametrize("num_clients", [1, 5, 6])
def test_every_client_is_on_one_node(num_nodes: int, num_clients: int) -> None:
    """With M nodes, node j hosts the k with k mod M = j: each client once."""
    for j in range(num_nodes):
        config = {"partition-id": j, "num-partitions": num_nodes}
        expected = [k for k in range(num_clients) if k % num_nodes == j]
        assert list(compute_hosted_clients(config, num_clients)) == expected


@pytest.mark.parametrize("client", [0, 4])
def test_named_client(client: int) -> None:
    """A node with client-id hosts that client, for any partition-id."""
    assert compute_hosted_clients({"client-id": client}, 5) == (client,)
    config = {"client-id": client, "partition-id": 1, "num-partitions": 2}
    assert compute_hosted_clients(config, 5) == (client,)


@pytest.mark.parametrize("client", [-1, 5, "3", 3.0, None])
def test_impossible_client(client: object) -> None:
    """A client-id that is not one of the clients raises with range and value."""
    with pytest.raises(SettingsError) as caught:
        compute_hosted_clients({"client-id": client}, 5)
    assert str(caught.value) == f"client-id must be a whole number from 0 to 4, got {client!r}"


def test_truth_is_no_client() -> None:
    """A client-id of true is refused like any other value that is no whole number."""
    with pytest.raises(SettingsError, match="client-id must be a whole number"):
        compute_hosted_clients({"client-id": True}, 5)


@pytest.mark.parametrize("config", [{}, {"partition-id": 0}, {"num-partitions": 2}, {"x": 1}])
def test_node_config_without_clients(config: dict[str, Any]) -> None:
    """A node config without a client raises; the error has its keys, not its values."""
    with pytest.raises(SettingsError) as caught:
        compute_hosted_clients(config, 5)
    assert "must hold client-id, or partition-id and num-partitions" in str(caught.value)
    assert str(caught.value).endswith(f"got {''.join(config) or 'nothing'}")


def test_auto_takes_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is a GPU auto means CUDA, and cpu still means the CPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    names = {name: resolve_device(name).type for name in ("auto", "cuda", "cpu")}
    assert names == {"auto": "cuda", "cuda": "cuda", "cpu": "cpu"}


# --- its data and model ----------------------------------------------------------------------

WORDS = (
    "data=synth data.num_clients=5 data.num_priority=2 data.sizes=equal "
    "data.samples_per_client=20 client.device=cpu client.local_epochs=1"
)


def make_node(overrides: str = "") -> Node:
    return Node(compose_settings("custom", f"{WORDS} {overrides}").settings)


@pytest.mark.parametrize(
    ("overrides", "mods"),
    [
        ("", []),
        ("strategy=average_all privacy=dp_fixed_server", []),
        ("strategy=average_all privacy=dp_fixed_client", []),
        ("availability=bernoulli", [AvailabilityMod]),
        ("strategy=fedavg response_time=lognormal engine.round_timeout=9", [ResponseTimeMod]),
    ],
)
def test_settings_determine_the_mods(overrides: str, mods: list[type]) -> None:
    """A train message passes through the mods that the settings require, and no others."""
    assert [type(mod) for mod in make_node(overrides).get_mods(range(5))] == mods


@pytest.mark.parametrize(
    ("privacy", "clips"),
    [
        ("none", False),
        ("dp_fixed_server", False),
        ("dp_fixed_client", True),
        ("dp_adaptive_client", True),
    ],
)
def test_settings_say_if_clients_clip(privacy: str, clips: bool) -> None:
    """The server clips in any case."""
    assert make_node(f"strategy=average_all privacy={privacy}").clips_updates is clips


def test_clients_are_loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loaded clients stay; others are added, all in one array."""
    node = make_node()
    selected: list[list[int]] = []
    pool = SynthData.get_pooled_split

    def note_clients(self: SynthData, split: Split, clients: Sequence[int]) -> PooledSplit:
        selected.append(list(clients))
        return pool(self, split, clients)

    monkeypatch.setattr(SynthData, "get_pooled_split", note_clients)
    node.load_clients([3, 1])
    node.load_clients([1])
    first = node.get_client(3)
    assert selected == [[1, 3]] * 2
    node.load_clients([1, 4])
    assert selected[2:] == [[1, 3, 4]] * 2
    assert first.get_properties({}) == node.get_client(3).get_properties({}) == {"client-id": 3}


def test_a_client_does_not_depend_on_other_clients() -> None:
    """A client's metrics and model are the same alone on its node or with all others."""
    separate, all_there, extended = make_node(), make_node(), make_node()
    all_there.load_clients(range(5))
    extended.load_clients([4])
    extended.load_clients([2])
    shapes = ((10, 60), (10,))
    rng = np.random.default_rng(0)
    arrays = [rng.normal(0, 0.1, shape).astype(np.float32) for shape in shapes]
    expected, count, metrics = separate.get_client(2).fit(arrays, {"server-round": 2})
    for node in (all_there, extended):
        found, found_count, found_metrics = node.get_client(2).fit(arrays, {"server-round": 2})
        assert found_count == count
        assert found_metrics == metrics
        for array, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(array, other)


def test_the_settings_reach_training() -> None:
    """Hyperparameters, seed, metric and way of training are those of the settings."""
    overrides = (
        "client.lr=0.3 client.momentum=0.2 client.batching=sequential evaluation.metric=f1 seed=7"
    )
    node = make_node(overrides)
    node.load_clients([0])
    assert node.evaluator.metric == "f1"
    setup = node.trainer._setup
    assert (setup.config.lr, setup.config.momentum) == (0.3, 0.2)
    assert (setup.seed, node.trainer._batching) == (7, "sequential")


def test_augmentation_needs_images() -> None:
    """A node whose data are no images refuses an augmentation."""
    message = r"client.augmentation must be none .*inputs \(60,\)"
    with pytest.raises(SettingsError, match=message):
        make_node("client.augmentation=crop_flip").load_clients([0])


def test_normalized_images_change_colors(tmp_path: Path) -> None:
    """As FedAU's CIFAR-100 asks for; what trains on them differs from what trains without."""
    rng = np.random.default_rng(2)
    x, y = rng.integers(256, size=(40, 8, 8, 3), dtype=np.uint8), np.arange(40) % 4
    np.savez(tmp_path / "data.npz", x_train=x[:30], y_train=y[:30], x_test=x[30:], y_test=y[30:])
    overrides = (
        f"data=npz data.path={tmp_path}/data.npz data.partition=iid data.num_clients=2 "
        "data.priority=all model=mlp client.device=cpu client.local_epochs=1"
    )

    def train_alone(more: str) -> list[NDArray[Any]]:
        node = Node(compose_settings("custom", f"{overrides} {more}").settings)
        node.load_clients([0, 1])
        start = [tensor.numpy().copy() for tensor in node._model.state_dict().values()]
        return node.trainer.train_client(start, 1, 0)

    normalized = "data.normalize=true client.augmentation="
    changed = train_alone(normalized + "cifar100")
    assert all(np.isfinite(array).all() for array in changed)
    for other in (normalized + "none", normalized + "crop_flip", "client.augmentation=cifar100"):
        assert not np.array_equal(changed[0], train_alone(other)[0])


def test_precision_of_products() -> None:
    """With tf32 a GPU's products of matrices have fewer bits, by default they are exact."""
    try:
        for value, expected in {"true": "high", "false": "highest"}.items():
            make_node(f"client.tf32={value}")
            assert torch.get_float32_matmul_precision() == expected
    finally:
        torch.set_float32_matmul_precision("highest")
        torch.backends.cudnn.allow_tf32 = False


def test_a_node_sets_its_switches_again() -> None:
    """The node of a run is stored: others may change PyTorch's switches between its messages."""
    config = {"experiment": "fedalign/synth_low", "overrides": "client.device=cpu client.tf32=true"}
    try:
        node = get_node(config)
        torch.set_float32_matmul_precision("highest")
        torch.backends.cudnn.allow_tf32 = False
        assert get_node(config) is node
        assert torch.get_float32_matmul_precision() == "high"
        assert torch.backends.cudnn.allow_tf32
    finally:
        torch.set_float32_matmul_precision("highest")
        torch.backends.cudnn.allow_tf32 = False


class NoGpuError(Exception):
    """The end of a node whose GPU is pretended."""


@pytest.mark.parametrize("wanted", [True, False])
def test_deterministic_algorithms_are_for_a_gpu(
    wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU is configured before it computes; a CPU is deterministic and not configured."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")  # so that it is restored
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    overrides = f"client.deterministic={str(wanted).lower()}"
    try:
        make_node(overrides)
        assert not torch.are_deterministic_algorithms_enabled()
        assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ

        def stops(*_: object) -> None:
            raise NoGpuError

        monkeypatch.setattr("client_app.node.node.resolve_device", lambda _: torch.device("cuda"))
        monkeypatch.setattr("client_app.node.node.build_trained_model", stops)
        for said, expected in ((None, ":4096:8"), (":16:8", ":16:8")):
            if said is not None:
                monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", said)
            with pytest.raises(NoGpuError):
                make_node(overrides)
            assert torch.are_deterministic_algorithms_enabled() is wanted
            assert os.environ.get("CUBLAS_WORKSPACE_CONFIG") == (expected if wanted else said)
    finally:
        torch.use_deterministic_algorithms(False)


def test_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing can be compiled the setting is refused before any training, in one line."""

    def fails(_: object) -> None:
        raise RuntimeError("No working C++ compiler found\nSet TORCHDYNAMO_VERBOSE=1 for the rest")

    monkeypatch.setattr(torch, "compile", fails)
    with pytest.raises(SettingsError) as caught:
        make_node("client.compile=true")
    assert str(caught.value) == (
        "client.compile must be false where torch.compile does not work, got true: "
        "No working C++ compiler found"
    )
