"""Run FedLab: its standalone pipeline, serial SGD trainer, and a DataLoader for each client."""

from collections.abc import Callable

import torch
from common import PeerJob, main
from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer
from fedlab.contrib.algorithm.basic_server import SyncServerHandler
from fedlab.contrib.dataset.basic_dataset import FedDataset
from fedlab.core.standalone import StandalonePipeline
from torch.utils.data import DataLoader, TensorDataset


class ClientDatasets(FedDataset):
    """The clients' data in memory."""

    def __init__(self, job: PeerJob) -> None:
        super().__init__()
        self.sets = [TensorDataset(x, y) for x, y in job.truncated_data]
        self.num = len(self.sets)

    def get_dataset(self, id: int, type: str = "train") -> TensorDataset:  # noqa: A002
        """Return one client's data."""
        return self.sets[id]

    def get_dataloader(
        self,
        id: int,  # noqa: A002
        batch_size: int,
        type: str = "train",  # noqa: A002
    ) -> DataLoader[tuple[torch.Tensor, ...]]:
        """Return shuffled batches of one client's data."""
        return DataLoader(self.sets[id], batch_size=batch_size, shuffle=True)


class TimedPipeline(StandalonePipeline):
    """A pipeline that calls ``on_round_end`` instead of evaluating."""

    def __init__(
        self,
        handler: SyncServerHandler,
        trainer: SGDSerialClientTrainer,
        on_round_end: Callable[[], None],
    ) -> None:
        super().__init__(handler, trainer)
        self.evaluate = on_round_end


def train_fedlab(job: PeerJob, on_round_end: Callable[[], None]) -> None:
    """Train all rounds of the job."""
    model = job.make_model()
    handler = SyncServerHandler(model, job.rounds, job.clients_per_round / job.clients)
    trainer = SGDSerialClientTrainer(model, job.clients)
    trainer.setup_dataset(ClientDatasets(job))
    trainer.setup_optim(job.epochs, job.batch_size, job.lr)
    TimedPipeline(handler, trainer, on_round_end).main()


if __name__ == "__main__":
    main(train_fedlab)
