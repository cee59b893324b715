"""Rebuild a run's data from its settings."""

from typing import TYPE_CHECKING

from fedquorum.errors import RunError, SettingsError, to_one_line
from fedquorum.records.reader import Run
from fedquorum.records.safe_files import SafeRunDir
from fedquorum.records.settings import (
    DATA_LOCATION_KEYS,
    find_setting_changes,
    flatten_settings,
    load_settings,
)
from fedquorum.sanitize import sanitize

if TYPE_CHECKING:
    from torch import nn

    from client_app.data import FederatedData
    from conf import Settings

REBUILD_PREFIXES = ("data.", "model.")


def reload_data(run: Run, *, trust: bool = False) -> tuple["FederatedData", "Settings"]:
    """Compose a run's settings again and load its data from where these settings point.

    Parameters
    ----------
    run : Run
    trust : bool
        Whether to import a model that the records name by import path.

    Raises
    ------
    DataError
        If the data is missing.
    RunError
        If data or model settings no longer compose to the recorded ones, or without ``trust``, if
        the records name the model by import path.
    """
    # These take seconds to import, which drawing does not need.
    from client_app.data import load_data
    from conf.compose import check_recorded_overrides, compose_overrides
    from conf.schema.rules import list_imported_code

    try:
        composed = compose_overrides(check_recorded_overrides(run.experiment, run.overrides))
    except SettingsError as error:
        raise RunError(f"{run.directory}/manifest.json: {error}") from None
    settings = composed.settings
    if not trust and "model.path" in list_imported_code(settings):
        raise RunError(f"{run.directory}: the model in model.path is code, which no report imports")
    # Through the text that a run writes, so that the same reader parsed both sides.
    recorded = flatten_settings(load_settings(composed.to_yaml()))
    now = {sanitize(key): value for key, value in recorded.items()}
    for key, recorded_value, value in find_setting_changes(run.settings, now, _is_rebuild_setting):
        raise RunError(
            f"{run.directory}: the settings no longer compose to those of the run: {key} was "
            f"{recorded_value!r}, is {value!r}"
        )
    return load_data(settings.data, settings.seed), settings


def load_trained_model(run: Run, settings: "Settings", data: "FederatedData") -> "nn.Module":
    """Load a run's model with its last weights; ``reload_data`` gives its settings and data.

    Raises
    ------
    RunError
        If the run has no model, or one that does not fit its settings.
    """
    from safetensors.torch import load

    from client_app.models import build_model_for

    model = build_model_for(settings, data, pretrained=False)
    try:
        with SafeRunDir(run.directory).open("model.safetensors") as file:
            model.load_state_dict(load(b"" if file is None else file.read()))
    except Exception as error:  # safetensors and PyTorch raise many types
        text = sanitize(to_one_line(error))
        raise RunError(f"{run.directory}/model.safetensors: cannot be read: {text}") from None
    return model


def _is_rebuild_setting(setting: str) -> bool:
    return setting.startswith(REBUILD_PREFIXES) and setting not in DATA_LOCATION_KEYS
