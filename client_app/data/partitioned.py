"""Divide one data set among clients."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from fedquorum.errors import DataError, SettingsError
from numpy.typing import NDArray

from client_app.data.agreed import (
    MAX_COMPARED_CLIENTS,
    ClientMoments,
    apply_scales,
    build_scales,
    describe_far_clients,
    measure_moments,
)
from client_app.data.base import (
    CLASSES_REQUIRED,
    ClientData,
    Labels,
    PixelNormalization,
    PooledSplit,
    RowIndex,
    Split,
    Targets,
    infer_target,
    to_inputs,
)
from client_app.data.client_labels import label_clients
from client_app.data.coding.base import Coding
from client_app.data.coding.read import infer_coding
from client_app.data.held_out import select_held_out_clients
from client_app.data.normalize import normalize_images
from client_app.data.partition import (
    ClientSplit,
    Partition,
    partition_by_dirichlet,
    partition_by_quantity,
    partition_by_shards,
    partition_iid,
    partition_naturally,
    partition_proportionally,
)
from client_app.data.priority import check_named_clients, select_priority_clients
from client_app.data.sources.base import LabeledArrays
from client_app.data.split import Rows
from client_app.data.summary import DataSummary, describe_inputs, describe_target
from conf.schema.checks import check_clients
from conf.schema.data import (
    CsvSettings,
    NaturalSettings,
    PartitionedSettings,
    get_num_clients,
    needs_agreement,
)

MAX_CLIENTS, MIN_CLIENTS = 60, 2
MIN_TRAIN_ROWS, MIN_TEST_ROWS = 20, 5
"""The bounds of ``data.partition=auto``: clients, and the rows of each of more than two."""

Divisible = PartitionedSettings | CsvSettings
"""The settings of a data set that one process divides among its clients."""


class PartitionedData:
    """The clients of one data set, divided as the settings specify.

    A client's inputs are built on demand: uint8 images become float32 (n, channels, height, width)
    in [0, 1], int16 sound float32 (n, 1, length) in [-1, 1], int32 tokens int64 (n, length), and
    float32 inputs do not change. Only one copy of the arrays is stored, as read, mapped from a file
    or lazy, with the row indices of each client.

    Parameters
    ----------
    arrays : LabeledArrays
        The data set.
    settings : PartitionedSettings or CsvSettings
        A table is always divided into the clients that it names.
    seed : int
        The run's seed.

    Raises
    ------
    SettingsError
        If the data set is too small for the clients, or settings of single clients do not fit the
        number of clients.
    DataError
        If the data set's own clients cannot be used; see ``partition_naturally``.
    """

    def __init__(self, arrays: LabeledArrays, settings: Divisible, seed: int) -> None:
        self._settings = settings = _choose_division(settings, arrays)
        self._seed = seed
        arrays, self._partition = _divide_rows(arrays, settings, seed)
        if arrays.build_for_clients is not None:
            rows = self._partition
            arrays = arrays.build_for_clients(arrays, rows.train, rows.validation, rows.test)
        elif arrays.build_for_training is not None:
            arrays = arrays.build_for_training(self._partition.train.flat)
        self._scale: PixelNormalization | None = None
        samples = arrays.x_train[:1]
        if isinstance(settings, PartitionedSettings) and settings.normalize:
            arrays, self._scale = normalize_images(arrays, self._partition.train.flat)
        self._arrays = arrays
        self.num_clients = len(self._partition)
        self.num_classes = arrays.num_classes
        self.client_names = self._partition.names
        self.class_names = arrays.class_names
        self.target = infer_target(arrays.y_train)
        self.num_tokens = arrays.num_tokens
        self.input_shape = to_inputs(arrays.x_train[:1]).shape[1:]
        self._check_shape()
        check_clients(settings, self.num_clients)
        check_named_clients(settings, self.num_clients, self.client_names)
        moments = self._measure_clients()
        names = () if arrays.agreed is None else arrays.agreed.names
        self.scales = build_scales([*moments.values()], settings, names)
        labels = label_clients(self.client_names, self.num_clients, recorded=settings.names)
        self._doubts = describe_far_clients(
            [labels[k] for k in moments],
            [*moments.values()],
            self.scales,
        )
        self._raw_targets = arrays.y_train, arrays.y_test
        self._arrays = arrays = apply_scales(arrays, self.scales)
        self.coding: Coding = arrays.coding or infer_coding(samples, arrays.num_tokens, self._scale)

    def _check_shape(self) -> None:
        """Refuse a ``data.input_shape`` that devices state, and that this data does not have."""
        stated = getattr(self._settings, "input_shape", None)
        if stated is not None and tuple(stated) != self.input_shape:
            raise DataError(
                f"data.input_shape must be that of the inputs, {list(self.input_shape)}, or null, "
                f"got {stated}"
            )

    def _measure_clients(self) -> dict[int, ClientMoments]:
        """Return the moments of each client that trains; of many clients in one sum."""
        settings, arrays, train = self._settings, self._arrays, self._partition.train
        if not needs_agreement(settings):
            return {}
        held_out: Collection[int] = ()
        if settings.holdout_client_fraction:
            priority = {*self.priority, *(settings.priority_weights or ())}
            held_out = select_held_out_clients(settings, self.num_clients, priority, self._seed)
        rows = {k: train[k] for k in range(self.num_clients) if k not in held_out}
        if len(rows) > MAX_COMPARED_CLIENTS:
            rows = {0: np.concatenate([*rows.values()])}
        return {k: measure_moments(arrays, settings, of_client) for k, of_client in rows.items()}

    @cached_property
    def priority(self) -> tuple[int, ...]:
        """The priority clients of the settings, ascending."""
        return select_priority_clients(
            self._settings, self.num_clients, self.get_labels, self._seed, self.client_names
        )

    @property
    def summary(self) -> DataSummary:
        """The interpretation of the data set, and the clients left out."""
        found, partition = self._arrays.summary, self._partition
        if found is not None:
            warnings = (*found.warnings, *self._doubts)
            return replace(found, scales=self.scales, warnings=warnings)
        return DataSummary(
            self.num_clients,
            describe_target(self.target, self.num_classes),
            describe_inputs(self.input_shape, self.num_tokens),
            rows=sum(
                len(part.flat) for part in (partition.train, partition.test, partition.validation)
            ),
            division=_describe_division(self._settings, self.num_clients),
            dropped_clients=partition.dropped_clients,
            files_passed_over=self._arrays.files_passed_over,
            classes=dict.fromkeys(self.class_names or ()),
            scales=self.scales,
            warnings=(*self._arrays.warnings, *self._doubts),
        )

    def get_client(self, client: int) -> ClientData:
        """Return the data of one client."""
        return build_client_data(self._arrays, self._partition[client])

    def get_targets(self, client: int) -> tuple[Targets, Targets]:
        """Return the training and test targets of a client."""
        share = self._partition[client]
        return self._arrays.y_train[share.train], self._arrays.y_test[share.test]

    def list_targets(self) -> tuple[tuple[Targets, RowIndex], ...]:
        """Return the targets of each split as read, not scaled, with each client's rows in them."""
        y_train, y_test = self._raw_targets
        rows = self._partition
        return (y_train, rows.train), (y_train, rows.validation), (y_test, rows.test)

    @property
    def has_pooled_rows(self) -> bool:
        """Whether test rows are taken from the same table as the rows to train on."""
        return self._arrays.pooled

    def get_test_units(self, client: int) -> Rows:
        """Return the number of each of a client's test rows in the source, or of its group."""
        groups, rows = self._arrays.division.groups, self._partition.test[client]
        return rows if groups is None else groups[rows]

    def count_test_units(self, client: int) -> int:
        """Return the number of a client's independent test rows; rows of a group count once."""
        return len(np.unique(self.get_test_units(client)))

    def get_labels(self, client: int) -> Labels:
        """Return the training labels of one client.

        Raises
        ------
        SettingsError
            If the targets are not classes.
        """
        if not self._arrays.has_classes:
            raise SettingsError(CLASSES_REQUIRED)
        labels: Labels = self._arrays.y_train[self._partition[client].train]
        return labels

    def get_pooled_split(self, split: Split, clients: Sequence[int]) -> PooledSplit:
        """Return one split of these clients, with the whole arrays as read."""
        arrays = self._arrays
        if split == "test":
            rows = self._partition.test.select_clients(clients)
            return PooledSplit(arrays.x_test, arrays.y_test, rows, self._scale)
        partition = self._partition.train if split == "train" else self._partition.validation
        return PooledSplit(
            arrays.x_train, arrays.y_train, partition.select_clients(clients), self._scale
        )


