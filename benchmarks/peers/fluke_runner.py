"""fluke: its FedAVG with its fast data loader, models in memory, no evaluation of clients."""

from collections.abc import Callable
from typing import Any

from common import CLASSES, Job, main
from fluke import DDict, FlukeENV
from fluke.algorithms.fedavg import FedAVG
from fluke.data import DataSplitter, DummyDataContainer, FastDataLoader
from fluke.utils import FederationObserver


class RoundObserver(FederationObserver):
    """Notes the end of each round."""

    def __init__(self, noted: Callable[[], None]) -> None:
        self._noted = noted

    def end_round(self, round: int, **_: Any) -> None:  # noqa: A002
        """Note the end of a round."""
        self._noted()


def train_fluke(job: Job, on_round_end: Callable[[], None]) -> None:
    """Train the job's rounds."""
    environment = FlukeENV()
    environment.set_seed(0)
    environment.set_device("cpu")
    environment.set_inmemory(True)
    environment.set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
    loaders = [
        FastDataLoader(x, y, num_labels=CLASSES, batch_size=job.batch_size, shuffle=True)
        for x, y in job.few_parts
    ]
    container = DummyDataContainer(loaders, [None] * job.clients, None, CLASSES)
    settings = DDict(
        model=job.new_model(),
        client={
            "batch_size": job.batch_size,
            "local_epochs": job.epochs,
            "loss": "CrossEntropyLoss",
            "optimizer": {"name": "SGD", "lr": job.lr},
            "scheduler": {"name": "StepLR", "step_size": 1, "gamma": 1},
        },
        server={"weighted": True},
    )
    algorithm = FedAVG(job.clients, DataSplitter(container), settings)
    algorithm.set_callbacks([RoundObserver(on_round_end)])
    algorithm.run(job.rounds, job.asked / job.clients)


if __name__ == "__main__":
    main(train_fluke)
