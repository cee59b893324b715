"""The data of one client, on the device that it belongs to.

Nobody sees all rows: not the other devices, and not the server. What all have to have in common,
the shape of an input and the classes, is therefore in the settings, which travel with the run, and
every device compares its own data with them.
"""

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
from fedquorum.errors import DataError, SettingsError

from client_app.data.account import Account, input_words, target_words
from client_app.data.base import (
    ClientData,
    Labels,
    Part,
    Pool,
    Target,
    Targets,
    part_of,
    pooled,
)
from client_app.data.priority import priority_clients
from client_app.data.sources.base import LabelledArrays
from conf.schema.data import (
    CsvSettings,
    DataSettings,
    HfSettings,
    ImageFolderSettings,
    NpzSettings,
    settled_clients,
)


class DeviceData:
    """``data.num_clients`` clients, of which this device has the data of one.

    Nothing is read before a client's data is asked for, so a server needs no file. Whichever
    client is asked for gets the data that is here: the node's ``client-id`` says whose it is.

    Parameters
    ----------
    settings : DataSettings
        Number of clients and priority.
    seed : int
        The run's seed.
    input_shape : tuple of int
        Shape of one input.
    num_classes : int
        Number of classes.
    target : str
        What is predicted.
    read : callable
        Returns the data that is here, for a client id, from which its split follows.

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
        self.num_clients = settled_clients(settings)
        self.input_shape = input_shape
        self.num_classes = num_classes
        self.target = target
        self._read = read
        self.client = cache(self._client)
        self.priority = priority_clients(settings, self.num_clients, self.labels, seed)

    @property
    def account(self) -> Account:
        """The interpretation of the data, known without making any."""
        return Account(
            self.num_clients,
            target_words(self.target, self.num_classes),
            input_words(self.input_shape, self.num_tokens),
        )

    def targets(self, client: int) -> tuple[Targets, Targets]:
        """Return the targets of a client's two parts."""
        data = self.client(client)
        return data.y_train, data.y_test

    def pool(self, part: Part, clients: Sequence[int]) -> Pool:
        """Return one part of these clients."""
        return pooled({k: part_of(self.client(k), part) for k in clients})

    def labels(self, client: int) -> Labels:
        """Return the training labels of one client."""
        labels: Labels = self.client(client).y_train
        return labels

    def _client(self, client: int) -> ClientData:
        try:
            data = self._read(client)
        except ValueError as error:
            raise DataError(f"data.path must lead to the data of a client: {error}") from None
        for part, x in (("train", data.x_train), ("test", data.x_test)):
            if x.shape[1:] != self.input_shape:
                raise DataError(
                    f"data.path must lead to {part} inputs of the agreed shape {self.input_shape}, "
                    f"got {x.shape[1:]}"
                )
        return data


def device_table(settings: CsvSettings, seed: int) -> DeviceData:
    """Return the data of a table that has the rows of one client, with the agreed columns.

    The client's split is that of the table of all clients, if its rows are in the same order.
    """
    from client_app.data.sources.csv_table import Agreed, csv_table
    from client_app.data.tabular import client_rows, table_part

    agreed = Agreed.of_settings(settings.columns)

    def read(client: int) -> ClientData:
        table = csv_table(settings)
        rows = np.arange(len(table.clients))
        shares = client_rows(table, rows, settings, client=client, seed=seed)
        return table_part(table, shares, settings.imputation)

    return DeviceData(
        settings,
        seed,
        input_shape=(len(agreed.columns),),
        num_classes=len(agreed.classes) or 1,
        target="class" if agreed.classes else "number",
        read=read,
    )


def device_arrays(
    settings: NpzSettings | HfSettings | ImageFolderSettings,
    seed: int,
    arrays: Callable[[], LabelledArrays],
) -> DeviceData:
    """Return the data of a file or folder that has the samples of one client.

    Its test set is the client's test part; without one, ``data.test_fraction`` of its samples.

    Raises
    ------
    SettingsError
        If images are to be normalised.
    """
    from client_app.data.partitioned import whole_client

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
    return DeviceData(
        settings,
        seed,
        input_shape=input_shape,
        num_classes=num_classes,
        target=target,
        read=lambda client: whole_client(arrays(), settings, client=client, seed=seed),
    )
