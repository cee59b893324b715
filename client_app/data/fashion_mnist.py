"""Fashion-MNIST by torchvision, in single-class shards per client."""

from functools import cached_property
from pathlib import Path

import numpy as np
from torchvision.datasets import FashionMNIST as TorchvisionFashionMNIST

from client_app.data.base import ClientData, scaled_images
from client_app.data.partition import Shares, single_class_shards
from client_app.data.priority import heterogeneous_priority, listed_priority, random_priority
from conf.errors import DataError
from conf.schema import FashionMnistSettings


class FashionMnist:
    """28 x 28 grey images of 10 kinds of clothing: 60,000 for training, 10,000 for testing.

    ``data.root`` is torchvision's root: the folder that holds ``FashionMNIST/raw``. Where the
    files are missing they are downloaded, unless ``data.download`` is false.

    Raises
    ------
    DataError
        If the files are neither there nor to be had.
    SettingsError
        If there are fewer shards than the clients need.
    """

    input_shape = (1, 28, 28)
    num_classes = 10

    def __init__(self, settings: FashionMnistSettings, seed: int) -> None:
        self._settings = settings
        self.num_clients = settings.num_clients
        train, test = self._load(train=True), self._load(train=False)
        self._x_train, self._y_train = train.data.numpy(), train.targets.numpy()
        self._x_test, self._y_test = test.data.numpy(), test.targets.numpy()
        self._shares: list[Shares] = single_class_shards(
            self._y_train,
            self._y_test,
            num_clients=settings.num_clients,
            shards_per_client=settings.shards_per_client,
            shard_size=settings.shard_size,
            seed=seed,
        )
        self._seed = seed

    @cached_property
    def priority(self) -> tuple[int, ...]:
        """The priority clients that the settings ask for, ascending."""
        settings = self._settings
        if settings.priority == "random":
            return random_priority(settings.num_clients, settings.num_priority, self._seed)
        if settings.priority == "heterogeneous":
            classes = [
                frozenset(int(c) for c in np.unique(self._y_train[share.train]))
                for share in self._shares
            ]
            return heterogeneous_priority(classes, settings.num_priority, self._seed)
        return listed_priority(settings.priority)

    def client(self, client: int) -> ClientData:
        """Return the data of one client."""
        share = self._shares[client]
        return ClientData(
            scaled_images(self._x_train[share.train]),
            self._y_train[share.train],
            scaled_images(self._x_test[share.test]),
            self._y_test[share.test],
        )

    def _load(self, train: bool) -> TorchvisionFashionMNIST:
        root = Path(self._settings.root).expanduser().resolve()
        wanted = "the four files of Fashion-MNIST in FashionMNIST/raw"
        try:
            return TorchvisionFashionMNIST(root, train=train, download=False)
        except Exception as error:  # for a damaged file torchvision raises what it pleases
            if not self._settings.download:
                raise DataError(
                    f"data.root must be a folder with {wanted} (data.download is false), "
                    f"got {root}: {_one_line(error)}"
                ) from None
        try:
            return TorchvisionFashionMNIST(root, train=train, download=True)
        except Exception as error:
            raise DataError(
                f"data.root must be a folder with {wanted}, or they must be downloadable to it, "
                f"got {root}: {_one_line(error)}"
            ) from None


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
