"""Load the data of one client on its own device.

No party sees all rows: neither the other devices nor the server. The properties that all clients
share, the shape of an input and the classes, are therefore in the settings, which are sent with the
run, and every device checks its data against them.
"""

from collections.abc import Callable
from functools import cache

from fedquorum.errors import DataError, SettingsError

from client_app.data.base import ClientData, ClientwiseData, Target
from client_app.data.coding.arrays import ArrayCoding
from client_app.data.coding.base import Coding
from client_app.data.priority import select_priority_clients
from client_app.data.sources.base import LabeledArrays
from conf.schema.data import (
    CsvSettings,
    DataSettings,
    ImageFolderSettings,
    OnDeviceSettings,
    get_num_clients,
)


class SingleClientData(ClientwiseData):
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
    class_names : tuple of str, optional
    coding : Coding
        How rows become inputs, as far as all clients share it.
    read : callable
        Returns the device's data for a client id, which determines its split, and the coding with
        the device's statistics, unless its rows are arrays.

    Raises
    ------
    SettingsError
        If priority depends on the clients' classes.
    """

    def __init__(
        self,
        settings: DataSettings,
        seed: int,
        *,
        input_shape: tuple[int, ...],
        num_classes: int,
        target: Target,
        class_names: tuple[str, ...] | None = None,
        coding: Coding,
        read: Callable[[int], tuple[ClientData, Coding | None]],
    ) -> None:
        self.num_clients = get_num_clients(settings)
        self.input_shape = input_shape
        self.num_classes = num_classes
        self.target = target
        self.class_names = class_names
        self._coding = coding
        self._read = read
        self._load_cached = cache(self._load_client)
        self.priority = select_priority_clients(settings, self.num_clients, self.get_labels, seed)

    @property
    def coding(self) -> Coding:
        """How rows become inputs, as far as all clients share it."""
        return self._coding

    def get_client(self, client: int) -> ClientData:
        """Return the data of one client, read once."""
        return self._load_cached(client)[0]

    def get_client_coding(self, client: int) -> Coding:
        """Return the coding with the statistics of this device's data, read once."""
        return self._load_cached(client)[1] or self._coding

    def _load_client(self, client: int) -> tuple[ClientData, Coding | None]:
        try:
            data, coding = self._read(client)
        except ValueError as error:
            raise DataError(f"data.path must lead to the data of a client: {error}") from None
        for split, x in (("train", data.x_train), ("test", data.x_test)):
            if x.shape[1:] != self.input_shape:
                raise DataError(
                    f"data.path must lead to {split} inputs of the agreed shape "
                    f"{self.input_shape}, got {x.shape[1:]}"
                )
        return data, coding


def load_device_arrays(
    settings: OnDeviceSettings, seed: int, arrays: Callable[[], LabeledArrays]
) -> SingleClientData:
    """Return the data of a file or folder with one client's samples.

    The test split is the test set if there is one, otherwise ``data.test_fraction`` of the samples.
    A client's split equals that in a table of all clients if its rows are in the same order.

    Raises
    ------
    SettingsError
        If ``data.normalize`` is true.
    """
    from client_app.data.partitioned import build_single_client

    input_shape, num_classes, target, class_names = _get_agreed_properties(settings)
    return SingleClientData(
        settings,
        seed,
        input_shape=input_shape,
        num_classes=num_classes,
        target=target,
        class_names=class_names,
        coding=_build_agreed_coding(settings, input_shape),
        read=lambda client: build_single_client(arrays(), settings, client=client, seed=seed),
    )


def _build_agreed_coding(settings: OnDeviceSettings, input_shape: tuple[int, ...]) -> Coding:
    """Return the part of the coding that all clients share: the scales stay on the devices."""
    if isinstance(settings, CsvSettings):
        from client_app.data.coding.table import TableScaling
        from client_app.data.sources.csv_table import TableSchema
        from client_app.data.tabular import build_table_coding

        schema = TableSchema.from_settings(settings.columns)
        return build_table_coding(schema, settings, TableScaling("device"))
    if isinstance(settings, ImageFolderSettings):
        from client_app.data.coding.images import ImageCoding

        height, width = settings.image_size or (0, 0)
        return ImageCoding((height, width), "RGB", "stretch")
    return ArrayCoding(input_shape, "float32")


def _get_agreed_properties(
    settings: OnDeviceSettings,
) -> tuple[tuple[int, ...], int, Target, tuple[str, ...] | None]:
    """Return the shape of an input, the number of classes, the kind of target, and class names."""
    if isinstance(settings, CsvSettings):
        from client_app.data.sources.csv_table import TableSchema

        agreed = TableSchema.from_settings(settings.columns)
        classes = agreed.classes
        kind: Target = "class" if classes else "number"
        return (len(agreed.columns),), len(classes) or 1, kind, tuple(classes) or None
    if settings.normalize:
        raise SettingsError(
            "data.normalize must be false with data.partition=device, where nobody knows the mean "
            "over all clients, got true"
        )
    if isinstance(settings, ImageFolderSettings):
        height, width = settings.image_size or (0, 0)
        names = tuple(settings.classes or ())
        return (3, height, width), len(names), "class", names
    input_shape = tuple(settings.input_shape or ())
    kind = "number" if settings.regression else "class"
    return input_shape, settings.num_classes or 1, kind, None
