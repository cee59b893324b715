"""One data set, divided among clients."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from fedquorum.errors import DataError, SettingsError
from numpy.typing import NDArray

from client_app.data.account import Account, input_words, target_words
from client_app.data.base import (
    NEEDS_CLASSES,
    ClientData,
    Labels,
    Part,
    PixelScale,
    Pool,
    Targets,
    as_inputs,
    target_of,
)
from client_app.data.normalised import normalised
from client_app.data.partition import (
    Division,
    Shares,
    dirichlet_shares,
    iid_shares,
    natural_shares,
    proportional_shares,
    quantity_shares,
    single_class_shards,
)
from client_app.data.priority import priority_clients
from client_app.data.sources.base import LabelledArrays
from client_app.data.split import Rows, split_client, validation_rows
from conf.schema.checks import check_clients
from conf.schema.data import NaturalSettings, PartitionedSettings, settled_clients


class PartitionedData:
    """The clients of one data set, divided among them as the settings say.

    A client's inputs are made when it is asked for: uint8 images become float32 (n, channels,
    height, width) in [0, 1], int16 sound float32 (n, 1, length) in [-1, 1], int32 tokens int64
    (n, length), and float32 inputs stay as they are. Until then there are the arrays, once, as
    read or mapped from a file, or what reads them, and the rows of each client.

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

    def __init__(self, arrays: LabelledArrays, settings: PartitionedSettings, seed: int) -> None:
        self._settings = settings
        self._seed = seed
        arrays, shares = _divided(arrays, settings, seed)
        self._shares = _validated(arrays, shares, settings.validation_fraction, seed)
        if arrays.of_training is not None:
            arrays = arrays.of_training(self._shares.train.flat)
        self._scale: PixelScale | None = None
        if settings.normalize:
            arrays, self._scale = normalised(arrays, self._shares.train.flat)
        self._arrays = arrays
        self.num_clients = len(self._shares)
        self.num_classes = arrays.num_classes
        self.target = target_of(arrays.y_train)
        self.num_tokens = arrays.num_tokens
        self.input_shape = as_inputs(arrays.x_train[:1]).shape[1:]
        check_clients(settings, self.num_clients)

    @cached_property
    def priority(self) -> tuple[int, ...]:
        """The priority clients that the settings ask for, ascending."""
        return priority_clients(self._settings, self.num_clients, self.labels, self._seed)

    @property
    def account(self) -> Account:
        """The interpretation of the data set, and the clients left out."""
        shares = self._shares
        return Account(
            self.num_clients,
            target_words(self.target, self.num_classes),
            input_words(self.input_shape, self.num_tokens),
            rows=sum(len(part.flat) for part in (shares.train, shares.test, shares.validation)),
            left_out=shares.left_out,
        )

    def client(self, client: int) -> ClientData:
        """Return the data of one client."""
        return _client_data(self._arrays, self._shares[client])

    def targets(self, client: int) -> tuple[Targets, Targets]:
        """Return the targets of a client's two parts."""
        share = self._shares[client]
        return self._arrays.y_train[share.train], self._arrays.y_test[share.test]

    def labels(self, client: int) -> Labels:
        """Return the training labels of one client.

        Raises
        ------
        SettingsError
            If the targets are no classes.
        """
        if not self._arrays.has_classes:
            raise SettingsError(NEEDS_CLASSES)
        labels: Labels = self._arrays.y_train[self._shares[client].train]
        return labels

    def pool(self, part: Part, clients: Sequence[int]) -> Pool:
        """Return the arrays as read, whole, and the rows of these clients."""
        arrays = self._arrays
        if part == "test":
            rows = self._shares.test.of_clients(clients)
            return Pool(arrays.x_test, arrays.y_test, rows, self._scale)
        shares = self._shares.train if part == "train" else self._shares.validation
        return Pool(arrays.x_train, arrays.y_train, shares.of_clients(clients), self._scale)


