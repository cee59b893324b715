"""Test joining the cluster of a run, and dividing it among workers."""

import time
from collections.abc import Sequence

import pytest
import ray
from fedquorum.errors import RunError, SettingsError

from server_app.engines.ray import cluster
from server_app.engines.ray.cluster import Machine, WorkerResources, divide_cluster, join_cluster
from tests.integration.conftest import find_free_port

TWO = (Machine(8), Machine(8))
GPUS = (Machine(16, 4), Machine(16, 4))


@pytest.mark.parametrize(
    ("machines", "workers", "max_workers", "expected"),
    [
        (TWO, None, 100, WorkerResources(16, 1)),
        (TWO, None, 5, WorkerResources(5, 2)),  # with three cores each, only two fit on a machine
        (TWO, 2, 100, WorkerResources(2, 8)),
        (TWO, 3, 100, WorkerResources(3, 4)),
        (TWO, 16, 100, WorkerResources(16, 1)),
        ((Machine(7), Machine(1)), 2, 100, WorkerResources(2, 3)),
        ((Machine(0), Machine(2)), None, 100, WorkerResources(2, 1)),
        (GPUS, None, 100, WorkerResources(8, 4, 1)),
        (GPUS, 2, 100, WorkerResources(2, 16, 1)),
        ((Machine(16, 1), Machine(64)), None, 100, WorkerResources(1, 16, 1)),
    ],
)
def test_workers_fit_on_the_machines(
    machines: Sequence[Machine], workers: int | None, max_workers: int, expected: WorkerResources
) -> None:
    """Each worker has one GPU if there are any, and all its cores on one machine."""
    assert divide_cluster(machines, workers, max_workers=max_workers, gpus_wanted=True) == expected


def test_clients_that_stay_on_the_cpu_need_no_gpu() -> None:
    """With ``client.device=cpu``, only the cores are divided."""
    assert divide_cluster(GPUS, None, max_workers=100, gpus_wanted=False) == WorkerResources(32, 1)


@pytest.mark.parametrize(
    ("machines", "workers", "message"),
    [
        (TWO, 17, "a whole number from 1 to 16, the cores of the cluster, got 17"),
        (GPUS, 9, "a whole number from 1 to 8, the GPUs of the cluster, got 9"),
        ((Machine(0),), None, "a whole number from 1 to 0, the cores of the cluster, got None"),
    ],
)
def test_more_workers_than_the_cluster_can_host_are_refused(
    machines: Sequence[Machine], workers: int | None, message: str
) -> None:
    """They would wait forever."""
    with pytest.raises(SettingsError, match=f"engine.workers must be null or {message}"):
        divide_cluster(machines, workers, max_workers=100, gpus_wanted=True)


@pytest.mark.parametrize("name", ["engine.address", "RAY_ADDRESS"])
def test_an_address_without_a_cluster_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The error is one line within seconds, with the address and the command to type."""
    address = f"127.0.0.1:{find_free_port()}"
    monkeypatch.setenv("RAY_ADDRESS", address)
    given = address if name == "engine.address" else None
    started = time.monotonic()
    with (
        pytest.raises(
            SettingsError,
            match=rf"^{name} must be the HOST:PORT of a Ray cluster that runs, got {address} "
            r"\(.*refused\): start one with ray start --head, .* or use engine.address=local$",
        ),
        join_cluster(given),
    ):
        pass
    assert time.monotonic() - started < 5


def test_an_address_of_another_form_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """An address of Ray's client is not an address of a cluster that can be joined."""
    monkeypatch.setenv("RAY_ADDRESS", "ray://head:10001")
    with (
        pytest.raises(SettingsError, match=r"^RAY_ADDRESS must be the HOST:PORT .* or local, got"),
        join_cluster(None),
    ):
        pass


def test_a_cluster_that_refuses_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster with another version of Ray raises an error with several lines."""

    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("Version mismatch:\n  Ray: 1.0\n")

    monkeypatch.setattr(cluster, "check_ray_address", lambda *_: None)
    monkeypatch.setattr(ray, "init", refuse)
    message = r"^the Ray cluster at head:1 cannot be joined: Version mismatch: Ray: 1.0 \(this mach"
    with pytest.raises(RunError, match=message), join_cluster("head:1"):
        pass


def test_a_joined_cluster_is_neither_joined_again_nor_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has joined a cluster stays in it."""
    calls: list[str] = []
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "init", lambda *_, **__: calls.append("init"))
    monkeypatch.setattr(ray, "shutdown", lambda: calls.append("shutdown"))
    with join_cluster(None):
        assert calls == []
    assert calls == []
