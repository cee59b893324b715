"""Local training of the clients of a process: each alone, or together."""

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from logging import INFO
from typing import Any

import torch
from fedquorum.errors import DataError
from fedquorum.streams import stream
from fedquorum.summation import Grid
from flwr.common.logger import log
from numpy.typing import NDArray
from torch import nn

from client_app.batched import BatchedTraining
from client_app.examples import Examples
from client_app.measurements import Arrays, put
from client_app.randomness import draws_numbers
from client_app.tasks import Task
from client_app.threads import SHARED_FLOPS, threads_for
from client_app.training import LocalTraining, train
from client_app.update_sum import UpdateSum

CPU_MEMORY = 128 * 2**20  # more leaves the caches, and fresh memory costs more than it saves
GPU_SHARE = 4  # one in so many bytes that are free
TRIAL_CLIENTS, TRIAL_STEPS = 8, 2
FORWARD_AND_BACKWARD = 3  # times the operations of a forward pass


class Trainer:
    """Trains clients on their rows of ``examples``, all with the same hyperparameters.

    Parameters
    ----------
    model : torch.nn.Module
        Where models are put to train them, on the examples' device.
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
    flops_per_sample : int
        Operations of a forward pass, by which the number of threads is chosen; by default as
        many as there are.
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
        flops_per_sample: int = SHARED_FLOPS,
    ) -> None:
        self._model = model
        if compiled:  # for training alone: measuring has other shapes
            self._model = copy.deepcopy(model)
            self._model.compile()
        self._examples = examples
        self._how = how
        self._task = task
        self._seed = seed
        self._batching = batching
        self._compiled = compiled
        self._batched = self._batched_training(how)
        self._faster_together: bool | None = None
        self._flops_per_sample = flops_per_sample

    def alone(self, arrays: Arrays, client: int, t: int) -> Arrays:
        """Return one client's model after round ``t`` (from 0) of local training."""
        self._train(self._how, arrays, client, t)
        return [
            tensor.detach().cpu().contiguous().numpy().copy()
            for tensor in self._model.state_dict().values()
        ]

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

    def trains_together(self, arrays: Arrays, clients: Sequence[int], t: int) -> bool:
        """Say whether these clients are trained in one pass.

        ``auto`` does what is faster: with gradients in closed form that is always together; else
        it is measured once, on the first steps of a few clients, and kept. Models that draw
        random numbers in ways of their own, have recurrent layers, or layers that share weights,
        train alone.
        """
        if self._batching == "sequential" or not self._can_batch():
            return False
        if self._batching == "batched" or self._batched.closed_form:
            return True
        if len(clients) == 1:
            return False
        if self._faster_together is None:
            self._faster_together = self._measured(arrays, clients[:TRIAL_CLIENTS], t)
        return bool(self._faster_together)

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

    def _train(self, how: LocalTraining, arrays: Arrays, client: int, t: int) -> None:
        put(arrays, self._model)
        x, y = self._examples.of([client])
        draws = partial(stream, self._seed, round_number=t + 1, client=client)
        with threads_for(self._flops(1)):
            train(self._model, x, y, how, draws, t=t, task=self._task)

    def _flops(self, clients: int) -> int:
        """Return how many operations one step of so many clients takes."""
        return FORWARD_AND_BACKWARD * self._flops_per_sample * self._how.batch_size * clients

    def _measured(self, arrays: Arrays, clients: Sequence[int], t: int) -> bool | None:
        """Return whether the first steps of these clients are faster together, None if open."""
        few = replace(self._how, local_steps=TRIAL_STEPS)
        batched = self._batched_training(few)

        def one_by_one() -> None:
            for client in clients:
                self._train(few, arrays, client, t)

        try:
            together = _seconds(lambda: batched.train(arrays, clients, t), self._examples.device)
        except DataError:  # of one client, which will tell when it trains alone
            return None
        except Exception as error:  # whatever vmap cannot run trains alone
            log(
                INFO,
                "Clients train each alone: %s cannot be batched (%s)",
                type(self._model).__name__,
                error,
            )
            return False
        alone = _seconds(one_by_one, self._examples.device)
        way = "together" if together < alone else "each alone"
        log(
            INFO,
            "Clients train %s: %d took %.0f ms together, %.0f ms each alone",
            way,
            len(clients),
            1000 * together,
            1000 * alone,
        )
        return together < alone


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    """Return how long ``work`` takes the second time."""
    work()
    _wait(device)
    start = time.perf_counter()
    work()
    _wait(device)
    return time.perf_counter() - start


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _memory_bytes(device: torch.device) -> int:
    """Return how much memory the clients that train together may take."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free // GPU_SHARE
    return CPU_MEMORY
