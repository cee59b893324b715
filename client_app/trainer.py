"""Train the clients of a process, one after the other or together."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from logging import INFO, WARNING
from typing import Any

import numpy as np
import torch
from fedquorum.errors import DataError
from flwr.common.logger import log
from numpy.typing import NDArray

from client_app.alone import NO_STARTS, AloneTraining, Result, Use
from client_app.arithmetic import ALONE, TOGETHER, TOGETHER_CLOSED, way_of
from client_app.arrays import Arrays
from client_app.batched import BatchedTraining
from client_app.training import TrainingSetup
from client_app.workers import SHARED_FLOPS, Workers, attempt, available_cores

CPU_MEMORY = 128 * 2**20  # more leaves the caches, and fresh memory costs more than it saves
GPU_SHARE = 4  # one in so many bytes that are free
FORWARD_AND_BACKWARD = 3  # times the operations of a forward pass


class Trainer:
    """Trains clients on their rows of ``setup.examples``, all with the same hyperparameters.

    Parameters
    ----------
    setup : TrainingSetup
        What they are trained with.
    batching : {"auto", "batched", "sequential"}
        Whether several clients train together, see ``trains_together``.
    threads : int
        Number of torch threads in a product of a client that trains alone.
    cores : int, optional
        Number of cores that share the clients which train alone, by default those available to
        the process. No result depends on it.
    flops_per_sample : int
        Operations of a forward pass, by which clients that train together are divided among the
        cores.
    """

    def __init__(
        self,
        setup: TrainingSetup,
        *,
        batching: str = "auto",
        threads: int = 1,
        cores: int | None = None,
        flops_per_sample: int = SHARED_FLOPS,
    ) -> None:
        self._setup = setup
        self._batching = batching
        self._threads = threads
        self._cores = available_cores() if cores is None else cores
        self._memory_bytes = _memory_bytes(setup.examples.device)
        self._batched = BatchedTraining(setup, memory_bytes=self._memory_bytes)
        self._alone = AloneTraining(setup, threads=threads, cores=cores)
        self._way: str | None = None
        self._flops_per_sample = flops_per_sample

    @property
    def way(self) -> str:
        """The way of training: ``batched`` or ``alone``, and the source of the gradients.

        Where gradients of many clients at once are in closed form a client that trains alone
        takes the same path.
        """
        if self._way is None:
            device = "cuda" if self._on_gpu else "cpu"
            known = way_of(self._setup.model, self._setup.task, self._batching, device)
            self._way = known or (TOGETHER if self._vmap_runs() else ALONE)
        return self._way

    def alone(self, arrays: Arrays, client: int, t: int) -> Arrays:
        """Return one client's model after round ``t`` (from 0) of local training."""
        [(_, trained)] = self.each(arrays, [client], t, _first)
        if isinstance(trained, Exception):
            raise trained
        return trained

    def each(
        self,
        arrays: Arrays,
        clients: Sequence[int],
        t: int,
        use: Use[Result],
        *,
        starts: Mapping[int, Arrays] = NO_STARTS,
    ) -> Iterator[tuple[list[int], Result | Exception]]:
        """Train clients, and yield the result of ``use`` for each client's model.

        Clients are divided among the cores. On a CPU a client's model has the same bits for any
        number of cores and whichever clients train beside it, unless ``batched`` was set for a
        model whose gradients are not in closed form.

        Parameters
        ----------
        arrays : list of array
            The received model, in the order of the model's ``state_dict``.
        clients : sequence of int
            Who trains.
        t : int
            Round, from 0.
        use : callable
            Takes the places of m clients in ``clients``, and of each of ``arrays`` their models'
            (m, *shape), on the device. It is called in the thread that trained them, and the
            tensors are valid until it returns.
        starts : mapping of int to Arrays
            The models of the clients that start from another one than ``arrays``.

        Yields
        ------
        places, result
            What ``use`` returned for these places, or the exception that a client raised.
        """
        if not (self._batched.closed_form or self.trains_together()):
            yield from self._alone.each(arrays, clients, t, use, starts=starts)
            return
        try:
            chunks = self._chunks(clients)
        except Exception:  # of one client, as it tells when it trains alone
            chunks = [[place] for place in range(len(clients))]
        workers = Workers(1 if self._on_gpu else self._cores // self._threads, self._threads)

        def train_and_use(chunk: list[int]) -> tuple[list[int], Result]:
            places, models = self._batched.train_chunk(arrays, clients, chunk, t, starts)
            return places, use(places, models)

        for chunk, result in zip(
            chunks, workers.map(train_and_use, chunks, ahead=len(chunks)), strict=True
        ):
            if not isinstance(result, Exception):
                yield result
            elif len(chunk) == 1:
                yield chunk, result
            else:  # whose fault it is shows when each of them trains alone
                log(WARNING, "Clients train one after the other after a failure", exc_info=result)
                for place in chunk:
                    alone = attempt(train_and_use, [place])
                    yield ([place], alone) if isinstance(alone, Exception) else alone

    def trains_together(self) -> bool:
        """Say whether several clients train together, rather than each alone.

        Models with gradients in closed form for many clients at once train together. So does on
        a GPU each model that ``torch.func.vmap`` can run; all others train alone. ``sequential``
        never trains together, and ``batched`` does wherever vmap has a rule for the model's layers.

        The answer depends on settings, model and device only.
        """
        return self._batching != "sequential" and self.way in (TOGETHER_CLOSED, TOGETHER)

    @property
    def _on_gpu(self) -> bool:
        return self._setup.examples.device.type == "cuda"

    def _chunks(self, clients: Sequence[int]) -> list[list[int]]:
        """Return the places of clients that are trained in one pass, for each core some."""
        if self._batching == "sequential":
            return [[place] for place in range(len(clients))]
        samples = self._setup.how.batch_size * len(clients)
        step = FORWARD_AND_BACKWARD * self._flops_per_sample * samples
        if self._on_gpu or not self._batched.closed_form or step < SHARED_FLOPS:
            return self._batched.chunks(clients)
        return self._batched.chunks(clients, self._cores // self._threads)

    def _vmap_runs(self) -> bool:
        """Say whether one step of the client with the most rows can be batched."""
        setup, examples = self._setup, self._setup.examples
        client = int(examples.clients[np.argmax(examples.counts(examples.clients))])
        arrays = [_array(tensor) for tensor in setup.model.state_dict().values()]
        one_step = replace(setup, how=replace(setup.how, local_steps=1))
        try:
            BatchedTraining(one_step, memory_bytes=self._memory_bytes).train(arrays, [client], 0)
        except DataError:  # which every client raises where this one does, when it trains
            return True
        except Exception as error:  # whatever vmap cannot run trains alone
            log(
                INFO,
                "Clients train one after the other: %s cannot be batched (%s)",
                type(setup.model).__name__,
                error,
            )
            return False
        return True


def _first(_: list[int], models: list[torch.Tensor]) -> Arrays:
    """Return the arrays of the only client."""
    return [_array(tensor[0]) for tensor in models]


def _array(tensor: torch.Tensor) -> NDArray[Any]:
    """Return a copy."""
    return tensor.detach().cpu().contiguous().numpy().copy()


def _memory_bytes(device: torch.device) -> int:
    """Return how much memory the clients that train together may take."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free // GPU_SHARE
    return CPU_MEMORY
