"""Local training of the clients of a process: each alone, or together."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from logging import INFO
from typing import Any

import torch
from fedquorum.errors import DataError
from fedquorum.summation import Grid
from flwr.common.logger import log
from numpy.typing import NDArray
from torch import nn

from client_app.alone import AloneTraining
from client_app.batched import BatchedTraining
from client_app.examples import Examples
from client_app.measurements import Arrays
from client_app.randomness import draws_numbers
from client_app.tasks import Task
from client_app.threads import SHARED_FLOPS, threads_for
from client_app.training import LocalTraining
from client_app.update_sum import UpdateSum
from client_app.workers import torch_threads

CPU_MEMORY = 128 * 2**20  # more leaves the caches, and fresh memory costs more than it saves
GPU_SHARE = 4  # one in so many bytes that are free
FORWARD_AND_BACKWARD = 3  # times the operations of a forward pass


class Trainer:
    """Trains clients on their rows of ``examples``, all with the same hyperparameters.

    Parameters
    ----------
    model : torch.nn.Module
        The model, on the examples' device.
    examples : Examples
        The clients' training rows.
    how : LocalTraining
        Hyperparameters of local training.
    task : Task
        The loss.
    seed : int
        The run's seed; what training draws follows from (seed, purpose, round, client id).
    batching : {"auto", "batched", "sequential"}
        Whether several clients train together, see ``trains_together``.
    compiled : bool
        Whether models, or gradients of several, go through ``torch.compile``; those in closed
        form never do.
    threads : int
        Number of torch threads in a product of a client that trains alone.
    cores : int, optional
        Number of cores that share the clients which train alone, by default those available to
        the process. No result depends on it.
    flops_per_sample : int
        Operations of a forward pass, by which the number of threads of clients that train
        together is chosen; by default as many as there are.
    """

    def __init__(
        self,
        model: nn.Module,
        examples: Examples,
        how: LocalTraining,
        task: Task,
        *,
        seed: int,
        batching: str = "auto",
        compiled: bool = False,
        threads: int = 1,
        cores: int | None = None,
        flops_per_sample: int = SHARED_FLOPS,
    ) -> None:
        self._model = model
        self._examples = examples
        self._how = how
        self._task = task
        self._seed = seed
        self._batching = batching
        self._compiled = compiled
        self._threads = threads
        self._batched = self._batched_training(how)
        self._alone = AloneTraining(
            model, examples, how, task, seed=seed, compiled=compiled, threads=threads, cores=cores
        )
        self._together: bool | None = None
        self._flops_per_sample = flops_per_sample

    @property
    def way(self) -> str:
        """How clients train: ``batched`` or ``alone``, and where their gradients come from."""
        if self._batched.closed_form:
            return "batched, closed form"
        if self.trains_together():
            return "batched, autograd"
        return f"alone, {'closed form' if self._alone.closed_form else 'autograd'}"

    def alone(self, arrays: Arrays, client: int, t: int) -> Arrays:
        """Return one client's model after round ``t`` (from 0) of local training."""
        [trained] = [
            trained if isinstance(trained, Exception) else [_array(tensor) for tensor in trained]
            for trained in self.each(arrays, [client], t)
        ]
        if isinstance(trained, Exception):
            raise trained
        return trained

    def each(
        self, arrays: Arrays, clients: Sequence[int], t: int
    ) -> Iterator[list[torch.Tensor] | Exception]:
        """Yield each client's model after round ``t``, or the exception that the client raised.

        Clients that train alone are divided among the cores. A client's model has the same bits
        for any number of cores and whichever clients train beside it.

        Parameters
        ----------
        arrays : list of array
            The received model, in the order of the model's ``state_dict``.
        clients : sequence of int
            Who trains.
        t : int
            Round, from 0.

        Yields
        ------
        list of tensor
            Of one client for each of ``arrays``, on the device, in the order of ``clients``. They
            are valid until the next model is asked for: another client is then trained in the
            same memory.
        """
        if not self._batched.closed_form:
            yield from self._alone.each(arrays, clients, t)
            return
        for client in clients:
            try:
                with torch_threads(self._threads):
                    stacked = self._batched.train(arrays, [client], t)
            except Exception as error:
                yield error
            else:
                yield [tensor[0] for tensor in stacked]

    def together(self, arrays: Arrays, clients: Sequence[int], t: int) -> list[NDArray[Any]]:
        """Return what ``alone`` does for these clients, to rounding, on a new leading axis."""
        with threads_for(self._flops(len(clients))):
            return [tensor.cpu().numpy() for tensor in self._batched.train(arrays, clients, t)]

    def summed(
        self, arrays: Arrays, clients: Sequence[int], t: int, factors: Sequence[float], grid: Grid
    ) -> tuple[UpdateSum, frozenset[int]]:
        """Return the ``UpdateSum`` of clients that train together, and whose updates are in it.

        Parameters
        ----------
        arrays, clients, t
            As for ``together``.
        factors : sequence of float
            a_k of each client.
        grid : Grid
            That of the round's sum.
        """
        total = UpdateSum(arrays, self._examples.device, grid)
        summed: set[int] = set()
        with threads_for(self._flops(len(clients))):
            for places, models in self._batched.models(arrays, clients, t):
                finite = total.add(models, [factors[i] for i in places])
                summed |= {clients[i] for i, fine in zip(places, finite, strict=True) if fine}
        return total, frozenset(summed)

    def trains_together(self, *_request: object) -> bool:
        """Say whether ``together`` is the way to train several clients, else ``each``.

        Models with gradients in closed form for many clients at once train together. So does on
        a GPU each model that ``torch.func.vmap`` can run; all others train alone. ``sequential``
        never trains together, and ``batched`` does wherever vmap has a rule for the model's layers.

        The answer depends on settings, model and device only: callers may name arrays, clients
        and round, and get the same one.
        """
        if self._together is None:
            self._together = self._rule()
        return self._together

    def _rule(self) -> bool:
        if self._batching == "sequential" or not self._can_batch():
            return False
        if self._batching == "batched" or self._batched.closed_form:
            return True
        return self._on_gpu and self._vmap_runs()

    @property
    def _on_gpu(self) -> bool:
        return self._examples.device.type == "cuda"

    def _can_batch(self) -> bool:
        # Recurrent layers have no batching rule: vmap would run them one by one, with a warning.
        if any(isinstance(layer, nn.RNNBase) for layer in self._model.modules()):
            return False
        tensors = list(self._model.state_dict(keep_vars=True).values())
        return not draws_numbers(self._model) and len({id(tensor) for tensor in tensors}) == len(
            tensors
        )

    def _batched_training(self, how: LocalTraining) -> BatchedTraining:
        return BatchedTraining(
            self._model,
            self._examples,
            how,
            self._task,
            seed=self._seed,
            compiled=self._compiled,
            memory_bytes=_memory_bytes(self._examples.device),
        )

    def _flops(self, clients: int) -> int:
        """Return how many operations one step of so many clients takes."""
        return FORWARD_AND_BACKWARD * self._flops_per_sample * self._how.batch_size * clients

    def _vmap_runs(self) -> bool:
        """Say whether one step of the client with the most rows can be batched."""
        client = max(self._examples.clients, key=self._examples.count)
        arrays = [_array(tensor) for tensor in self._model.state_dict().values()]
        one_step = self._batched_training(replace(self._how, local_steps=1))
        try:
            one_step.train(arrays, [client], 0)
        except DataError:  # which every client raises where this one does, when it trains
            return True
        except Exception as error:  # whatever vmap cannot run trains alone
            log(
                INFO,
                "Clients train each alone: %s cannot be batched (%s)",
                type(self._model).__name__,
                error,
            )
            return False
        return True


def _array(tensor: torch.Tensor) -> NDArray[Any]:
    """Return a copy."""
    return tensor.detach().cpu().contiguous().numpy().copy()


def _memory_bytes(device: torch.device) -> int:
    """Return how much memory the clients that train together may take."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free // GPU_SHARE
    return CPU_MEMORY
