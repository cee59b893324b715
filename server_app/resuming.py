"""``resume=DIR``: the words of the run that goes on, and what may have changed since."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedquorum.errors import RunError, SettingsError
from fedquorum.records.checkpoint import Checkpoint, check_unchanged
from fedquorum.records.reader import read_manifest
from fedquorum.records.settings import flat_settings, upgraded_words

from conf import Settings

_MAY_CHANGE = ("engine.", "tracker.", "resume", "client.keep_memory")
"""Where a run runs, and who is told of it."""

_ADDED = ("client.threads", "client.deterministic")
"""Settings that older runs lack. What they decide is part of the arithmetic, which is compared."""

_TELLS_TIME = ("engine.quorum", "engine.quorum_of", "engine.grace", "engine.round_timeout")
"""What tells who is in time, which a virtual clock makes part of the result."""


def resumed_words(words: Sequence[str]) -> tuple[str, ...]:
    """Return the words of a command line, with those of the run that ``resume=DIR`` names.

    What is said again wins over what was said then, and is compared with it later. Without
    ``resume`` the words are returned as they are.

    Raises
    ------
    RunError
        If there is no run in DIR, or in a sweep.
    """
    given = [word for word in words if word.startswith("resume=")]
    value = given[-1].partition("=")[2].strip("'\"") if given else ""
    if value in ("", "null"):
        return tuple(words)
    if {"-m", "--multirun"}.intersection(words):
        raise RunError(f"resume goes on with one run, not in a sweep (-m), got {value}")
    run = Path(value).expanduser().absolute()
    manifest = resumed_manifest(run)
    again = {_key(word) for word in words}
    before = [f"experiment={manifest['experiment']}", *upgraded_words(manifest["overrides"])]
    quoted = quoted_path(run)
    return (
        *(word for word in before if _key(word) not in again),
        *(word for word in words if not word.startswith("resume=")),
        f"resume={quoted}",
        f"hydra.run.dir={quoted}",
    )


def resumed_manifest(run: Path) -> dict[str, Any]:
    """Return the manifest of the run that ``resume`` names.

    Raises
    ------
    RunError
        If there is none.
    """
    try:
        return read_manifest(run)
    except RunError as error:
        raise RunError(f"resume must be the directory of a run, got {run} ({error})") from None


def check_resumable(checkpoint: Checkpoint, settings: Settings) -> None:
    """Compare the settings with those of the run that ``resume`` names.

    Raises
    ------
    SettingsError
        For the first setting that is another one.
    """
    now = flat_settings(asdict(settings))
    added = {"response_time.name": "none", **{key: now[key] for key in _ADDED}}
    free: tuple[str, ...] = _MAY_CHANGE
    if settings.response_time.name != "none":
        free = tuple(key for key in now if key.startswith(_MAY_CHANGE) and key not in _TELLS_TIME)
    try:
        check_unchanged({**added, **checkpoint.settings}, now, free=free)
    except RunError as error:
        raise SettingsError(f"{error} (resume={settings.resume})") from None


def quoted_path(path: Path) -> str:
    """Return a path as the value of a Hydra override."""
    return "'" + str(path).replace("\\", "\\\\").replace("'", "\\'") + "'"


def _key(word: str) -> str:
    return word.lstrip("+~").partition("=")[0]
