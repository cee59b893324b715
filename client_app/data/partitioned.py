"""One data set, divided among clients."""

from functools import cached_property

import numpy as np

from client_app.data.base import ClientData, Inputs, Labels, scaled_images
from client_app.data.partition import Shares, dirichlet_shares, single_class_shards
from client_app.data.priority import heterogeneous_priority, listed_priority, random_priority
from client_app.data.sources.base import LabelledArrays, Samples
from conf.schema import PartitionedSettings


class PartitionedData:
    """The clients of one data set, divided among them as the settings say.

    A client's inputs are made when it is asked for: uint8 images become float32 (n, channels,
    height, width) in [0, 1], float32 inputs stay as they are. Until then there are the arrays
    as read, once, and the rows of each client.

    Parameters
    ----------
    arrays : LabelledArrays
        The data set.
    settings : PartitionedSettings
        How it is divided, and who has priority.
    seed : int
        The run's seed.

    Raises
    ------
    SettingsError
        If the data does not have what the clients need.
    """

    def __init__(self, arrays: LabelledArrays, settings: PartitionedSettings, seed: int) -> None:
        self._arrays = arrays
        self._settings = settings
        self._seed = seed
        self.num_clients = settings.num_clients
        self.num_classes = arrays.num_classes
        self.input_shape = _inputs(arrays.x_train[:1]).shape[1:]
        self._shares = _divided(arrays, settings, seed)

    @cached_property
    def priority(self) -> tuple[int, ...]:
        """The priority clients that the settings ask for, ascending."""
        settings = self._settings
        if settings.priority == "all":
            return tuple(range(settings.num_clients))
        if settings.priority == "random":
            return random_priority(settings.num_clients, settings.num_priority, self._seed)
        if settings.priority == "heterogeneous":
            classes = [
                frozenset(int(c) for c in np.unique(self.labels(k)))
                for k in range(settings.num_clients)
            ]
            return heterogeneous_priority(classes, settings.num_priority, self._seed)
        return listed_priority(settings.priority)

    def client(self, client: int) -> ClientData:
        """Return the data of one client."""
        arrays, share = self._arrays, self._shares[client]
        return ClientData(
            _inputs(arrays.x_train[share.train]),
            arrays.y_train[share.train],
            _inputs(arrays.x_test[share.test]),
            arrays.y_test[share.test],
        )

    def labels(self, client: int) -> Labels:
        """Return the training labels of one client."""
        return self._arrays.y_train[self._shares[client].train]


def _divided(arrays: LabelledArrays, settings: PartitionedSettings, seed: int) -> list[Shares]:
    if settings.partition == "dirichlet":
        return dirichlet_shares(
            arrays.y_train,
            arrays.y_test,
            num_clients=settings.num_clients,
            alpha=settings.alpha,
            samples_per_client=settings.samples_per_client,
            seed=seed,
        )
    return single_class_shards(
        arrays.y_train,
        arrays.y_test,
        num_clients=settings.num_clients,
        shards_per_client=settings.shards_per_client,
        shard_size=settings.shard_size,
        samples_per_shard=settings.samples_per_shard,
        seed=seed,
    )


def _inputs(samples: Samples) -> Inputs:
    if samples.dtype == np.uint8:
        return scaled_images(samples)
    return samples.astype(np.float32, copy=False)
