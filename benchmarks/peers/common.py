"""Shared code of the peers' runners: the job, its data and model, and the count of local steps.

A runner is a module with a function ``train_PEER(job, on_round_end)`` that trains ``job.rounds``
rounds with its peer and calls ``on_round_end()`` after each. It reads the job, as JSON, from the
command line, and prints one line of JSON last:

    {"times": [...], "steps": 9600}

``times`` are the seconds since the epoch after each round, ``steps`` the local steps of all rounds.
"""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "stock_flower"))

from stock_model import make_stock_model  # the model that every competitor trains

NUM_CLASSES = 10


@dataclass(frozen=True)
class PeerJob:
    """The training job of a peer.

    ``data`` is the file that ``benchmarks/engines.py`` writes, ``model`` a name of
    ``stock_flower/stock_model.py``, ``clients_per_round`` the number of the ``clients`` that train
    in a round. ``channels_last`` selects the layout in which convolutions are fastest on CPUs.
    """

    data: str
    model: str
    clients: int
    clients_per_round: int
    rounds: int
    batch_size: int
    local_epochs: int
    local_steps: int | None
    lr: float
    channels_last: bool = False

    @cached_property
    def client_data(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Inputs in [0, 1] as float32, and labels, of each client."""
        with np.load(self.data) as file:
            x, y, client = (file[f"{name}_train"] for name in ("x", "y", "client"))
        inputs = torch.from_numpy(x)
        if x.dtype == np.uint8:
            inputs = inputs.float() / 255
            inputs = inputs.unsqueeze(1) if x.ndim == 3 else inputs.movedim(-1, 1)  # noqa: PLR2004
        layout = torch.channels_last if self.channels_last else torch.contiguous_format
        inputs = inputs.contiguous(memory_format=layout)
        counts = np.bincount(client, minlength=self.clients).tolist()
        return list(zip(inputs.split(counts), torch.from_numpy(y).split(counts), strict=True))

    @property
    def epochs(self) -> int:
        """Epochs over ``truncated_data``, equal to the job's number of steps."""
        return 1 if self.local_steps is not None else self.local_epochs

    @property
    def truncated_data(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """The clients' data for a peer that counts only epochs.

        A job that counts steps becomes one epoch over just enough rows of each client.
        """
        if self.local_steps is None:
            return self.client_data
        rows = self.local_steps * self.batch_size
        return [(x[:rows], y[:rows]) for x, y in self.client_data]

    def make_model(self) -> nn.Module:
        """Build the model; its initial parameters are always the same."""
        model = make_stock_model(self.model)
        return model.to(memory_format=torch.channels_last) if self.channels_last else model


class StepCounter:
    """Count the steps of all optimizers of the process, except excluded ones."""

    def __init__(self) -> None:
        self.count = 0
        self._excluded: set[int] = set()
        register_optimizer_step_post_hook(self._count_step)

    def exclude(self, optimizer: torch.optim.Optimizer) -> None:
        """Exclude an optimizer, such as the server's."""
        self._excluded.add(id(optimizer))

    def _count_step(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        self.count += id(optimizer) not in self._excluded


STEP_COUNTER = StepCounter()


def read_job() -> PeerJob:
    """Read the job from the only argument."""
    job = PeerJob(**json.loads(sys.argv[1]))
    # Some peers also read the command line.
    del sys.argv[1:]
    return job


def main(train: Callable[[PeerJob, Callable[[], None]], None]) -> None:
    """Run the job of the command line, and print its times and steps."""
    times: list[float] = []
    train(read_job(), lambda: times.append(time.time()))
    print(json.dumps({"times": times, "steps": STEP_COUNTER.count}), flush=True)