def split_single_client(
    arrays: LabeledArrays, settings: NaturalSettings | CsvSettings, *, client: int, seed: int
) -> ClientSplit:
    """Return the splits of a single client; its test split is the test set if there is one."""
    if _has_validation_seed(arrays, settings) and arrays.pooled:
        drawn = _split_single_client(arrays, settings, client, settings.validation_seed or 0)
        arrays = _fix_validation(arrays, drawn.validation)
    return _split_single_client(arrays, settings, client, seed)


def _split_single_client(
    arrays: LabeledArrays, settings: NaturalSettings | CsvSettings, client: int, seed: int
) -> ClientSplit:
    train, test = np.arange(len(arrays.y_train)), np.arange(len(arrays.y_test))
    if arrays.pooled:
        train, test = arrays.division.split_test(
            arrays.strata, settings.test_fraction, client=client, seed=seed
        )
    training, validation = arrays.division.select(train).split_validation(
        arrays.strata[train], settings.validation_fraction, client=client, seed=seed
    )
    return ClientSplit(train[training], test, train[validation])


def _divide_rows(
    arrays: LabeledArrays, settings: Divisible, seed: int
) -> tuple[LabeledArrays, Partition]:
    """Return all splits of all clients, and the arrays that their rows index."""
    if _has_validation_seed(arrays, settings):
        found, drawn = _divide_by_seed(arrays, settings, settings.validation_seed or 0)
        if found.pooled:
            arrays = _fix_validation(arrays, drawn.validation.flat)
    return _divide_by_seed(arrays, settings, seed)