def whole_client(
    arrays: LabelledArrays, settings: NaturalSettings, *, client: int, seed: int
) -> ClientData:
    """Return arrays of one client alone, with the test set as its test part where there is one."""
    train, test = np.arange(len(arrays.y_train)), np.arange(len(arrays.y_test))
    if arrays.pooled:
        train, test = split_client(arrays.strata, settings.test_fraction, client=client, seed=seed)
    kept, validation = validation_rows(
        arrays.strata[train], settings.validation_fraction, client=client, seed=seed
    )
    return _client_data(arrays, Shares(train[kept], test, train[validation]))


def _validated(arrays: LabelledArrays, shares: Division, fraction: float, seed: int) -> Division:
    """Return the shares with a validation part, where there is to be one."""
    if fraction == 0:
        return shares
    strata, groups = arrays.strata, arrays.groups

    def split(client: int, rows: Rows) -> tuple[Rows, Rows]:
        of_client = None if groups is None else groups[rows]
        return validation_rows(strata[rows], fraction, client=client, seed=seed, groups=of_client)

    return shares.validated(split)


def _client_data(arrays: LabelledArrays, share: Shares) -> ClientData:
    return ClientData(
        as_inputs(arrays.x_train[share.train]),
        arrays.y_train[share.train],
        as_inputs(arrays.x_test[share.test]),
        arrays.y_test[share.test],
        (as_inputs(arrays.x_train[share.validation]), arrays.y_train[share.validation]),
    )


def _divided(
    arrays: LabelledArrays, settings: PartitionedSettings, seed: int
) -> tuple[LabelledArrays, Division]:
    """Return the share of each client, and the arrays whose rows it counts."""
    if isinstance(settings, NaturalSettings) and settings.partition == "natural":
        return _by_client(arrays, settings, seed)
    if not arrays.pooled:
        return arrays, Division.of(_shares(arrays.y_train, arrays.y_test, arrays, settings, seed))
    train, test = split_client(
        arrays.strata,
        settings.test_fraction if isinstance(settings, NaturalSettings) else 0.2,
        client=0,
        seed=seed,
        groups=arrays.groups,
    )
    shares = _shares(arrays.y_train[train], arrays.y_train[test], arrays, settings, seed)
    return arrays, Division.of([Shares(train[share.train], test[share.test]) for share in shares])


def _shares(
    y_train: NDArray[Any],
    y_test: NDArray[Any],
    arrays: LabelledArrays,
    settings: PartitionedSettings,
    seed: int,
) -> list[Shares]:
    num_clients = settled_clients(settings)
    if settings.partition == "iid":
        return iid_shares(
            len(y_train),
            len(y_test),
            num_clients=num_clients,
            samples_per_client=settings.samples_per_client,
            seed=seed,
        )
    if settings.partition == "quantity":
        return quantity_shares(
            len(y_train), len(y_test), num_clients=num_clients, alpha=settings.alpha, seed=seed
        )
    if not arrays.has_classes:
        raise SettingsError(
            "data.partition must be iid, quantity or natural where the targets are no classes, got "
            f"{settings.partition}"
        )
    if settings.partition == "proportional":
        return proportional_shares(
            y_train, y_test, num_clients=num_clients, alpha=settings.alpha, seed=seed
        )
    if settings.partition == "dirichlet":
        return dirichlet_shares(
            y_train,
            y_test,
            num_clients=num_clients,
            alpha=settings.alpha,
            samples_per_client=settings.samples_per_client,
            seed=seed,
        )
    return single_class_shards(
        y_train,
        y_test,
        num_clients=num_clients,
        shards_per_client=settings.shards_per_client,
        shard_size=settings.shard_size,
        samples_per_shard=settings.samples_per_shard,
        seed=seed,
    )


def _by_client(
    arrays: LabelledArrays, settings: NaturalSettings, seed: int
) -> tuple[LabelledArrays, Division]:
    if arrays.client_train is None:
        raise DataError("data.partition must be another than natural for data without clients")
    shares, splits_training = natural_shares(
        arrays.client_train,
        arrays.strata,
        None if arrays.pooled else arrays.client_test,
        test_fraction=settings.test_fraction,
        seed=seed,
        min_samples=settings.min_samples,
        groups=arrays.groups,
        names=arrays.client_names,
    )
    if splits_training and not arrays.pooled:  # the test set is of others
        arrays = replace(arrays, x_test=arrays.x_train, y_test=arrays.y_train, client_test=None)
    return arrays, shares
