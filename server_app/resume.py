"""Resume a run for ``resume=DIR``: its words, and the settings that may change.

The directory may be from anybody. What its records name is composed, but code is not imported and
no other machine is connected to unless the command line says so itself.

Every command line passes here, so what reads records is imported when a run is resumed.
"""

import re
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedquorum.errors import RunError, SettingsError
from fedquorum.records.legs import CHANGEABLE_PREFIXES
from fedquorum.records.settings import flatten_settings, mask_passwords
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

if TYPE_CHECKING:
    from fedquorum.records.checkpoint import Checkpoint

_RUN_GROUPS = {"experiment", *GROUPS, *PARTS} - {"engine", "tracker"}
"""The words that say what is run, and not where."""

_REMOTE_ADDRESS = re.compile(r"://|:\d+$")
"""What the address of another machine has, and the path of a file has not."""

_DEADLINE_KEYS = (
    "engine.quorum",
    "engine.quorum_clients",
    "engine.grace_seconds",
    "engine.round_timeout",
)
"""What tells who is in time, which a virtual clock makes part of the result."""


def merge_resumed_overrides(overrides: Sequence[str]) -> tuple[str, ...]:
    """Return the words of a command line, with those of the run that ``resume=DIR`` names.

    What is said again wins over what was said then, and is compared with it later. Without
    ``resume`` the words are returned as they are.

    Where DIR is a folder without a run, nothing was done yet: the words say what starts in it, or,
    where they choose no option, those of the settings that a killed start left there.

    Raises
    ------
    RunError
        If there is no folder DIR, if nothing says what is to start in it, or in a sweep.
    SettingsError
        If the run's records name what only ``engine.trust_code=true`` takes from them.
    """
    given = [word for word in overrides if word.startswith("resume=")]
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
    again = {_get_key(word) for word in overrides}
    before = _read_previous_overrides(run, again)
    place = quote(str(run))
    together = (
        *(word for word in before if _get_key(word) not in again),
        *(word for word in overrides if not word.startswith("resume=")),
        f"resume={place}",
        f"hydra.run.dir={place}",
    )
    if not _has_trust_override(overrides):
        _check_trusted(together, again, run)
    return together


def _read_previous_overrides(run: Path, given_keys: set[str]) -> tuple[str, ...]:
    """Return the words of the run in a folder, or of the one that starts in it."""
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
        command = shlex.join(["fedquorum", "data=...", "strategy=...", f"resume={run}"])
        raise RunError(
            f"resume must be with the settings of the run where nothing was done yet, got only "
            f"{run}: type them again ({command})"
        )
    return ()


def _parse_directory(override: str) -> str:
    """Return the value of ``resume``, which need not be quoted as others whatever it contains."""
    value = override.partition("=")[2]
    return str(parse_override(override).value()) if value.startswith(("'", '"')) else value


def _has_trust_override(overrides: Sequence[str]) -> bool:
    given = [word for word in overrides if _get_key(word) == "engine.trust_code"]
    return bool(given) and parse_override(given[-1]).value() is True


def _check_trusted(overrides: Sequence[str], given_keys: set[str], run: Path) -> None:
    """Refuse what only the records name, and what would run code or connect elsewhere."""
    composed = compose_overrides(tuple(word for word in overrides if not word.startswith("-")))
    for key, value in find_external_settings(composed.settings).items():
        if key not in given_keys:
            command = shlex.join(["fedquorum", f"resume={run}", "engine.trust_code=true"])
            raise SettingsError(
                f"{key} must be given again to resume a run whose records alone name it (it runs "
                f"code, or connects to another machine), got {mask_passwords(sanitize(value))}; if "
                f"you trust whoever wrote {run}: {command}"
            )


def find_external_settings(settings: Settings) -> dict[str, str]:
    """Return the settings that import code or connect to a machine of their choice, by key."""
    places = {
        "engine.address": settings.engine.address,
        "tracker.uri": getattr(settings.tracker, "uri", None),
    }
    elsewhere = {
        key: place for key, place in places.items() if place and _REMOTE_ADDRESS.search(place)
    }
    return {**list_imported_code(settings), **elsewhere}


def read_resumed_manifest(run: Path) -> dict[str, Any]:
    """Return the manifest of the run that ``resume`` names.

    Raises
    ------
    RunError
        If there is none.
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

    With engine=flower the models that clients keep are lost with the run.
    """
    return settings.engine.name != "flower" or not rules_from_settings(settings).trains_local_models


def check_resumable(checkpoint: "Checkpoint", settings: Settings) -> None:
    """Compare the settings with those of the run that ``resume`` names.

    Raises
    ------
    SettingsError
        For the first setting that is another one.
    """
    from fedquorum.records.checkpoint import check_unchanged

    now = flatten_settings(asdict(settings))
    free: tuple[str, ...] = CHANGEABLE_PREFIXES
    if settings.response_time.name != "none":
        free = tuple(
            key for key in now if key.startswith(CHANGEABLE_PREFIXES) and key not in _DEADLINE_KEYS
        )
    try:
        check_unchanged(checkpoint.settings, now, changeable_prefixes=free)
    except RunError as error:
        raise SettingsError(f"{error} (resume={settings.resume})") from None


def _get_key(override: str) -> str:
    return override.lstrip("+~").partition("=")[0]
