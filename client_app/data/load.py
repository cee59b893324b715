"""From settings to data, once per process."""

from collections.abc import Callable
from typing import Any

from client_app.data.base import FederatedData
from conf.schema import DataSettings, FashionMnistSettings, SynthSettings


def load_data(settings: DataSettings, seed: int) -> FederatedData:
    """Return the data set of the settings; the last one asked for is kept.

    Runs that differ only in other settings, as in a sweep, share it.

    Raises
    ------
    DataError
        If the data is not where the settings say.
    SettingsError
        If the settings ask for more than the data holds.
    """
    key = (repr(settings), seed)
    if key not in _last:
        data = _loader(settings)(settings, seed)
        _last.clear()
        _last[key] = data
    return _last[key]


_last: dict[tuple[str, int], FederatedData] = {}


def _loader(settings: DataSettings) -> Callable[[Any, int], FederatedData]:
    # Imported when asked for: torchvision and flwr-datasets take seconds to load.
    if isinstance(settings, SynthSettings):
        from client_app.data.synth import Synth

        return Synth
    if isinstance(settings, FashionMnistSettings):
        from client_app.data.fashion_mnist import FashionMnist

        return FashionMnist
    raise TypeError(f"no data set for {type(settings).__name__}")
