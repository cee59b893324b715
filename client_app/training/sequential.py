"""Train clients one by one, divided among the cores of the process."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from queue import Empty, SimpleQueue
from types import MappingProxyType
from typing import TypeVar

import torch

from client_app.rng import build_rng_factory, has_random_layers
from client_app.training.closed_form_cnn import build_closed_form_cnn
from client_app.training.local_sgd import Arrays, LocalModel, Rounds, TrainingSetup, list_rounds
from client_app.training.workers import WorkerPool, count_available_cores

PREFETCH = 2  # clients per worker: one that trains, one whose result waits to be consumed
Result = TypeVar("Result")
NO_STARTS: Mapping[int, Arrays] = MappingProxyType({})
"""All clients start from the received model."""

OnTrained = Callable[[list[int], list[torch.Tensor]], Result]
"""Takes the indices of m clients, and each of a model's arrays stacked over them, (m, ...)."""


class SequentialTrainer:
    """Train each client in a separate model, several clients in parallel.

    A client's arithmetic depends on the settings and on its own rows: its model has the same bits
    for any number of workers and whichever clients train in parallel.

    Gradients are in closed form if ``client_app.training.closed_form_cnn`` supports the model.
    Clients train one after the other on a GPU, and if threads could interfere: if the model uses
    torch's random generators, or is compiled.

    Parameters
    ----------
    setup : TrainingSetup
        Its model is copied.
    threads : int
        Number of torch threads in a product; it determines how the product is rounded.
    cores : int, optional
        Number of cores that share the clients, by default those available to the process.
    """

    def __init__(self, setup: TrainingSetup, *, threads: int = 1, cores: int | None = None) -> None:
        self._setup = setup
        count = max(1, (count_available_cores() if cores is None else cores) // threads)
        self.closed_form = build_closed_form_cnn(setup.model, setup.task) is not None
        self._compiled = setup.compiled and not self.closed_form
        if self._compiled or setup.examples.device.type != "cpu" or has_random_layers(setup.model):
            count = 1
        self._workers = WorkerPool(count, threads)
        self._template = copy.deepcopy(setup.model)
        self._idle: SimpleQueue[LocalModel] = SimpleQueue()

    def train_clients(
        self,
        arrays: Arrays,
        clients: Sequence[int],
        t: Rounds,
        on_trained: OnTrained[Result],
        *,
        starts: Mapping[int, Arrays] = NO_STARTS,
    ) -> Iterator[tuple[list[int], Result | Exception]]:
        """Train each client; see ``Trainer.train_clients``."""
        try:
            received = self._copy_received(arrays)
        except Exception as error:
            yield from (([index], error) for index in range(len(clients)))
            return

        rounds = list_rounds(t, len(clients))

        def train_and_use(index: int) -> Result:
            model, client, t = self._get_idle_model(), clients[index], rounds[index]
            try:
                if client in starts:
                    model.load_arrays(starts[client])
                else:
                    model.load(received)
                x, y = self._setup.examples.select_clients([client])
                get_rng = build_rng_factory(self._setup.seed, t + 1, client, self._setup.rng_prefix)
                model.train(x, y, self._setup.config, get_rng, t=t)
                return on_trained([index], [tensor.detach()[None] for tensor in model.tensors])
            finally:
                self._idle.put(model)

        indices = range(len(clients))
        results = self._workers.map(train_and_use, indices, prefetch=PREFETCH * self._workers.count)
        for index, result in zip(indices, results, strict=True):
            yield [index], result

    def _copy_received(self, arrays: Arrays) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Return the state of the received model, copied once for all clients."""
        model = self._get_idle_model()
        try:
            model.load_arrays(arrays)
            return model.copy_state()
        finally:
            self._idle.put(model)

    def _get_idle_model(self) -> LocalModel:
        """Return an idle model, or a new one if all are in use."""
        try:
            return self._idle.get_nowait()
        except Empty:
            model = copy.deepcopy(self._template)
        if self._compiled:
            model.compile()
        return LocalModel(model, self._setup.task)
