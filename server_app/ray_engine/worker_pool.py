"""The workers of a run: started, compared with this process, and started again when they die."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import ray
from fedquorum.errors import FedQuorumError, RunError, to_one_line
from ray.exceptions import RayError, RayTaskError

from server_app.in_process import NodeStates
from server_app.ray_engine.cluster import WorkerResources
from server_app.ray_engine.worker import Worker, WorkerConfig, register_array_serializer


@dataclass(eq=False)
class WorkerHandle:
    """One worker.

    Parameters
    ----------
    index : int
        Its number, from 0.
    nodes : tuple of int
        The nodes that it hosts.
    actor : ActorHandle
        Ray's handle of it.
    ready : ObjectRef
        The kind of its device, once it hosts them.
    start_deadline : float
        When it should have started, by the monotonic clock; infinity once it has.
    """

    index: int
    nodes: tuple[int, ...]
    actor: Any
    ready: Any
    start_deadline: float


class RayWorkerPool:
    """All workers of a run; node j + 1 is hosted by worker j mod M.

    Parameters
    ----------
    share : Share
        How many workers, and what of the cluster each of them gets.
    get_worker : Hosting
        What they host.
    threads : int
        Among how many cores each divides its clients.
    startup_timeout : float
        For how many seconds the nodes of a worker that is started, again too, do not count as gone.

    Attributes
    ----------
    device : str or None
        On what kind of device clients train; None if it is not the same on all workers.
    """

    def __init__(
        self, share: WorkerResources, hosting: WorkerConfig, *, threads: int, startup_timeout: float
    ) -> None:
        self.startup_timeout = startup_timeout
        self.num_nodes = hosting.num_nodes
        self.device: str | None = None
        self._share = share
        self._threads = threads
        register_array_serializer()
        self._hosting = ray.put(hosting)
        self.members = [
            self._start_worker(place, {}, cores=share.cores, start_deadline=math.inf)
            for place in range(share.workers)
        ]

    def _start_worker(
        self, index: int, states: NodeStates, *, cores: int, start_deadline: float
    ) -> WorkerHandle:
        make = ray.remote(num_cpus=cores, num_gpus=self._share.gpus)(Worker)
        actor: Any = make.remote(self._threads)
        nodes = tuple(range(index + 1, self.num_nodes + 1, self._share.workers))
        kept = {node: state for node, state in states.items() if int(node) in nodes}
        return WorkerHandle(
            index, nodes, actor, actor.host.remote(self._hosting, nodes, kept), start_deadline
        )

    @contextmanager
    def keep_running(self) -> Iterator[None]:
        """Wait until all workers have started; end them in the end.

        Raises
        ------
        RunError
            If they have not within ``startup_timeout`` seconds, one cannot start, or its code is
            another.
        """
        try:
            self._wait_for_all()
            yield
        finally:
            for member in self.members:
                ray.kill(member.actor)

    def _wait_for_all(self) -> None:
        deadline = time.monotonic() + self.startup_timeout
        missing = {member.ready: member for member in self.members}
        devices = set()
        while missing:
            left = max(0.0, deadline - time.monotonic())
            done, _ = ray.wait(list(missing), timeout=left)
            if not done:
                raise RunError(
                    f"after {self.startup_timeout:g} s (engine.startup_timeout), "
                    f"{len(self.members) - len(missing)} of {len(self.members)} workers have "
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
        return self.members[(node - 1) % len(self.members)]

    def is_available(self, worker: WorkerHandle) -> bool:
        """Say whether a worker has started, or is still expected to.

        Raises
        ------
        FedQuorumError
            If it was started again where it cannot work, as with other code.
        """
        if worker.start_deadline == math.inf:
            return True
        if not ray.wait([worker.ready], timeout=0)[0]:
            return time.monotonic() < worker.start_deadline
        worker.start_deadline = math.inf
        with suppress(RayError):  # the next message tells
            _get_device(worker)
        return True

    def restart(self, worker: WorkerHandle, states: NodeStates) -> None:
        """Restart a worker that died, with its clients' states.

        It asks for no cores, so that it finds room on any machine that is left.
        """
        if self.members[worker.index] is not worker:
            return
        ray.kill(worker.actor)
        expected = time.monotonic() + self.startup_timeout
        self.members[worker.index] = self._start_worker(
            worker.index, states, cores=0, start_deadline=expected
        )


def _get_device(worker: WorkerHandle) -> str:
    """Return the kind of device of a worker that has started."""
    return str(get_result(worker.ready))


def get_result(reference: Any) -> Any:
    """Return a task's result, or raise its error if it is one of ours."""
    try:
        return ray.get(reference)
    except RayTaskError as error:
        if isinstance(error.cause, FedQuorumError):
            raise error.cause from None
        raise


def describe_worker_error(error: RayError) -> str:
    """Return why a worker failed, in one line: what it raised, or why Ray says that it died."""
    if isinstance(error, RayTaskError):
        named = "" if isinstance(error.cause, FedQuorumError) else f"{type(error.cause).__name__}: "
        return f"{named}{to_one_line(error.cause)}"
    # Ray's last line names the cause, and then guesses.
    return str(error).strip().splitlines()[-1].strip().partition(" Some common causes")[0]
