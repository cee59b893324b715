"""The data that a run was made on, made again from its settings."""

from typing import TYPE_CHECKING

from fedquorum.errors import RunError, SettingsError, to_one_line
from fedquorum.records.reader import Run
from fedquorum.records.safe_files import SafeRunDir
from fedquorum.records.settings import find_setting_changes, flatten_settings, load_settings
from fedquorum.sanitize import sanitize

if TYPE_CHECKING:
    from torch import nn

    from client_app.data import FederatedData
    from conf import Settings

REBUILD_PREFIXES = ("data.", "model.")
DATA_LOCATION_KEYS = ("data.root", "data.path", "data.download")


def reload_data(run: Run, *, trust: bool = False) -> tuple["FederatedData", "Settings"]:
    """Return a run's data and settings, composed again; files are where the settings say now.

    Parameters
    ----------
    run : Run
        The run.
    trust : bool
        Whether a model that the records name by import path may be imported.

    Raises
    ------
    DataError
        If the data is not here.
    RunError
        If data or model settings no longer compose to what they were, or the model is code that
        the records name, and they are not trusted: a report does not import it.
    """
    # These take seconds to import: not for those who only draw.
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
    # By way of the text that a run writes, so that both sides were read by the same reader.
    recorded = flatten_settings(load_settings(composed.to_yaml()))
    now = {sanitize(key): value for key, value in recorded.items()}
    for key, was, value in find_setting_changes(run.settings, now, _is_rebuild_setting):
        raise RunError(
            f"{run.directory}: the settings no longer compose to those of the run: {key} was "
            f"{was!r}, is {value!r}"
        )
    return load_data(settings.data, settings.seed), settings


def load_trained_model(run: Run, settings: "Settings", data: "FederatedData") -> "nn.Module":
    """Return a run's model with its last weights; settings and data are those of ``reload_data``.

    Raises
    ------
    RunError
        If the run has no model, or another one than its settings.
    """
    from safetensors.torch import load

    from client_app.models import build_model_for

    model = build_model_for(settings, data, pretrained=False)
    try:
        with SafeRunDir(run.directory).open("model.safetensors") as file:
            model.load_state_dict(load(b"" if file is None else file.read()))
    except Exception as error:  # safetensors and PyTorch raise what they please
        text = sanitize(to_one_line(error))
        raise RunError(f"{run.directory}/model.safetensors: cannot be read: {text}") from None
    return model


def _is_rebuild_setting(setting: str) -> bool:
    return setting.startswith(REBUILD_PREFIXES) and setting not in DATA_LOCATION_KEYS
