"""Run FLGo: its FedAvg on a benchmark made from a configuration file, without evaluation.

FLGo writes the files of its benchmark and task to the current folder. It uses its default of one
thread of torch.
"""

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import flgo
import torch
from common import PeerJob, main
from flgo.algorithm import fedavg
from flgo.benchmark.partition import BasicPartitioner
from flgo.benchmark.toolkits.cv.classification import FromDatasetPipe
from torch.utils.data import TensorDataset

CONFIGURATION = """\
from flgo_runner import SharedJob

train_data = SharedJob.data
test_data = SharedJob.data
get_model = SharedJob.job.make_model
"""


def select_samples(rows: Any, indices: list[int]) -> list[Any]:
    """Return several samples of a subset."""
    return [rows[index] for index in indices]


# Recent versions of torch refuse a subset that overrides __getitem__ alone, as FLGo's does.
FromDatasetPipe.TaskDataset.__getitems__ = select_samples


class SharedJob:
    """The job and data for the configuration file, which FLGo imports by name."""

    job: PeerJob
    data: TensorDataset


class NaturalPartitioner(BasicPartitioner):
    """A partition in which every client has its original rows."""

    def __init__(self, sizes: list[int]) -> None:
        self.num_clients = len(sizes)
        self._rows = torch.arange(sum(sizes)).split(sizes)

    def __call__(self, data: TensorDataset) -> list[list[int]]:
        """Return the rows of each client."""
        return [rows.tolist() for rows in self._rows]


def train_flgo(job: PeerJob, on_round_end: Callable[[], None]) -> None:
    """Train all rounds of the job."""
    sys.path.insert(0, str(Path.cwd()))
    x, y = (torch.cat(tensors) for tensors in zip(*job.client_data, strict=True))
    # The configuration file reads these attributes from the module flgo_runner, not from __main__.
    shared = import_module("flgo_runner").SharedJob
    shared.job, shared.data = job, TensorDataset(x, y)
    Path("configuration.py").write_text(CONFIGURATION)
    name = flgo.gen_benchmark_from_file("made", "configuration.py")
    benchmark = import_module(name)
    # Drawing the partition of a thousand clients takes minutes.
    benchmark.visualize = lambda *_: None
    partition = NaturalPartitioner([len(labels) for _, labels in job.client_data])
    task = flgo.gen_task_by_(benchmark, partition, "task")
    server = flgo.init(
        task,
        fedavg,
        {
            "num_rounds": job.rounds,
            "proportion": job.clients_per_round / job.clients,
            "num_epochs": job.local_epochs,
            "num_steps": job.local_steps or -1,
            "batch_size": job.batch_size,
            "learning_rate": job.lr,
            "train_holdout": 0.0,
            "eval_interval": -1,
            "no_log_console": True,
            "no_tqdm": True,
        },
    )
    iterate = server.iterate

    def time_round() -> Any:
        updated = iterate()
        on_round_end()
        return updated

    server.iterate = time_round
    server.run()


if __name__ == "__main__":
    main(train_flgo)
