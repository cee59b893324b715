"""Load the data of one client on its own device.

No party sees all rows: neither the other devices nor the server. The properties that all clients
share, the shape of an input and the classes, are therefore in the settings, which are sent with the
run, and every device checks its data against them.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

from fedquorum.errors import DataError, SettingsError

from client_app.data.agreed import ClientMoments, apply_scales, build_scales, measure_moments
from client_app.data.base import ClientData, ClientwiseData, Target, Targets
from client_app.data.coding.arrays import DeviceCoding
from client_app.data.coding.base import Coding
from client_app.data.coding.images import ImageCoding
from client_app.data.coding.read import infer_coding
from client_app.data.coding.table import TableCoding, TableScaling
from client_app.data.partition import ClientSplit
from client_app.data.partitioned import build_client_data, split_single_client
from client_app.data.priority import select_priority_clients
from client_app.data.scaling import AgreedScales
from client_app.data.sources.base import LabeledArrays
from client_app.data.split import Rows
from client_app.data.summary import DataSummary
from conf.schema.data import (
    CsvSettings,
    DataSettings,
    ImageFolderSettings,
    OnDeviceSettings,
    get_num_clients,
    needs_agreement,
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
        Returns the device's arrays and the splits for a client id, which determines them.

    Attributes
    ----------
    scales : AgreedScales
        Those of ``agree``; until then each client uses the statistics of its own rows.

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
        read: Callable[[int], tuple[LabeledArrays, ClientSplit]],
    ) -> None:
        self._settings = settings
        self.num_clients = get_num_clients(settings)
        self.input_shape = input_shape
        self.num_classes = num_classes
        self.target = target
        self.class_names = class_names
        self._coding = coding
        self.scales = build_scales([], settings)
        self._doubts: tuple[str, ...] = ()
        self._read = cache(read)
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
        return self._load_cached(client)[1]

    def measure_client(self, client: int) -> ClientMoments:
        """Return the moments of a client's training rows, for scales that all clients share."""
        arrays, split = self._read_client(client)
        return measure_moments(arrays, self._settings, split.train)

    def read_targets(self, client: int) -> tuple[tuple[Targets, Rows], ...]:
        """Return the targets of each split as read, not scaled, with the client's rows in them."""
        arrays, split = self._read_client(client)
        y_train, y_test = arrays.y_train, arrays.y_test
        return (y_train, split.train), (y_train, split.validation), (y_test, split.test)

    def agree(self, scales: AgreedScales, doubts: tuple[str, ...] = ()) -> None:
        """Use the scales that all clients share, with the doubts that they raise."""
        self.scales, self._doubts = scales, doubts
        if isinstance(self._coding, TableCoding) and scales.numbers is not None:
            self._coding = replace(self._coding, scaling=TableScaling("agreed", scales.numbers))
        self._load_cached.cache_clear()

    @property
    def summary(self) -> DataSummary:
        """The interpretation of the data, with the agreed scales."""
        summary = super().summary
        warnings = (*summary.warnings, *self._doubts)
        return replace(summary, scales=self.scales, warnings=warnings)

    def _load_client(self, client: int) -> tuple[ClientData, Coding]:
        arrays, split = self._read_client(client)
        scales = self.scales
        if needs_agreement(self._settings) and not scales:
            scales = build_scales([self.measure_client(client)], self._settings)
        arrays = apply_scales(arrays, scales)
        data = build_client_data(arrays, split)
        self._check_shapes(data)
        return data, arrays.coding or infer_coding(arrays.x_train[:1], arrays.num_tokens)

    def _read_client(self, client: int) -> tuple[LabeledArrays, ClientSplit]:
        try:
            return self._read(client)
        except ValueError as error:
            raise DataError(f"data.path must lead to the data of a client: {error}") from None

    def _check_shapes(self, data: ClientData) -> None:
        for split, x in (("train", data.x_train), ("test", data.x_test)):
            if x.shape[1:] != self.input_shape:
                raise DataError(
                    f"data.path must lead to {split} inputs of the agreed shape "
                    f"{self.input_shape}, got {x.shape[1:]}"
                )


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
    input_shape, num_classes, target, class_names = _get_agreed_properties(settings)

    def read(client: int) -> tuple[LabeledArrays, ClientSplit]:
        found = arrays()
        split = split_single_client(found, settings, client=client, seed=seed)
        if found.build_for_training is not None:
            found = found.build_for_training(split.train)
        return found, split

    return SingleClientData(
        settings,
        seed,
        input_shape=input_shape,
        num_classes=num_classes,
        target=target,
        class_names=class_names,
        coding=_build_agreed_coding(settings, input_shape),
        read=read,
    )


def _build_agreed_coding(settings: OnDeviceSettings, input_shape: tuple[int, ...]) -> Coding:
    """Return the part of the coding that all clients share: the scales stay on the devices."""
    if isinstance(settings, CsvSettings):
        from client_app.data.sources.client_table import TableSchema
        from client_app.data.tabular import build_table_coding

        schema = TableSchema.from_settings(settings.columns)
        return build_table_coding(
            schema, settings, TableScaling("device" if schema.numbers else "none")
        )
    if isinstance(settings, ImageFolderSettings):
        height, width = settings.image_size or (0, 0)
        return ImageCoding((height, width), "RGB", "stretch")
    return DeviceCoding(input_shape)


def _get_agreed_properties(
    settings: OnDeviceSettings,
) -> tuple[tuple[int, ...], int, Target, tuple[str, ...] | None]:
    """Return the shape of an input, the number of classes, the kind of target, and class names."""
    if isinstance(settings, CsvSettings):
        from client_app.data.sources.client_table import TableSchema

        agreed = TableSchema.from_settings(settings.columns)
        classes = agreed.classes
        kind: Target = "class" if classes else "number"
        return (len(agreed.columns),), len(classes) or 1, kind, agreed.class_names or None
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
