"""Train the clients of a process, one by one or batched."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from logging import INFO, WARNING
from typing import Any

import numpy as np
import torch
from fedquorum.errors import DataError
from flwr.common.logger import log
from numpy.typing import NDArray

from client_app.training.batched import BatchedTrainer
from client_app.training.failure_log import log_failure
from client_app.training.local_sgd import Arrays, Rounds, TrainingSetup, list_rounds
from client_app.training.numerics import (
    BATCHED_AUTOGRAD,
    BATCHED_CLOSED_FORM,
    SEQUENTIAL_AUTOGRAD,
    find_training_mode,
)
from client_app.training.sequential import (
    NO_STARTS,
    OnTrained,
    Result,
    SequentialTrainer,
)
from client_app.training.workers import (
    MIN_SHARED_FLOPS,
    WorkerPool,
    count_available_cores,
    run_or_return_error,
)

MAX_CPU_BYTES = 128 * 2**20  # more exceeds the caches, and allocating it costs more than it saves
GPU_MEMORY_DIVISOR = 4
"""Batched clients may use free memory / this. On an H100, eight chunks of small_cnn, cnn,
logistic_regression and text took 0.5 to 0.9 of their estimate."""
INDEX_BYTES = 8
MAX_FINETUNING_BYTES = 128 * 2**20
"""Of the models of clients that fine-tune at the same time, and of the order of their samples,
whose size grows with the epochs."""
TRAINING_FLOPS_FACTOR = 3  # forward; backward for the activations, and for the weights


class Trainer:
    """Train clients on their rows of ``setup.examples``, all with the same hyperparameters.

    Parameters
    ----------
    setup : TrainingSetup
    batching : {"auto", "batched", "sequential"}
        Whether several clients train in one pass, see ``is_batched``.
    threads : int
        Number of torch threads in a product, in sequential training.
    cores : int, optional
        Number of cores that share the clients, by default those available to the process. No
        result depends on it.
    flops_per_sample : int
        Operations of a forward pass, which determine how batched clients are divided among the
        cores.
    """

    def __init__(
        self,
        setup: TrainingSetup,
        *,
        batching: str = "auto",
        threads: int = 1,
        cores: int | None = None,
        flops_per_sample: int = MIN_SHARED_FLOPS,
    ) -> None:
        self._setup = setup
        self._batching = batching
        self._threads = threads
        self._cores = count_available_cores() if cores is None else cores
        self._memory_bytes = _compute_memory_limit(setup.examples.device)
        self._batched = BatchedTrainer(setup, memory_bytes=self._memory_bytes)
        self._mode: str | None = None
        self._flops_per_sample = flops_per_sample

    @cached_property
    def _sequential(self) -> SequentialTrainer:
        """The sequential training, which copies the model; batched clients never need it."""
        return SequentialTrainer(self._setup, threads=self._threads, cores=self._cores)

    @property
    def mode(self) -> str:
        """The training mode: batched or one by one, and the source of the gradients.

        If the gradients of many clients are in closed form, a single client takes the same path.
        """
        if self._mode is None:
            device = "cuda" if self._on_gpu else "cpu"
            mode = find_training_mode(self._setup.model, self._setup.task, self._batching, device)
            self._mode = mode or (BATCHED_AUTOGRAD if self._can_vmap() else SEQUENTIAL_AUTOGRAD)
        return self._mode

    def finetune_clients(
        self, arrays: Arrays, clients: Sequence[int], t: int, epochs: int
    ) -> Iterator[tuple[int, Arrays | Exception]]:
        """Train a personal model of each client, and yield it with the client's id.

        A client's model has the same bits whichever clients train with it, as in
        ``train_clients``. Only as many train at a time as memory allows, and no client trains while
        the caller evaluates a model.

        Parameters
        ----------
        arrays : list of array
            The model from which all clients start, in the order of the model's ``state_dict``.
        clients : sequence of int
        t : int
            The number of rounds after which the server had this model.
        epochs : int

        Yields
        ------
        client, model
            The client's model, or the exception that it raised.
        """
        trainer = Trainer(
            self._setup.for_finetuning(epochs),
            batching=self._batching,
            threads=self._threads,
            cores=self._cores,
            flops_per_sample=self._flops_per_sample,
        )
        counts = self._setup.examples.get_counts(clients).tolist()
        model_bytes = sum(array.nbytes for array in arrays)
        sizes = [epochs * count * INDEX_BYTES + model_bytes for count in counts]
        for group in _group_by_size(clients, sizes, MAX_FINETUNING_BYTES):
            trained = list(trainer.train_clients(arrays, group, t, _copy_each))
            for indices, models in trained:
                if isinstance(models, Exception):
                    yield from ((group[index], models) for index in indices)
                else:
                    yield from ((group[i], model) for i, model in zip(indices, models, strict=True))

    def train_client(self, arrays: Arrays, client: int, t: int) -> Arrays:
        """Return one client's model after round ``t`` (from 0) of local training."""
        [(_, trained)] = self.train_clients(arrays, [client], t, _copy_first)
        if isinstance(trained, Exception):
            raise trained
        return trained

    def train_clients(
        self,
        arrays: Arrays,
        clients: Sequence[int],
        t: Rounds,
        on_trained: OnTrained[Result],
        *,
        starts: Mapping[int, Arrays] = NO_STARTS,
    ) -> Iterator[tuple[list[int], Result | Exception]]:
        """Train clients, and yield the result of ``on_trained`` for each client's model.

        Clients are divided among the cores. On a CPU a client's model has the same bits for any
        number of cores and whichever clients train with it, unless ``batched`` was set for a model
        without gradients in closed form.

        Parameters
        ----------
        arrays : list of array
            The received model, in the order of the model's ``state_dict``.
        clients : sequence of int
        t : int or sequence of int
            Round, from 0; or the round of each client.
        on_trained : callable
            Takes the indices of m clients in ``clients``, and their models: for each of ``arrays``
            (m, *shape), on the device. It is called in the thread that trained them, and the
            tensors are valid until it returns.
        starts : mapping of int to Arrays
            The models of the clients that do not start from ``arrays``.

        Yields
        ------
        indices, result
            The result of ``on_trained`` for these indices, or the exception that a client raised.
        """
        if not (self._batched.closed_form or self.is_batched()):
            yield from self._sequential.train_clients(arrays, clients, t, on_trained, starts=starts)
            return
        try:
            chunks = self._plan_chunks(clients)
        except Exception:  # training each client alone shows which one fails
            chunks = [[index] for index in range(len(clients))]
        rounds = list_rounds(t, len(clients))
        chunks = [part for chunk in chunks for part in self._batched.split_by_rate(chunk, rounds)]
        # Every thread has a separate model, and would compile it again.
        is_compiled = self._setup.compiled and not self._batched.closed_form
        count = 1 if self._on_gpu or is_compiled else self._cores // self._threads
        workers = WorkerPool(count, self._threads)

        def train_and_use(chunk: list[int]) -> tuple[list[int], Result]:
            indices, models = self._batched.train_chunk(arrays, clients, chunk, rounds, starts)
            return indices, on_trained(indices, models)

        for chunk, result in zip(
            chunks, workers.map(train_and_use, chunks, prefetch=len(chunks)), strict=True
        ):
            if not isinstance(result, Exception):
                yield result
            elif len(chunk) == 1:
                yield chunk, result
            else:  # training each client alone shows which one fails
                log_failure(WARNING, "Clients train one after the other after a failure", result)
                for index in chunk:
                    outcome = run_or_return_error(train_and_use, [index])
                    yield ([index], outcome) if isinstance(outcome, Exception) else outcome

    def is_batched(self) -> bool:
        """Return whether several clients train in one pass.

        They do if the model has gradients in closed form for many clients, and on a GPU if
        ``torch.func.vmap`` can run it. ``sequential`` never batches; ``batched`` does whenever vmap
        has a rule for each of the model's layers.

        The result depends only on settings, model and device.
        """
        return self._batching != "sequential" and self.mode in (
            BATCHED_CLOSED_FORM,
            BATCHED_AUTOGRAD,
        )

    @property
    def _on_gpu(self) -> bool:
        return self._setup.examples.device.type == "cuda"

    def _plan_chunks(self, clients: Sequence[int]) -> list[list[int]]:
        """Return the indices of the clients of each pass, at least one pass for each core."""
        if self._batching == "sequential":
            return [[index] for index in range(len(clients))]
        samples = self._setup.config.batch_size * len(clients)
        step = TRAINING_FLOPS_FACTOR * self._flops_per_sample * samples
        if self._on_gpu or not self._batched.closed_form or step < MIN_SHARED_FLOPS:
            return self._batched.plan_chunks(clients)
        return self._batched.plan_chunks(clients, self._cores // self._threads)

    def _can_vmap(self) -> bool:
        """Return whether one step of the client with the most rows can be batched."""
        setup, examples = self._setup, self._setup.examples
        client = int(examples.clients[np.argmax(examples.get_counts(examples.clients))])
        arrays = [_to_array(tensor) for tensor in setup.model.state_dict().values()]
        one_step = replace(setup, config=replace(setup.config, local_steps=1))
        try:
            BatchedTrainer(one_step, memory_bytes=self._memory_bytes).train(arrays, [client], 0)
        except DataError:  # a client raises it again when it trains
            return True
        except Exception as error:  # vmap cannot run the model
            log(
                INFO,
                "Clients train one after the other: %s cannot be batched (%s)",
                type(setup.model).__name__,
                error,
            )
            return False
        return True


def _group_by_size(
    clients: Sequence[int], sizes: Sequence[int], max_size: int
) -> Iterator[list[int]]:
    """Yield the clients in groups of at most ``max_size``, or of one client."""
    group: list[int] = []
    total = 0
    for client, size in zip(clients, sizes, strict=True):
        if group and total + size > max_size:
            yield group
            group, total = [], 0
        group.append(client)
        total += size
    if group:
        yield group


def _copy_each(indices: list[int], models: list[torch.Tensor]) -> list[Arrays]:
    """Return the arrays of every client."""
    return [[_to_array(tensor[i]) for tensor in models] for i in range(len(indices))]


def _copy_first(_: list[int], models: list[torch.Tensor]) -> Arrays:
    """Return the arrays of the first client."""
    return [_to_array(tensor[0]) for tensor in models]


def _to_array(tensor: torch.Tensor) -> NDArray[Any]:
    """Return a tensor as a contiguous NumPy copy."""
    return tensor.detach().cpu().contiguous().numpy().copy()


def _compute_memory_limit(device: torch.device) -> int:
    """Return the memory limit of batched clients, in bytes."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free // GPU_MEMORY_DIVISOR
    return MAX_CPU_BYTES
