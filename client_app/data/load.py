"""From settings to data, once per process."""

from client_app.data.base import FederatedData
from client_app.data.sources.base import LabelledArrays
from conf.schema.data import (
    CsvSettings,
    DataSettings,
    HfSettings,
    ImageFolderSettings,
    LeafSettings,
    NpzSettings,
    PartitionedSettings,
    SynthSettings,
    TextSettings,
    TorchvisionSettings,
    of_devices,
)


def load_data(settings: DataSettings, seed: int) -> FederatedData:
    """Return the data set of the settings; the last one asked for is kept.

    Runs that differ only in other settings, as in a sweep, share it.

    Raises
    ------
    DataError
        If the data is not where the settings say.
    SettingsError
        If the settings ask for more than the data holds, or for other clients than it has.
    """
    key = (repr(settings), seed)
    if key not in _last:
        keep_data(settings, seed, _make(settings, seed))
    return _last[key]


def keep_data(settings: DataSettings, seed: int, data: FederatedData) -> None:
    """Let ``load_data`` return this for these settings, as where another process has read it."""
    _last.clear()
    _last[repr(settings), seed] = data


_last: dict[tuple[str, int], FederatedData] = {}


def _make(settings: DataSettings, seed: int) -> FederatedData:
    # Imported when asked for: torchvision and flwr-datasets take seconds to load.
    if isinstance(settings, SynthSettings):
        from client_app.data.synth import Synth

        return Synth(settings, seed)
    if isinstance(settings, CsvSettings) and of_devices(settings):
        from client_app.data.device import device_table

        return device_table(settings, seed)
    if isinstance(settings, NpzSettings | HfSettings | ImageFolderSettings) and of_devices(
        settings
    ):
        from client_app.data.device import device_arrays

        return device_arrays(settings, seed, lambda: _arrays(settings))
    if isinstance(settings, CsvSettings):
        from client_app.data.sources.csv_table import csv_table
        from client_app.data.tabular import TabularData

        return TabularData(csv_table(settings), settings, seed)
    if isinstance(settings, PartitionedSettings):
        from client_app.data.partitioned import PartitionedData

        return PartitionedData(_arrays(settings), settings, seed)
    raise TypeError(f"no data set for {type(settings).__name__}")


def _arrays(settings: PartitionedSettings) -> LabelledArrays:
    if isinstance(settings, TorchvisionSettings):
        from client_app.data.sources.torchvision import torchvision_arrays

        return torchvision_arrays(settings)
    if isinstance(settings, NpzSettings):
        from client_app.data.sources.npz import npz_arrays

        return npz_arrays(settings)
    if isinstance(settings, HfSettings):
        from client_app.data.sources.hf import hf_arrays

        return hf_arrays(settings)
    if isinstance(settings, ImageFolderSettings):
        from client_app.data.sources.image_folder import image_folder_arrays

        return image_folder_arrays(settings)
    if isinstance(settings, LeafSettings):
        from client_app.data.sources.leaf import leaf_arrays

        return leaf_arrays(settings)
    if isinstance(settings, TextSettings):
        from client_app.data.sources.text import text_arrays

        return text_arrays(settings)
    raise TypeError(f"no source of arrays for {type(settings).__name__}")
