"""Load the data of one client on its own device.

No party sees all rows: neither the other devices nor the server. The properties that all clients
share, the shape of an input and the classes, are therefore in the settings, which are sent with the
run, and every device checks its data against them.
"""

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
from fedquorum.errors import DataError, SettingsError

from client_app.data.base import (
    ClientData,
    Labels,
    PooledSplit,
    Split,
    Target,
    Targets,
    build_pooled_split,
    select_split,
)
from client_app.data.priority import select_priority_clients
from client_app.data.sources.base import LabeledArrays
from client_app.data.summary import DataSummary, describe_inputs, describe_target
from conf.schema.data import (
    CsvSettings,
    DataSettings,
    HfSettings,
    ImageFolderSettings,
    NpzSettings,
    get_num_clients,
)


class SingleClientData:
    """``data.num_clients`` clients, of which this device has the data of one.

    The data is read on demand, so a server needs no file. Any client id returns the data on this
    device; the node's ``client-id`` determines which client it is.

    Parameters
    ----------
    settings : DataSettings
    seed : int
        The run's seed.
    input_shape : tuple of int
        Shape of one input.
    num_classes : int
    target : str
        The kind of target.
    read : callable
        Returns the device's data for a client id, which determines its split.

    Raises
    ------
    SettingsError
        If priority depends on the clients' classes.
    """

    num_tokens = None

    def __init__(
        self,
        settings: DataSettings,
        seed: int,
        *,
        input_shape: tuple[int, ...],
        num_classes: int,
        target: Target,
        read: Callable[[int], ClientData],
    ) -> None:
        self.num_clients = get_num_clients(settings)
        self.input_shape = input_shape
        self.num_classes = num_classes
        self.target = target
        self._read = read
        self.get_client = cache(self._load_client)
        self.priority = select_priority_clients(settings, self.num_clients, self.get_labels, seed)

    @property
    def summary(self) -> DataSummary:
        """The interpretation of the data, known without reading it."""
        return DataSummary(
            self.num_clients,
            describe_target(self.target, self.num_classes),
            describe_inputs(self.input_shape, self.num_tokens),
        )

    def get_targets(self, client: int) -> tuple[Targets, Targets]:
        """Return the training and test targets of a client."""
        data = self.get_client(client)
        return data.y_train, data.y_test

    def get_pooled_split(self, split: Split, clients: Sequence[int]) -> PooledSplit:
        """Return one split of these clients."""
        return build_pooled_split({k: select_split(self.get_client(k), split) for k in clients})

    def get_labels(self, client: int) -> Labels:
        """Return the training labels of one client."""
        labels: Labels = self.get_client(client).y_train
        return labels

    def _load_client(self, client: int) -> ClientData:
        try:
            data = self._read(client)
        except ValueError as error:
            raise DataError(f"data.path must lead to the data of a client: {error}") from None
        for split, x in (("train", data.x_train), ("test", data.x_test)):
            if x.shape[1:] != self.input_shape:
                raise DataError(
                    f"data.path must lead to {split} inputs of the agreed shape "
                    f"{self.input_shape}, got {x.shape[1:]}"
                )
        return data


def load_device_table(settings: CsvSettings, seed: int) -> SingleClientData:
    """Return the data of a table with one client's rows and the agreed columns.

    The client's split equals that in a table of all clients if its rows are in the same order.
    """
    from client_app.data.sources.csv_table import TableSchema, read_csv_table
    from client_app.data.tabular import build_tabular_client, split_client_rows

    agreed = TableSchema.from_settings(settings.columns)

    def read(client: int) -> ClientData:
        table = read_csv_table(settings)
        rows = np.arange(len(table.clients))
        split = split_client_rows(table, rows, settings, client=client, seed=seed)
        return build_tabular_client(table, split, settings.imputation)

    return SingleClientData(
        settings,
        seed,
        input_shape=(len(agreed.columns),),
        num_classes=len(agreed.classes) or 1,
        target="class" if agreed.classes else "number",
        read=read,
    )


def load_device_arrays(
    settings: NpzSettings | HfSettings | ImageFolderSettings,
    seed: int,
    arrays: Callable[[], LabeledArrays],
) -> SingleClientData:
    """Return the data of a file or folder with one client's samples.

    The test split is the test set if there is one, otherwise ``data.test_fraction`` of the samples.

    Raises
    ------
    SettingsError
        If ``data.normalize`` is true.
    """
    from client_app.data.partitioned import build_single_client

    if settings.normalize:
        raise SettingsError(
            "data.normalize must be false with data.partition=device, where nobody knows the mean "
            "over all clients, got true"
        )
    if isinstance(settings, NpzSettings | HfSettings):
        input_shape = tuple(settings.input_shape or ())
        num_classes = settings.num_classes or 1
        target: Target = "number" if settings.regression else "class"
    else:
        height, width = settings.image_size or (0, 0)
        input_shape = 3, height, width
        num_classes = len(settings.classes or ())
        target = "class"
    return SingleClientData(
        settings,
        seed,
        input_shape=input_shape,
        num_classes=num_classes,
        target=target,
        read=lambda client: build_single_client(arrays(), settings, client=client, seed=seed),
    )
