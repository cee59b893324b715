"""Run fluke: its FedAVG and fast data loader, models in memory, no evaluation of clients."""

from collections.abc import Callable
from typing import Any

from common import NUM_CLASSES, PeerJob, main
from fluke import DDict, FlukeENV
from fluke.algorithms.fedavg import FedAVG
from fluke.data import DataSplitter, DummyDataContainer, FastDataLoader
from fluke.utils import FederationObserver


class RoundObserver(FederationObserver):
    """Call a function at the end of each round."""

    def __init__(self, on_round_end: Callable[[], None]) -> None:
        self._on_round_end = on_round_end

    def end_round(self, round: int, **_: Any) -> None:  # noqa: A002
        """Call the function."""
        self._on_round_end()


def train_fluke(job: PeerJob, on_round_end: Callable[[], None]) -> None:
    """Train all rounds of the job."""
    environment = FlukeENV()
    environment.set_seed(0)
    environment.set_device("cpu")
    environment.set_inmemory(True)
    environment.set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
    loaders = [
        FastDataLoader(x, y, num_labels=NUM_CLASSES, batch_size=job.batch_size, shuffle=True)
        for x, y in job.truncated_data
    ]
    container = DummyDataContainer(loaders, [None] * job.clients, None, NUM_CLASSES)
    settings = DDict(
        model=job.make_model(),
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
    algorithm.run(job.rounds, job.clients_per_round / job.clients)


if __name__ == "__main__":
    main(train_fluke)
