"""What all runners of peers share: the job, its data and model, and the count of local steps.

A runner is a module with a function ``rounds(job, noted)`` that trains ``job.rounds`` rounds with
its peer and calls ``noted()`` after each. It reads the job, as JSON, from the command line, and
prints one line of JSON last:

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

from stock_model import make  # the model that every competitor trains

NUM_CLASSES = 10


@dataclass(frozen=True)
class PeerJob:
    """What a peer trains.

    ``data`` is the file that ``benchmarks/engines.py`` writes, ``model`` a name that
    ``stock_flower/stock_model.py`` knows, ``asked`` how many of the ``clients`` train in a round.
    ``channels_last`` asks for the layout in which convolutions are fastest on CPUs.
    """

    data: str
    model: str
    clients: int
    asked: int
    rounds: int
    batch_size: int
    local_epochs: int
    local_steps: int | None
    lr: float
    channels_last: bool = False

    @cached_property
    def client_data(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Inputs in [0, 1] as float32 and labels of each client."""
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
        """Epochs over ``truncated_data``, which are as many steps as the job asks for."""
        return 1 if self.local_steps is not None else self.local_epochs

    @property
    def truncated_data(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """The clients' data for a peer that counts epochs only.

        A job that counts steps then is one epoch over the first rows of each client, as many as
        the steps need.
        """
        if self.local_steps is None:
            return self.client_data
        rows = self.local_steps * self.batch_size
        return [(x[:rows], y[:rows]) for x, y in self.client_data]

    def new_model(self) -> nn.Module:
        """Return the model, the same numbers every time."""
        model = make(self.model)
        return model.to(memory_format=torch.channels_last) if self.channels_last else model


class StepCounter:
    """Counts the steps of all optimizers of the process, but for those that are left out."""

    def __init__(self) -> None:
        self.count = 0
        self._left_out: set[int] = set()
        register_optimizer_step_post_hook(self._count_step)

    def exclude(self, optimizer: torch.optim.Optimizer) -> None:
        """Do not count the steps of an optimizer, such as the server's."""
        self._left_out.add(id(optimizer))

    def _count_step(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        self.count += id(optimizer) not in self._left_out


STEP_COUNTER = StepCounter()


def read_job() -> PeerJob:
    """Return the job of the only argument."""
    job = PeerJob(**json.loads(sys.argv[1]))
    # Some peers read the command line too.
    del sys.argv[1:]
    return job


def main(train: Callable[[PeerJob, Callable[[], None]], None]) -> None:
    """Run the job of the command line and print what it took."""
    times: list[float] = []
    train(read_job(), lambda: times.append(time.time()))
    print(json.dumps({"times": times, "steps": STEP_COUNTER.count}), flush=True)
