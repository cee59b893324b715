"""Load the data of the settings, once per process."""

from functools import partial

from client_app.data.base import FederatedData
from client_app.data.sources.base import LabeledArrays
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
    is_on_device,
)


def load_data(settings: DataSettings, seed: int) -> FederatedData:
    """Return the data set of the settings; the last one is cached.

    Runs that differ only in other settings, as in a sweep, share it. ``data.seed`` replaces the
    run's ``seed``, if it is a number.

    Raises
    ------
    DataError
        If the data is missing.
    SettingsError
        If the settings require more data, or other clients, than the data set has.
    """
    key = (repr(settings), seed)
    if key not in _last:
        data_seed = seed if settings.seed is None else settings.seed
        cache_data(settings, seed, _build_data(settings, data_seed))
    return _last[key]


def cache_data(settings: DataSettings, seed: int, data: FederatedData) -> None:
    """Make ``load_data`` return ``data`` for these settings, which another process has read."""
    _last.clear()
    _last[repr(settings), seed] = data


_last: dict[tuple[str, int], FederatedData] = {}


def _build_data(settings: DataSettings, seed: int) -> FederatedData:
    # Imported on demand: torchvision and flwr-datasets take seconds to load.
    if isinstance(settings, SynthSettings):
        from client_app.data.synth import SynthData

        return SynthData(settings, seed)
    if is_on_device(settings):
        from client_app.data.single_client import load_device_arrays

        return load_device_arrays(settings, seed, partial(_load_arrays, settings))
    if not isinstance(settings, PartitionedSettings | CsvSettings):
        raise TypeError(f"no data set for {type(settings).__name__}")
    from client_app.data.partitioned import PartitionedData

    return PartitionedData(_load_arrays(settings), settings, seed)


def _load_arrays(  # noqa: PLR0911 - one for each source
    settings: PartitionedSettings | CsvSettings,
) -> LabeledArrays:
    if isinstance(settings, CsvSettings):
        from client_app.data.tabular import load_table_arrays

        return load_table_arrays(settings)
    if isinstance(settings, TorchvisionSettings):
        from client_app.data.sources.torchvision import load_torchvision_arrays

        return load_torchvision_arrays(settings)
    if isinstance(settings, NpzSettings):
        from client_app.data.sources.npz import load_npz_arrays

        return load_npz_arrays(settings)
    if isinstance(settings, HfSettings):
        from client_app.data.sources.hf import load_hf_arrays

        return load_hf_arrays(settings)
    if isinstance(settings, ImageFolderSettings):
        from client_app.data.sources.image_folder import load_image_folder_arrays

        return load_image_folder_arrays(settings)
    if isinstance(settings, LeafSettings):
        from client_app.data.sources.leaf import load_leaf_arrays

        return load_leaf_arrays(settings)
    if isinstance(settings, TextSettings):
        from client_app.data.sources.text import load_text_arrays

        return load_text_arrays(settings)
    raise TypeError(f"no source of arrays for {type(settings).__name__}")
