"""Start the workers of a run, compare their code with this process, and restart dead ones."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import ray
from fedquorum.errors import FedQuorumError, RunError, to_one_line
from ray.exceptions import RayError, RayTaskError

from server_app.engines.in_process import NodeStates
from server_app.engines.ray.cluster import WorkerResources
from server_app.engines.ray.worker import Worker, WorkerConfig, register_array_serializer


@dataclass(eq=False)
class WorkerHandle:
    """The state of one worker in the run's process.

    Parameters
    ----------
    index : int
        The worker's number, from 0.
    nodes : tuple of int
        The nodes that it hosts.
    actor : ActorHandle
        Ray's handle of the worker.
    ready : ObjectRef
        The type of the worker's device, once it has started.
    start_deadline : float
        When it must have started, by the monotonic clock; infinity once it has.
    """

    index: int
    nodes: tuple[int, ...]
    actor: Any
    ready: Any
    start_deadline: float


class RayWorkerPool:
    """All M workers of a run; worker j mod M hosts node j + 1.

    Parameters
    ----------
    resources : WorkerResources
        The number of workers, and the cores and GPUs of each.
    config : WorkerConfig
        The inputs of all workers.
    threads : int
        The number of cores that each worker divides its clients among.
    startup_timeout : float
        Seconds in which a worker must start or restart; until then its nodes count as available.

    Attributes
    ----------
    device : str or None
        The type of device on which clients train; None if it differs between workers.
    """

    def __init__(
        self,
        resources: WorkerResources,
        config: WorkerConfig,
        *,
        threads: int,
        startup_timeout: float,
    ) -> None:
        self.startup_timeout = startup_timeout
        self.num_nodes = config.num_nodes
        self.device: str | None = None
        self._resources = resources
        self._threads = threads
        register_array_serializer()
        self._config = ray.put(config)
        self.workers = [
            self._start_worker(i, {}, cores=resources.cores, start_deadline=math.inf)
            for i in range(resources.workers)
        ]

    def _start_worker(
        self, index: int, states: NodeStates, *, cores: int, start_deadline: float
    ) -> WorkerHandle:
        actor_class = ray.remote(num_cpus=cores, num_gpus=self._resources.gpus)(Worker)
        actor: Any = actor_class.remote(self._threads)
        nodes = tuple(range(index + 1, self.num_nodes + 1, self._resources.workers))
        own_states = {node: state for node, state in states.items() if int(node) in nodes}
        ready = actor.host.remote(self._config, nodes, own_states)
        return WorkerHandle(index, nodes, actor, ready, start_deadline)

    @contextmanager
    def keep_running(self) -> Iterator[None]:
        """Wait until all workers have started; stop them in the end.

        Raises
        ------
        RunError
            If not all have started within ``startup_timeout`` seconds, one cannot start, or one has
            other code.
        """
        try:
            self._wait_for_all()
            yield
        finally:
            for worker in self.workers:
                ray.kill(worker.actor)

    def _wait_for_all(self) -> None:
        deadline = time.monotonic() + self.startup_timeout
        missing = {worker.ready: worker for worker in self.workers}
        devices = set()
        while missing:
            seconds_left = max(0.0, deadline - time.monotonic())
            done, _ = ray.wait(list(missing), timeout=seconds_left)
            if not done:
                raise RunError(
                    f"after {self.startup_timeout:g} s (engine.startup_timeout), "
                    f"{len(self.workers) - len(missing)} of {len(self.workers)} workers have "
                    "started: others may use the cluster (ray status)"
                )
            try:
                devices.add(_get_device(missing.pop(done[0])))
            except RayError as error:
                raise RunError(f"a worker cannot start: {describe_worker_error(error)}") from None
        self.device = devices.pop() if len(devices) == 1 else None

    def get_worker(self, node: int) -> WorkerHandle:
        """Return the worker of a node.

        Raises
        ------
        KeyError
            If there is no such node.
        """
        if not 1 <= node <= self.num_nodes:
            raise KeyError(node)
        return self.workers[(node - 1) % len(self.workers)]

    def is_available(self, worker: WorkerHandle) -> bool:
        """Say whether a worker has started, or is still expected to.

        Raises
        ------
        FedQuorumError
            If a restarted worker cannot work, for example because its machine has other code.
        """
        if worker.start_deadline == math.inf:
            return True
        if not ray.wait([worker.ready], timeout=0)[0]:
            return time.monotonic() < worker.start_deadline
        worker.start_deadline = math.inf
        with suppress(RayError):  # the next message reports the error
            _get_device(worker)
        return True

    def restart(self, worker: WorkerHandle, states: NodeStates) -> None:
        """Restart a worker that died, with its clients' states.

        The new worker requests no cores, so that any remaining machine can host it.
        """
        if self.workers[worker.index] is not worker:
            return
        ray.kill(worker.actor)
        deadline = time.monotonic() + self.startup_timeout
        self.workers[worker.index] = self._start_worker(
            worker.index, states, cores=0, start_deadline=deadline
        )


def _get_device(worker: WorkerHandle) -> str:
    """Return the type of device of a worker that has started."""
    return str(get_result(worker.ready))


def get_result(reference: Any) -> Any:
    """Return a task's result; raise a FedQuorumError of the task without Ray's wrapper."""
    try:
        return ray.get(reference)
    except RayTaskError as error:
        if isinstance(error.cause, FedQuorumError):
            raise error.cause from None
        raise


def describe_worker_error(error: RayError) -> str:
    """Return why a worker failed, in one line: its error, or Ray's reason for its death."""
    if isinstance(error, RayTaskError):
        is_ours = isinstance(error.cause, FedQuorumError)
        prefix = "" if is_ours else f"{type(error.cause).__name__}: "
        return f"{prefix}{to_one_line(error.cause)}"
    # Ray's last line names the cause, followed by guesses.
    return str(error).strip().splitlines()[-1].strip().partition(" Some common causes")[0]
