"""fedau: A Flower Baseline."""

from functools import cache

import numpy as np
import torch
from datasets import Dataset
from flwr_datasets import FederatedDataset
from flwr_datasets.partitioner import Partitioner
from torchvision.transforms import Compose, Normalize, ToTensor

from fedau.utils import NUM_CLASSES, SOURCES


class ClassSharePartitioner(Partitioner):
    """Divide rows by class shares from Dir(alpha), as the authors divide their data.

    Each client draws its shares of the classes. The rows of a class go to the clients
    in proportion to these shares, so clients differ in size. A client without rows gets
    one of the largest client's.

    Parameters
    ----------
    num_partitions : int
        The number of clients.
    partition_by : str
        The column of classes.
    alpha : float
        The concentration.
    seed : int
        The seed of all random numbers.
    """

    def __init__(self, num_partitions: int, partition_by: str, alpha: float, seed: int):
        super().__init__()
        self._num_partitions = num_partitions
        self._partition_by = partition_by
        self._alpha = alpha
        self._seed = seed
        self._rows: list[np.ndarray] | None = None

    @property
    def num_partitions(self) -> int:
        """The number of clients."""
        return self._num_partitions

    def load_partition(self, partition_id: int) -> Dataset:
        """Return the rows of one client."""
        if self._rows is None:
            self._rows = self._divide(np.asarray(self.dataset[self._partition_by]))
        return self.dataset.select(self._rows[partition_id])

    def _divide(self, labels: np.ndarray) -> list[np.ndarray]:
        rng = np.random.default_rng(self._seed)
        classes = np.unique(labels)
        if len(labels) < self._num_partitions:
            raise ValueError("there must be at least one row for each client")
        shares = rng.dirichlet(np.full(len(classes), self._alpha), self._num_partitions)
        pieces: list[list[np.ndarray]] = [[] for _ in range(self._num_partitions)]
        for share, label in zip(shares.T, classes, strict=True):
            rows = rng.permutation(np.flatnonzero(labels == label))
            ends = np.rint(np.cumsum(share / share.sum()) * len(rows)).astype(int)
            for client_pieces, piece in zip(
                pieces, np.split(rows, ends[:-1]), strict=True
            ):
                client_pieces.append(piece)
        rows_by_client = [np.concatenate(client_pieces) for client_pieces in pieces]
        for k, rows in enumerate(rows_by_client):
            if rows.size == 0:
                largest = max(
                    range(len(rows_by_client)), key=lambda i: len(rows_by_client[i])
                )
                rows_by_client[k], rows_by_client[largest] = np.split(
                    rows_by_client[largest], [1]
                )
        return rows_by_client


@cache
def load_federated(name: str, data_dir: str, num_clients: int, alpha: float, seed: int):
    """Return the data set, loaded once per process."""
    source = SOURCES[name]
    return FederatedDataset(
        dataset=data_dir or source.hub_id,
        subset=None if data_dir else source.subset,
        partitioners={
            "train": ClassSharePartitioner(num_clients, "label", alpha, seed)
        },
        shuffle=False,
    )


def _load_from_config(config) -> FederatedDataset:
    return load_federated(
        str(config["dataset"]),
        str(config["data-dir"]),
        int(config["num-clients"]),
        float(config["alpha"]),
        int(config["seed"]),
    )


def load_labels(config, partition_id: int) -> np.ndarray:
    """Return a client's training labels."""
    labels = np.asarray(_load_from_config(config).load_partition(partition_id)["label"])
    if labels.max() >= NUM_CLASSES:
        raise ValueError(f"labels must be below {NUM_CLASSES}, got {labels.max()}")
    return labels


def load_data(config, partition_id: int | None):
    """Return images and labels of one client, or of the test split for None."""
    data, source = _load_from_config(config), SOURCES[str(config["dataset"])]
    rows = (
        data.load_split("test")
        if partition_id is None
        else data.load_partition(partition_id)
    )
    transform = Compose([ToTensor(), Normalize(source.mean, source.std)])
    images = torch.stack([transform(picture) for picture in rows[source.image]])
    return images, torch.tensor(rows["label"])


def iterate_batches(
    images, labels, *, size: int, steps: int, generator, augmented: bool
):
    """Yield one random batch for each local step."""
    for _ in range(steps):
        rows = torch.randperm(len(labels), generator=generator)[:size]
        chosen = images[rows]
        yield (_augment(chosen, generator) if augmented else chosen), labels[rows]


def _augment(images, generator):
    """Return images cropped to their size after padding by 4, and flipped at random."""
    count, _, height, width = images.shape
    padded = torch.nn.functional.pad(images, (4, 4, 4, 4))
    corners = torch.randint(0, 9, (count, 2), generator=generator).tolist()
    flips = torch.rand(count, generator=generator) < 0.5
    cropped = [
        image[:, top : top + height, left : left + width]
        for image, (top, left) in zip(padded, corners, strict=True)
    ]
    return torch.stack(
        [
            image.flip(-1) if flip else image
            for image, flip in zip(cropped, flips, strict=True)
        ]
    )