def _divide_by_seed(
    arrays: LabeledArrays, settings: Divisible, seed: int
) -> tuple[LabeledArrays, Partition]:
    arrays, partition = _partition_clients(arrays, settings, seed)
    return arrays, _add_validation(arrays, partition, settings.validation_fraction, seed)


def _has_validation_seed(arrays: LabeledArrays, settings: Divisible) -> bool:
    """Say whether ``data.validation_seed`` matters if the test rows are taken from the others."""
    is_set = settings.validation_seed is not None and settings.validation_fraction > 0
    return is_set and arrays.division.draws_test_rows


def _fix_validation(arrays: LabeledArrays, rows: Rows) -> LabeledArrays:
    """Return the arrays with these rows for validation with every seed."""
    division = arrays.division.fix_validation(rows, len(arrays.y_train))
    return replace(arrays, division=division)


def _add_validation(
    arrays: LabeledArrays, partition: Partition, fraction: float, seed: int
) -> Partition:
    """Return the partition, with a validation split if ``fraction`` is above 0."""
    if fraction == 0:
        return partition
    strata, division = arrays.strata, arrays.division

    def split(client: int, rows: Rows) -> tuple[Rows, Rows]:
        return division.select(rows).split_validation(
            strata[rows], fraction, client=client, seed=seed
        )

    return partition.with_validation(split)


def build_client_data(arrays: LabeledArrays, split: ClientSplit) -> ClientData:
    """Return the inputs and targets of a client's splits."""
    return ClientData(
        to_inputs(arrays.x_train[split.train]),
        arrays.y_train[split.train],
        to_inputs(arrays.x_test[split.test]),
        arrays.y_test[split.test],
        (to_inputs(arrays.x_train[split.validation]), arrays.y_train[split.validation]),
    )


