"""Checkpoints: all that a run needs to go on, written while it runs.

``checkpoints/round-000010.safetensors`` holds, after round 10, the model, the strategy's state,
the nodes' own (in process and on Ray's workers), the sums of the run's summary, and as metadata
(JSON) the settings and how far the records were. ``round-000010.sha256`` has its checksum, in the
form that ``sha256sum -c`` reads, and is written last: a checkpoint counts when both are there and
agree.
Nothing about random numbers has to be kept: every stream follows from (seed, purpose, round,
client id).
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from ..errors import RunError, one_line
from ..state import StateArrays
from .files import replacing
from .settings import upgraded

FORMAT = 1
KEPT = 2
FOLDER = "checkpoints"
_NAME = re.compile(r"round-(\d+)\.safetensors")


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
        What the nodes keep, where the run started them itself; empty otherwise.
    records : mapping
        The records' files below the run's directory, and how long each was, in bytes.
    settings : mapping
        All settings by dotted key, as JSON has them.
    """

    server_round: int
    model: StateArrays
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


def check_unchanged(
    before: Mapping[str, Any], settings: Mapping[str, Any], *, free: tuple[str, ...] = ()
) -> None:
    """Compare the settings of a run with those with which it is to go on.

    ``rounds`` may grow. Settings of an older version are compared as this version has them.

    Parameters
    ----------
    before, settings : mapping
        By dotted key, as ``flat_settings`` returns them.
    free : tuple of str
        What the keys begin with that may change.

    Raises
    ------
    RunError
        For the first setting that is another one; the message names it and both values.
    """
    then, now = upgraded(before), upgraded(settings)
    for key in sorted(then.keys() | now.keys()):
        old, new = then.get(key), now.get(key)
        if key == "rounds":
            if int(new or 0) < int(old or 0):
                raise RunError(f"rounds must be at least {old}, as in the run so far, got {new}")
        elif old != new and not key.startswith(free):
            raise RunError(f"{key} must be {_shown(old)}, as in the run so far, got {_shown(new)}")


def _shown(value: Any) -> str:
    return "null" if value is None else str(value)


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
        raise RunError(f"{run}/manifest.json cannot be read: {one_line(error)}") from None
    return manifest
