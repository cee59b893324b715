"""Checkpoints: all that a run needs to go on, written while it runs.

``checkpoints/round-000010.safetensors`` holds, after round 10, the model, the strategy's state,
the nodes' own (in process), the sums of the run's summary, and as metadata (JSON) the settings
and how far the records were. ``round-000010.sha256`` has its checksum, in the form that
``sha256sum -c`` reads, and is written last: a checkpoint counts when both are there and agree.
Nothing about random numbers has to be kept: every stream follows from (seed, purpose, round,
client id).
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from conf import Settings
from conf.errors import RunError, SettingsError
from server_app.files import replacing
from strategies.codec import NamedArrays
from strategies.state import StateArrays

FORMAT = 1
KEPT = 2
FOLDER = "checkpoints"
_NAME = re.compile(r"round-(\d+)\.safetensors")
_FREE_KEYS = ("engine.", "tracker.", "resume")


@dataclass(frozen=True)
class Checkpoint:
    """A run after a round.

    Parameters
    ----------
    server_round : int
        The last round that is in it; 0 before the first.
    model : mapping
        The model's arrays, in the order of its ``state_dict``.
    strategy, summary : mapping
        What ``ComposedStrategy.state`` and ``RunRecords.summary_state`` returned.
    nodes : mapping
        What ``InProcessGrid.node_states`` returned; empty with other engines.
    records : mapping
        The records' files below the run's directory, and how long each was, in bytes.
    settings : mapping
        All settings by dotted key, as JSON has them.
    """

    server_round: int
    model: NamedArrays
    strategy: StateArrays
    summary: StateArrays
    nodes: StateArrays
    records: Mapping[str, int]
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class Found:
    """The newest checkpoint that can be used, if any, and what is wrong with newer ones."""

    checkpoint: Checkpoint | None
    problems: tuple[str, ...]


class Checkpoints:
    """The checkpoints of one run; the last two are kept.

    Parameters
    ----------
    run : Path
        The run's directory.
    """

    def __init__(self, run: Path) -> None:
        self._run = run
        self._folder = run / FOLDER

    def save(self, checkpoint: Checkpoint) -> None:
        """Write one, on the disk when this returns, and remove those before the last two.

        Raises
        ------
        RunError
            If it cannot be written; those before stay as they were.
        """
        path = self._path(checkpoint.server_round)
        metadata = {
            "format": FORMAT,
            "round": checkpoint.server_round,
            "model": list(checkpoint.model),
            "records": dict(checkpoint.records),
            "settings": dict(checkpoint.settings),
        }
        tensors = {
            f"{part}/{name}": np.ascontiguousarray(array).reshape(array.shape)
            for part in ("model", "strategy", "summary", "nodes")
            for name, array in getattr(checkpoint, part).items()
        }
        try:
            self._folder.mkdir(exist_ok=True)
        except OSError as error:
            raise RunError(f"{self._folder} cannot be made: {error.strerror}") from None
        with replacing(path, synced=True) as part:
            save_file(tensors, part, {"checkpoint": json.dumps(metadata)})
            digest = _sha256(part)
        with replacing(path.with_suffix(".sha256"), synced=True) as part:
            part.write_text(f"{digest}  {path.name}\n")
        for earlier in self._rounds()[KEPT:]:
            self._remove(earlier)

    def newest(self) -> Found:
        """Return the newest checkpoint whose checksum is right and whose records are there.

        Raises
        ------
        RunError
            If there are checkpoints and none can be used.
        """
        problems: list[str] = []
        for server_round in self._rounds():
            try:
                return Found(self._load(server_round), tuple(problems))
            except _DamagedError as error:
                problems.append(str(error))
        if problems:
            raise RunError(f"no checkpoint of {self._run} can be used: {'; '.join(problems)}")
        return Found(None, ())

    def forget_after(self, server_round: int) -> None:
        """Remove the checkpoints of later rounds, which a run that goes on writes again."""
        for later in self._rounds():
            if later > server_round:
                self._remove(later)

    def _path(self, server_round: int) -> Path:
        return self._folder / f"round-{server_round:06d}.safetensors"

    def _rounds(self) -> list[int]:
        """Return the rounds of which there is a checkpoint, latest first."""
        files = self._folder.iterdir() if self._folder.is_dir() else ()
        found = (_NAME.fullmatch(file.name) for file in files)
        return sorted((int(match[1]) for match in found if match), reverse=True)

    def _remove(self, server_round: int) -> None:
        path = self._path(server_round)
        path.with_suffix(".sha256").unlink(missing_ok=True)
        path.unlink(missing_ok=True)

    def _load(self, server_round: int) -> Checkpoint:
        path = self._path(server_round)
        self._check_sum(path)
        try:
            with safe_open(path, framework="numpy") as file:
                metadata = json.loads(file.metadata()["checkpoint"])
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
            raise _DamagedError(f"{path.name} cannot be read ({error})") from None
        if metadata["format"] != FORMAT:
            raise _DamagedError(
                f"{path.name} has format {metadata['format']}, this version reads {FORMAT}"
            )
        for name, size in metadata["records"].items():
            kept = self._run / name
            if not kept.is_file() or kept.stat().st_size < size:
                raise _DamagedError(f"{path.name} goes with {size} bytes of {name}, there are less")

        def part(name: str) -> dict[str, NDArray[Any]]:
            prefix = f"{name}/"
            return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}

        model = part("model")
        return Checkpoint(
            server_round=metadata["round"],
            model={name: model[name] for name in metadata["model"]},
            strategy=part("strategy"),
            summary=part("summary"),
            nodes=part("nodes"),
            records=metadata["records"],
            settings=metadata["settings"],
        )

    @staticmethod
    def _check_sum(path: Path) -> None:
        try:
            expected = path.with_suffix(".sha256").read_text().split()[0]
            found = _sha256(path)
        except (OSError, ValueError, IndexError):
            raise _DamagedError(f"{path.name} has no checksum") from None
        if found != expected:
            raise _DamagedError(f"{path.name} is damaged (its SHA-256 is not the one recorded)")


class _DamagedError(Exception):
    """Why a checkpoint cannot be used."""


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# --- going on --------------------------------------------------------------------------------


def flat_settings(settings: Settings) -> dict[str, Any]:
    """Return all settings by dotted key, as JSON has them."""

    def flat(node: Any, prefix: str) -> dict[str, Any]:
        if not isinstance(node, dict) or not node:
            return {prefix: node}
        found: dict[str, Any] = {}
        for key, value in node.items():
            found |= flat(value, f"{prefix}.{key}" if prefix else str(key))
        return found

    return flat(json.loads(json.dumps(asdict(settings))), "")


def check_unchanged(before: Mapping[str, Any], settings: Settings) -> None:
    """Compare the settings of a run with those with which it is to go on.

    What says where it runs (``engine``) and who is told of it (``tracker``) may change, and
    ``rounds`` may grow.

    Raises
    ------
    SettingsError
        For the first setting that is another one; the message names it and both values.
    """
    now = flat_settings(settings)
    for key in sorted(before.keys() | now.keys()):
        old, new = before.get(key), now.get(key)
        if key == "rounds":
            if settings.rounds < int(before["rounds"]):
                raise SettingsError(
                    f"rounds must be at least {old} to go on with resume, got {new}"
                )
        elif old != new and not key.startswith(_FREE_KEYS):
            raise SettingsError(
                f"{key} must be {_shown(old)}, as in the run that resume goes on with, got "
                f"{_shown(new)}"
            )


def _shown(value: Any) -> str:
    return "null" if value is None else str(value)


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
    manifest = read_manifest(run)
    again = {_key(word) for word in words}
    before = [f"experiment={manifest['experiment']}", *manifest["overrides"]]
    quoted = quoted_path(run)
    return (
        *(word for word in before if _key(word) not in again),
        *(word for word in words if not word.startswith("resume=")),
        f"resume={quoted}",
        f"hydra.run.dir={quoted}",
    )


def quoted_path(path: Path) -> str:
    """Return a path as the value of a Hydra override."""
    return "'" + str(path).replace("\\", "\\\\").replace("'", "\\'") + "'"


def read_manifest(run: Path) -> dict[str, Any]:
    """Return the manifest of the run in a directory.

    Raises
    ------
    RunError
        If there is none.
    """
    try:
        manifest: dict[str, Any] = json.loads((run / "manifest.json").read_text())
    except (OSError, ValueError) as error:
        raise RunError(
            f"resume must be the directory of a run, with its manifest.json, got {run} ({error})"
        ) from None
    return manifest


def _key(word: str) -> str:
    return word.lstrip("+~").partition("=")[0]
