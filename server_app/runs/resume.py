"""Resume a run with ``resume=DIR``: merge its overrides, and check which settings change.

The directory may come from an untrusted source. The settings in its records are composed, but code
is imported and another machine is connected to only if the command line itself names them.

Every command line passes through this module. The modules that read records are therefore imported
only when a run is resumed.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedquorum.errors import RunError, SettingsError
from fedquorum.records.legs import CHANGEABLE_PREFIXES
from fedquorum.records.settings import DATA_LOCATION_KEYS, flatten_settings, mask_passwords
from fedquorum.sanitize import sanitize

from conf import Settings
from conf.compose import (
    check_recorded_overrides,
    compose_overrides,
    parse_override,
    quote,
    settings_from_yaml,
)
from conf.options import GROUPS, PARTS
from conf.overrides import export_overrides
from conf.schema.rules import list_imported_code, rules_from_settings
from server_app.runs.next_commands import TRUST_OVERRIDE, format_command

if TYPE_CHECKING:
    from fedquorum.records.checkpoint import Checkpoint

_RUN_GROUPS = {"experiment", *GROUPS, *PARTS} - {"engine", "tracker"}
"""The groups of settings that define what is run, not where."""

_REMOTE_ADDRESS = re.compile(r"://|:\d+$")
"""Matches the address of another machine, but no file path."""

_DEADLINE_KEYS = (
    "engine.quorum",
    "engine.quorum_clients",
    "engine.grace_seconds",
    "engine.round_timeout",
)
"""The settings that decide which replies are in time: they change the result of a virtual clock."""

_LATE_KEYS = (
    "engine.late_replies",
    "engine.staleness_exponent",
    "engine.max_staleness",
    "engine.concurrency",
)
"""The settings that decide how late replies count, by any clock."""


def merge_resumed_overrides(overrides: Sequence[str]) -> tuple[str, ...]:
    """Merge a command line's overrides with those of the run that ``resume=DIR`` names.

    Overrides given again replace the recorded ones, and are compared with them later. Without
    ``resume`` the overrides are returned unchanged.

    If DIR is a folder without a run, the run starts there with the overrides given. If these choose
    no option, it starts with the settings that a killed start left in DIR.

    Raises
    ------
    RunError
        If there is no folder DIR, if no settings say what to start in it, or in a sweep.
    SettingsError
        If only the run's records name code or another machine, without ``engine.trust_code=true``.
    """
    given = [override for override in overrides if override.startswith("resume=")]
    value = _parse_directory(given[-1]) if given else "null"
    if value == "null":
        return tuple(overrides)
    if not value:
        raise RunError("resume must be the folder of a run, got nothing (type resume=FOLDER)")
    if {"-m", "--multirun"}.intersection(overrides):
        raise RunError(
            f"resume must be without -m, got {value}: to continue a sweep, type its command again "
            "with hydra.sweep.dir=FOLDER"
        )
    run = Path(value).expanduser().absolute()
    given_keys = {_get_key(override) for override in overrides}
    previous = _read_previous_overrides(run, given_keys)
    folder = quote(str(run))
    merged = (
        *(override for override in previous if _get_key(override) not in given_keys),
        *(override for override in overrides if not override.startswith("resume=")),
        f"resume={folder}",
        f"hydra.run.dir={folder}",
    )
    if not _has_trust_override(overrides):
        _check_trusted(merged, given_keys, run)
    return merged


def _read_previous_overrides(run: Path, given_keys: set[str]) -> tuple[str, ...]:
    """Return the overrides of the run in a folder, or of the run that starts in it."""
    from fedquorum.records.run_dir import can_start_run
    from fedquorum.records.safe_files import SafeRunDir

    if not can_start_run(run):
        manifest = read_resumed_manifest(run)
        return check_recorded_overrides(manifest["experiment"], manifest["overrides"])
    if given_keys & _RUN_GROUPS:
        return ()
    left = SafeRunDir(run).read("config.yaml")
    if left is not None:
        return export_overrides(settings_from_yaml(left.decode(errors="replace")))
    if all(
        key.startswith(("-", "hydra.", "engine", "tracker", *CHANGEABLE_PREFIXES))
        for key in given_keys
    ):
        command = format_command("data=...", "strategy=...", f"resume={run}")
        raise RunError(
            f"resume must be with the settings of the run where nothing was done yet, got only "
            f"{run}: type them again ({command})"
        )
    return ()


def _parse_directory(override: str) -> str:
    """Return the value of ``resume``; unlike other values, it needs no quotes."""
    value = override.partition("=")[2]
    return str(parse_override(override).value()) if value.startswith(("'", '"')) else value


def _has_trust_override(overrides: Sequence[str]) -> bool:
    given = [override for override in overrides if _get_key(override) == "engine.trust_code"]
    return bool(given) and parse_override(given[-1]).value() is True


def _check_trusted(overrides: Sequence[str], given_keys: set[str], run: Path) -> None:
    """Refuse settings from the records alone that would run code or connect elsewhere."""
    composed = compose_overrides(tuple(item for item in overrides if not item.startswith("-")))
    for key, value in find_external_settings(composed.settings).items():
        if key not in given_keys:
            command = format_command(f"resume={run}", TRUST_OVERRIDE)
            raise SettingsError(
                f"{key} must be given again to resume a run whose records alone name it (it runs "
                f"code, or connects to another machine), got {mask_passwords(sanitize(value))}; if "
                f"you trust whoever wrote {run}: {command}"
            )


def find_external_settings(settings: Settings) -> dict[str, str]:
    """Return the settings that import code or connect to another machine, by key."""
    addresses = {
        "engine.address": settings.engine.address,
        "tracker.uri": getattr(settings.tracker, "uri", None),
    }
    remote = {
        key: address
        for key, address in addresses.items()
        if address and _REMOTE_ADDRESS.search(address)
    }
    return {**list_imported_code(settings), **remote}


def list_trust_overrides(settings: Settings) -> tuple[str, ...]:
    """Return the words that a command needs to resume a run with these settings from records."""
    return (TRUST_OVERRIDE,) if find_external_settings(settings) else ()


def read_resumed_manifest(run: Path) -> dict[str, Any]:
    """Return the manifest of the run that ``resume`` names.

    Raises
    ------
    RunError
        If the folder has no manifest, or a damaged one.
    """
    from fedquorum.records.reader import explain_not_a_run, read_manifest

    try:
        return read_manifest(run)
    except RunError as error:
        raise RunError(
            f"resume must be the folder of a run, got {explain_not_a_run(run, error)}"
        ) from None


def can_resume(settings: Settings) -> bool:
    """Say whether a run with these settings can resume from its checkpoints.

    With engine=flower the models that clients store are lost with the run.
    """
    return settings.engine.name != "flower" or not rules_from_settings(settings).trains_local_models


def check_resumable(
    checkpoint: "Checkpoint", settings: Settings, fingerprint: Mapping[str, Any]
) -> None:
    """Compare the settings with those of the run that ``resume`` names.

    Parameters
    ----------
    checkpoint : Checkpoint
    settings : Settings
    fingerprint : mapping
        That of the data so far. Data with one may be in another place, because the resume compares
        what it is.

    Raises
    ------
    SettingsError
        For the first setting that has changed and must not.
    """
    from fedquorum.records.checkpoint import check_unchanged

    current = flatten_settings(asdict(settings))
    fixed: tuple[str, ...] = _LATE_KEYS
    if settings.response_time.name != "none":
        fixed += _DEADLINE_KEYS
    changeable = tuple(
        key
        for key in {**checkpoint.settings, **current}
        if key.startswith(CHANGEABLE_PREFIXES) and key not in fixed
    )
    changeable += list_changeable_locations(fingerprint)
    try:
        check_unchanged(checkpoint.settings, current, changeable_prefixes=changeable)
    except RunError as error:
        raise SettingsError(f"{error} (resume={settings.resume})") from None


def list_changeable_locations(fingerprint: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the settings of the data's place that may change, by the data's fingerprint."""
    from fedquorum.records.data_fingerprint import is_published

    if not fingerprint:
        return ()
    # The path of published data is its name.
    return tuple(
        key for key in DATA_LOCATION_KEYS if key != "data.path" or not is_published(fingerprint)
    )


def _get_key(override: str) -> str:
    return override.lstrip("+~").partition("=")[0]
