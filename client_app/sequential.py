"""Local training of clients that each train alone, divided among the cores of the process."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from types import MappingProxyType
from typing import TypeVar

import torch
from fedquorum.rng import make_generator

from client_app.arrays import Arrays
from client_app.closed_form_cnn import build_closed_form_cnn
from client_app.rng import uses_rng
from client_app.training import LocalModel, TrainingSetup
from client_app.workers import WorkerPool, count_available_cores

PREFETCH = 2  # clients for each worker: one that trains, one whose result waits to be consumed
Result = TypeVar("Result")
NO_STARTS: Mapping[int, Arrays] = MappingProxyType({})
"""All clients start from the model received."""

OnTrained = Callable[[list[int], list[torch.Tensor]], Result]
"""Takes the places of m clients, and of each of a model's arrays those of the clients, (m, ...)."""


class SequentialTrainer:
    """Trains each client in a model of its own, several clients side by side.

    A client's arithmetic depends on the settings and on its own rows: its model has the same bits
    for any number of workers and whichever clients train beside it.

    Gradients are in closed form where ``client_app.closed_form_cnn`` has one. Clients train one after the
    other on a GPU, and where threads could disturb each other: if the model draws numbers from
    torch's generators, or is compiled.

    Parameters
    ----------
    setup : TrainingSetup
        What they are trained with; its model is copied.
    threads : int
        Number of torch threads in a product. It decides how the product is rounded.
    cores : int, optional
        Number of cores that share the clients, by default those available to the process.
    """

    def __init__(self, setup: TrainingSetup, *, threads: int = 1, cores: int | None = None) -> None:
        self._setup = setup
        count = max(1, (count_available_cores() if cores is None else cores) // threads)
        self.closed_form = build_closed_form_cnn(setup.model, setup.task) is not None
        self._compiled = setup.compiled and not self.closed_form
        if self._compiled or setup.examples.device.type != "cpu" or uses_rng(setup.model):
            count = 1
        self._workers = WorkerPool(count, threads)
        self._template = copy.deepcopy(setup.model)
        self._idle: SimpleQueue[LocalModel] = SimpleQueue()

    def train_clients(
        self,
        arrays: Arrays,
        clients: Sequence[int],
        t: int,
        on_trained: OnTrained[Result],
        *,
        starts: Mapping[int, Arrays] = NO_STARTS,
    ) -> Iterator[tuple[list[int], Result | Exception]]:
        """Train each client; see ``Trainer.each``."""
        try:
            received = self._copy_received(arrays)
        except Exception as error:
            yield from (([index], error) for index in range(len(clients)))
            return

        def train_and_use(index: int) -> Result:
            model, client = self._get_idle_model(), clients[index]
            try:
                if client in starts:
                    model.load_arrays(starts[client])
                else:
                    model.load(received)
                x, y = self._setup.examples.select_clients([client])
                get_rng = partial(make_generator, self._setup.seed, round_number=t + 1, client=client)
                model.train(x, y, self._setup.config, get_rng, t=t)
                return on_trained([index], [tensor.detach()[None] for tensor in model.tensors])
            finally:
                self._idle.put(model)

        indices = range(len(clients))
        results = self._workers.map(train_and_use, indices, prefetch=PREFETCH * self._workers.count)
        for index, result in zip(indices, results, strict=True):
            yield [index], result

    def _copy_received(self, arrays: Arrays) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Return what the received model is made of, once for all clients."""
        model = self._get_idle_model()
        try:
            model.load_arrays(arrays)
            return model.copy_state()
        finally:
            self._idle.put(model)

    def _get_idle_model(self) -> LocalModel:
        """Return a model that no client uses: as many are made as are needed at the same time."""
        try:
            return self._idle.get_nowait()
        except Empty:
            model = copy.deepcopy(self._template)
        if self._compiled:
            model.compile()
        return LocalModel(model, self._setup.task)
