"""Join or start the Ray cluster of a run, and divide it among the workers."""

import logging
import os
import signal
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import ray
from fedquorum.errors import RunError, SettingsError, to_one_line

from client_app.simulation.ray_address import check_ray_address
from client_app.training.workers import count_process_cores

LOCAL = "local"


@dataclass(frozen=True)
class Machine:
    """A machine of the cluster, with its whole cores and GPUs."""

    cores: int
    gpus: int = 0


@dataclass(frozen=True)
class WorkerResources:
    """The number of workers, and the cores and GPUs of each."""

    workers: int
    cores: int
    gpus: int = 0

    def count_workers_on(self, machine: Machine) -> int:
        """Return how many of these workers a machine can host."""
        by_cores = machine.cores // self.cores
        return min(by_cores, machine.gpus // self.gpus) if self.gpus else by_cores


@contextmanager
def join_cluster(
    address: str | None, *, setting: str = "engine.address", cores: int = 1
) -> Iterator[None]:
    """Join a cluster, or start Ray here; leave or stop it in the end.

    A process that has already joined a cluster stays in it.

    Parameters
    ----------
    address : str, optional
        HOST:PORT, or ``local``; by default the environment's RAY_ADDRESS.
    setting : str
        The setting of the address, for error messages.
    cores : int
        The minimum number of cores of a Ray that is started here.

    Raises
    ------
    SettingsError
        If no service listens at the address.
    RunError
        If the cluster at the address cannot be joined.
    """
    if ray.is_initialized():
        yield
        return
    with _restore_sigterm_handler(), warnings.catch_warnings():
        # Ray announces a change for GPUs that no worker requested.
        warnings.filterwarnings("ignore", category=FutureWarning, module="ray")
        _initialize_ray(address, setting, cores)
    try:
        yield
    finally:
        ray.shutdown()


def _initialize_ray(given: str | None, setting: str, cores: int) -> None:
    address = given or os.environ.get("RAY_ADDRESS") or LOCAL
    if address == LOCAL:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        ray.init(
            LOCAL,
            num_cpus=max(count_process_cores(), cores),
            include_dashboard=False,
            logging_level=logging.WARNING,
        )
        return
    advice = f"start one with ray start --head, which prints its address, or use {setting}=local"
    check_ray_address(setting if given else "RAY_ADDRESS", address, advice)
    try:
        ray.init(address, logging_level=logging.WARNING)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        raise RunError(
            f"the Ray cluster at {address} cannot be joined: {to_one_line(error)} (this machine "
            f"must be one of the cluster's: ray start --address={address})"
        ) from None


@contextmanager
def _restore_sigterm_handler() -> Iterator[None]:
    """Restore the handler of SIGTERM, because Ray's would end the process without its records."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def list_machines() -> list[Machine]:
    """Return the machines of the cluster that are alive."""
    alive = (node["Resources"] for node in ray.nodes() if node["Alive"])
    return [Machine(int(one.get("CPU", 0)), int(one.get("GPU", 0))) for one in alive]


def divide_cluster(
    cluster: Sequence[Machine], workers: int | None, *, max_workers: int, gpus_wanted: bool
) -> WorkerResources:
    """Divide a cluster among workers: one GPU each if it has any, otherwise all cores.

    Parameters
    ----------
    cluster : sequence of Machine
        The machines of the cluster.
    workers : int, optional
        ``engine.workers``; by default one for each GPU or core.
    max_workers : int
        The number of workers that would host a node.
    gpus_wanted : bool
        Whether clients may use a GPU.

    Raises
    ------
    SettingsError
        If there are more workers than the cluster has GPUs or cores.
    """
    gpus = int(gpus_wanted and any(machine.gpus for machine in cluster))

    def count_workers(cores: int) -> int:
        resources = WorkerResources(1, cores, gpus)
        return sum(resources.count_workers_on(machine) for machine in cluster)

    limit = count_workers(1)
    num_workers = min(limit if workers is None else workers, max_workers)
    if num_workers > limit or limit == 0:
        raise SettingsError(
            f"engine.workers must be null or a whole number from 1 to {limit}, the "
            f"{'GPUs' if gpus else 'cores'} of the cluster, got {workers}"
        )
    cores = max(
        cores
        for cores in range(1, 1 + max(machine.cores for machine in cluster))
        if count_workers(cores) >= num_workers
    )
    return WorkerResources(num_workers, cores, gpus)
