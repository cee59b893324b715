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
from fedquorum.intake import shown
from fedquorum.records.legs import MAY_CHANGE
from fedquorum.records.settings import flat_settings, masked

from conf import Settings
from conf.compose import compose_words, parse_word, quoted, recorded_words, settings_of
from conf.options import GROUPS, PARTS
from conf.schema.rules import named_code, rules_of
from conf.words import words_of_settings

if TYPE_CHECKING:
    from fedquorum.records.checkpoint import Checkpoint

_OPTIONS = {"experiment", *GROUPS, *PARTS} - {"engine", "tracker"}
"""The words that say what is run, and not where."""

_ELSEWHERE = re.compile(r"://|:\d+$")
"""What the address of another machine has, and the path of a file has not."""

_TELLS_TIME = (
    "engine.quorum",
    "engine.quorum_clients",
    "engine.grace_seconds",
    "engine.round_timeout",
)
"""What tells who is in time, which a virtual clock makes part of the result."""


def resumed_words(words: Sequence[str]) -> tuple[str, ...]:
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
    given = [word for word in words if word.startswith("resume=")]
    value = _directory_in(given[-1]) if given else "null"
    if value == "null":
        return tuple(words)
    if not value:
        raise RunError("resume must be the folder of a run, got nothing (type resume=FOLDER)")
    if {"-m", "--multirun"}.intersection(words):
        raise RunError(
            f"resume must be without -m, got {value}: to continue a sweep, type its command again "
            "with hydra.sweep.dir=FOLDER"
        )
    run = Path(value).expanduser().absolute()
    again = {_key(word) for word in words}
    before = _words_before(run, again)
    place = quoted(str(run))
    together = (
        *(word for word in before if _key(word) not in again),
        *(word for word in words if not word.startswith("resume=")),
        f"resume={place}",
        f"hydra.run.dir={place}",
    )
    if not _says_trust(words):
        _check_trusted(together, again, run)
    return together


def _words_before(run: Path, again: set[str]) -> tuple[str, ...]:
    """Return the words of the run in a folder, or of the one that starts in it."""
    from fedquorum.records.directory import may_start
    from fedquorum.records.folder import RunFolder

    if not may_start(run):
        manifest = resumed_manifest(run)
        return recorded_words(manifest["experiment"], manifest["overrides"])
    if again & _OPTIONS:
        return ()
    left = RunFolder(run).content("config.yaml")
    if left is not None:
        return words_of_settings(settings_of(left.decode(errors="replace")))
    if all(key.startswith(("-", "hydra.", "engine", "tracker", *MAY_CHANGE)) for key in again):
        command = shlex.join(["fedquorum", "data=...", "strategy=...", f"resume={run}"])
        raise RunError(
            f"resume must be with the settings of the run where nothing was done yet, got only "
            f"{run}: type them again ({command})"
        )
    return ()


def _directory_in(word: str) -> str:
    """Return the value of ``resume``, which need not be quoted as others whatever it contains."""
    value = word.partition("=")[2]
    return str(parse_word(word).value()) if value.startswith(("'", '"')) else value


def _says_trust(words: Sequence[str]) -> bool:
    given = [word for word in words if _key(word) == "engine.trust_code"]
    return bool(given) and parse_word(given[-1]).value() is True


def _check_trusted(words: Sequence[str], again: set[str], run: Path) -> None:
    """Refuse what only the records name, and what would run code or connect elsewhere."""
    composed = compose_words(tuple(word for word in words if not word.startswith("-")))
    for key, value in reaching(composed.settings).items():
        if key not in again:
            command = shlex.join(["fedquorum", f"resume={run}", "engine.trust_code=true"])
            raise SettingsError(
                f"{key} must be given again to resume a run whose records alone name it (it runs "
                f"code, or connects to another machine), got {masked(shown(value))}; if "
                f"you trust whoever wrote {run}: {command}"
            )


def reaching(settings: Settings) -> dict[str, str]:
    """Return the settings that import code or connect to a machine of their choice, by key."""
    places = {
        "engine.address": settings.engine.address,
        "tracker.uri": getattr(settings.tracker, "uri", None),
    }
    elsewhere = {key: place for key, place in places.items() if place and _ELSEWHERE.search(place)}
    return {**named_code(settings), **elsewhere}


def resumed_manifest(run: Path) -> dict[str, Any]:
    """Return the manifest of the run that ``resume`` names.

    Raises
    ------
    RunError
        If there is none.
    """
    from fedquorum.records.reader import no_run, read_manifest

    try:
        return read_manifest(run)
    except RunError as error:
        raise RunError(f"resume must be the folder of a run, got {no_run(run, error)}") from None


def can_be_resumed(settings: Settings) -> bool:
    """Say whether a run with these settings can resume from its checkpoints.

    With engine=flower the models that clients keep are lost with the run.
    """
    return settings.engine.name != "flower" or not rules_of(settings).keeps_models


def check_resumable(checkpoint: "Checkpoint", settings: Settings) -> None:
    """Compare the settings with those of the run that ``resume`` names.

    Raises
    ------
    SettingsError
        For the first setting that is another one.
    """
    from fedquorum.records.checkpoint import check_unchanged

    now = flat_settings(asdict(settings))
    free: tuple[str, ...] = MAY_CHANGE
    if settings.response_time.name != "none":
        free = tuple(key for key in now if key.startswith(MAY_CHANGE) and key not in _TELLS_TIME)
    try:
        check_unchanged(checkpoint.settings, now, free=free)
    except RunError as error:
        raise SettingsError(f"{error} (resume={settings.resume})") from None


def _key(word: str) -> str:
    return word.lstrip("+~").partition("=")[0]
