"""One data set, divided among clients."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

from client_app.data.base import ClientData, Labels, Part, Pool, as_inputs, target_of
from client_app.data.partition import (
    Shares,
    dirichlet_shares,
    natural_shares,
    single_class_shards,
)
from client_app.data.priority import priority_clients
from client_app.data.sources.base import LabelledArrays
from conf.errors import DataError
from conf.schema import NpzSettings, PartitionedSettings, check_clients, settled_clients


class PartitionedData:
    """The clients of one data set, divided among them as the settings say.

    A client's inputs are made when it is asked for: uint8 images become float32 (n, channels,
    height, width) in [0, 1], int16 sound float32 (n, 1, length) in [-1, 1], and float32 inputs
    stay as they are. Until then there are the arrays as read, once, and the rows of each client.

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
        If the data does not have what the clients need, or settings of clients do not fit those
        that it has.
    DataError
        If its own clients cannot be taken as they are; see ``natural_shares``.
    """

    num_tokens = None

    def __init__(self, arrays: LabelledArrays, settings: PartitionedSettings, seed: int) -> None:
        self._settings = settings
        self._seed = seed
        self._arrays, self._shares = _divided(arrays, settings, seed)
        self.num_clients = len(self._shares)
        self.num_classes = arrays.num_classes
        self.target = target_of(arrays.y_train)
        self.input_shape = as_inputs(arrays.x_train[:1]).shape[1:]
        check_clients(settings, self.num_clients)

    @cached_property
    def priority(self) -> tuple[int, ...]:
        """The priority clients that the settings ask for, ascending."""
        return priority_clients(self._settings, self.num_clients, self.labels, self._seed)

    def client(self, client: int) -> ClientData:
        """Return the data of one client."""
        arrays, share = self._arrays, self._shares[client]
        return ClientData(
            as_inputs(arrays.x_train[share.train]),
            arrays.y_train[share.train],
            as_inputs(arrays.x_test[share.test]),
            arrays.y_test[share.test],
        )

    def labels(self, client: int) -> Labels:
        """Return the training labels of one client."""
        return self._arrays.y_train[self._shares[client].train]

    def pool(self, part: Part, clients: Sequence[int]) -> Pool:
        """Return the arrays as read, whole, and the rows of these clients."""
        arrays = self._arrays
        x, y = (
            (arrays.x_train, arrays.y_train) if part == "train" else (arrays.x_test, arrays.y_test)
        )
        return Pool(x, y, {k: getattr(self._shares[k], part) for k in clients})


def _divided(
    arrays: LabelledArrays, settings: PartitionedSettings, seed: int
) -> tuple[LabelledArrays, list[Shares]]:
    """Return the share of each client, and the arrays whose rows it counts."""
    if isinstance(settings, NpzSettings) and settings.partition == "natural":
        return _by_client(arrays, settings, seed)
    if settings.partition == "dirichlet":
        return arrays, dirichlet_shares(
            arrays.y_train,
            arrays.y_test,
            num_clients=settled_clients(settings),
            alpha=settings.alpha,
            samples_per_client=settings.samples_per_client,
            seed=seed,
        )
    return arrays, single_class_shards(
        arrays.y_train,
        arrays.y_test,
        num_clients=settled_clients(settings),
        shards_per_client=settings.shards_per_client,
        shard_size=settings.shard_size,
        samples_per_shard=settings.samples_per_shard,
        seed=seed,
    )


def _by_client(
    arrays: LabelledArrays, settings: NpzSettings, seed: int
) -> tuple[LabelledArrays, list[Shares]]:
    if arrays.client_train is None:
        raise DataError("data.partition must be another than natural for data without clients")
    shares, own = natural_shares(
        arrays.client_train,
        arrays.y_train,
        arrays.client_test,
        test_fraction=settings.test_fraction,
        seed=seed,
    )
    if own:  # the test set is of others
        arrays = replace(arrays, x_test=arrays.x_train, y_test=arrays.y_train, client_test=None)
    return arrays, shares