def _choose_division(settings: Divisible, arrays: LabeledArrays) -> Divisible:
    """Return the settings with the division that ``data.partition=auto`` means for this data."""
    if not isinstance(settings, NaturalSettings) or settings.partition != "auto":
        return settings
    if arrays.client_train is not None:
        return replace(settings, partition="natural")
    num_train, num_test = len(arrays.y_train), len(arrays.y_test)
    if arrays.pooled:
        num_test = int(settings.test_fraction * num_train)
        num_train -= num_test
    fitting = min(MAX_CLIENTS, num_train // MIN_TRAIN_ROWS, num_test // MIN_TEST_ROWS)
    return replace(
        settings, partition="iid", num_clients=settings.num_clients or max(MIN_CLIENTS, fitting)
    )


def _describe_division(settings: Divisible, num_clients: int) -> str:
    """Return how the rows became those of the clients, in words."""
    if isinstance(settings, CsvSettings):
        return ""
    if settings.partition == "natural":
        return "the data's own clients (data.partition=natural)"
    rows = "equally many random rows each" if settings.partition == "iid" else "artificial"
    return f"{num_clients:,} clients, {rows} (data.partition={settings.partition})"


def _partition_clients(
    arrays: LabeledArrays, settings: Divisible, seed: int
) -> tuple[LabeledArrays, Partition]:
    """Return the partition, and the arrays that its rows index."""
    if isinstance(settings, CsvSettings):
        return _partition_by_client(arrays, settings, seed)
    if isinstance(settings, NaturalSettings) and settings.partition == "natural":
        return _partition_by_client(arrays, settings, seed)
    if not arrays.pooled:
        return arrays, Partition.from_splits(
            _split_by_rule(arrays.y_train, arrays.y_test, arrays, settings, seed)
        )
    train, test = arrays.division.split_test(
        arrays.strata,
        settings.test_fraction if isinstance(settings, NaturalSettings) else 0.2,
        client=0,
        seed=seed,
    )
    splits = _split_by_rule(arrays.y_train[train], arrays.y_train[test], arrays, settings, seed)
    return arrays, Partition.from_splits(
        [ClientSplit(train[split.train], test[split.test]) for split in splits]
    )


def _split_by_rule(
    y_train: NDArray[Any],
    y_test: NDArray[Any],
    arrays: LabeledArrays,
    settings: PartitionedSettings,
    seed: int,
) -> list[ClientSplit]:
    num_clients = get_num_clients(settings)
    if settings.partition == "iid":
        return partition_iid(
            len(y_train),
            len(y_test),
            num_clients=num_clients,
            samples_per_client=settings.samples_per_client,
            seed=seed,
        )
    if settings.partition == "quantity":
        return partition_by_quantity(
            len(y_train), len(y_test), num_clients=num_clients, alpha=settings.alpha, seed=seed
        )
    if not arrays.has_classes:
        raise SettingsError(
            "data.partition must be iid, quantity or natural where the targets are no classes, got "
            f"{settings.partition}"
        )
    if settings.partition == "proportional":
        return partition_proportionally(
            y_train, y_test, num_clients=num_clients, alpha=settings.alpha, seed=seed
        )
    if settings.partition == "dirichlet":
        return partition_by_dirichlet(
            y_train,
            y_test,
            num_clients=num_clients,
            alpha=settings.alpha,
            samples_per_client=settings.samples_per_client,
            seed=seed,
        )
    return partition_by_shards(
        y_train,
        y_test,
        num_clients=num_clients,
        shards_per_client=settings.shards_per_client,
        shard_size=settings.shard_size,
        samples_per_shard=settings.samples_per_shard,
        seed=seed,
    )


def _partition_by_client(
    arrays: LabeledArrays, settings: NaturalSettings | CsvSettings, seed: int
) -> tuple[LabeledArrays, Partition]:
    if arrays.client_train is None:
        raise DataError("data.partition must be another than natural for data without clients")
    partition, splits_training = partition_naturally(
        arrays.client_train,
        arrays.strata,
        None if arrays.pooled else arrays.client_test,
        test_fraction=settings.test_fraction,
        seed=seed,
        min_samples=settings.min_samples,
        division=arrays.division,
        names=arrays.client_names,
    )
    if splits_training and not arrays.pooled:  # the test set has other clients
        arrays = replace(
            arrays,
            x_test=arrays.x_train,
            y_test=arrays.y_train,
            client_test=None,
            pooled=True,
        )
    return arrays, partition
