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

from client_app.ray_address import check_ray_address
from client_app.workers import count_process_cores

LOCAL = "local"


@dataclass(frozen=True)
class Machine:
    """A machine of the cluster, with its whole cores and GPUs."""

    cores: int
    gpus: int = 0


@dataclass(frozen=True)
class WorkerResources:
    """The number of workers, and the share of each."""

    workers: int
    cores: int
    gpus: int = 0

    def count_workers_on(self, machine: Machine) -> int:
        """Return how many such workers a machine can have."""
        by_cores = machine.cores // self.cores
        return min(by_cores, machine.gpus // self.gpus) if self.gpus else by_cores


@contextmanager
def join_cluster(
    address: str | None, *, setting: str = "engine.address", cores: int = 1
) -> Iterator[None]:
    """Join a cluster, or start Ray here; leave or stop it in the end.

    A process that uses Ray already goes on with the cluster that it is in.

    Parameters
    ----------
    address : str, optional
        HOST:PORT, or ``local``; by default what RAY_ADDRESS says.
    setting : str
        What the address was given by.
    cores : int
        How many cores Ray is to have at least if it is started here.

    Raises
    ------
    SettingsError
        If nothing listens at the address, or what listens there cannot be joined.
    """
    if ray.is_initialized():
        yield
        return
    with _restore_sigterm_handler(), warnings.catch_warnings():
        # Of what a later version of Ray will do with GPUs that no worker has asked for.
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
            f"the Ray cluster at {address} cannot be joined: {to_one_line(error)} (this machine must "
            f"be one of the cluster's: ray start --address={address})"
        ) from None


@contextmanager
def _restore_sigterm_handler() -> Iterator[None]:
    """Put back the handler of SIGTERM: Ray's would end the process without its records."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def list_machines() -> list[Machine]:
    """Return the machines of the cluster that are there."""
    alive = (node["Resources"] for node in ray.nodes() if node["Alive"])
    return [Machine(int(found.get("CPU", 0)), int(found.get("GPU", 0))) for found in alive]


def divide_cluster(
    cluster: Sequence[Machine], workers: int | None, *, max_workers: int, gpus_wanted: bool
) -> WorkerResources:
    """Divide a cluster among workers: one GPU for each where there are any, all cores otherwise.

    Parameters
    ----------
    cluster : sequence of Machine
        The cluster.
    workers : int, optional
        ``engine.workers``; by default as many as there are GPUs or cores.
    max_workers : int
        How many workers have something to do.
    gpus_wanted : bool
        Whether clients may use a GPU.

    Raises
    ------
    SettingsError
        If there are more workers than the cluster has GPUs or cores.
    """
    gpus = int(gpus_wanted and any(machine.gpus for machine in cluster))

    def places(cores: int) -> int:
        share = WorkerResources(1, cores, gpus)
        return sum(share.count_workers_on(machine) for machine in cluster)

    most = places(1)
    wanted = min(most if workers is None else workers, max_workers)
    if wanted > most or most == 0:
        raise SettingsError(
            f"engine.workers must be null or a whole number from 1 to {most}, the "
            f"{'GPUs' if gpus else 'cores'} of the cluster, got {workers}"
        )
    cores = max(
        cores for cores in range(1, 1 + max(m.cores for m in cluster)) if places(cores) >= wanted
    )
    return WorkerResources(wanted, cores, gpus)
