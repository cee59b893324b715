"""FedLab: its standalone pipeline with the serial SGD trainer, a DataLoader for each client."""

from collections.abc import Callable

import torch
from common import Job, main
from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer
from fedlab.contrib.algorithm.basic_server import SyncServerHandler
from fedlab.contrib.dataset.basic_dataset import FedDataset
from fedlab.core.standalone import StandalonePipeline
from torch.utils.data import DataLoader, TensorDataset


class ClientDatasets(FedDataset):
    """The clients' data in memory."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self.sets = [TensorDataset(x, y) for x, y in job.few_parts]
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
    """The pipeline; instead of evaluating it notes the end of a round."""

    def __init__(
        self,
        handler: SyncServerHandler,
        trainer: SGDSerialClientTrainer,
        noted: Callable[[], None],
    ) -> None:
        super().__init__(handler, trainer)
        self.evaluate = noted


def train_fedlab(job: Job, on_round_end: Callable[[], None]) -> None:
    """Train the job's rounds."""
    model = job.new_model()
    handler = SyncServerHandler(model, job.rounds, job.asked / job.clients)
    trainer = SGDSerialClientTrainer(model, job.clients)
    trainer.setup_dataset(ClientDatasets(job))
    trainer.setup_optim(job.epochs, job.batch_size, job.lr)
    TimedPipeline(handler, trainer, on_round_end).main()


if __name__ == "__main__":
    main(train_fedlab)
