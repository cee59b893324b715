"""Write checkpoints, from which a run can resume.

``checkpoints/round-000010.safetensors`` holds, after round 10, the model, the strategy's state,
the nodes' states (in process and on Ray's workers), the sums of the run's summary, and as JSON
metadata the settings and the lengths of the records. ``round-000010.sha256`` has its checksum, in
the form that ``sha256sum -c`` reads, and is written last. A checkpoint is usable if both files
exist and agree, and if the records are at least as long as it says, TensorBoard's excepted. It
stores no random states: every stream follows from (seed, purpose, round, client id).
"""

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from ..errors import RunError
from ..io import atomic_write, fsync
from ..rules.equality import is_same
from ..rules.state_arrays import StateArrays
from ..sanitize import sanitize
from .legs import EXTENDABLE_SETTINGS
from .safe_files import TABLE_NAMES, SafeRunDir

NUM_KEPT = 2
"""A checkpoint whose disk damaged it leaves the one before it."""

CHECKPOINTS_DIR = "checkpoints"
_FILE_PATTERN = re.compile(r"round-(\d{6,18})\.safetensors", re.ASCII)
_OPTIONAL_PREFIX = "tensorboard/"  # of the files that a run can do without
_FIRST_KEYS = ("strategy.name", "strategy", "protocol")
_STATE_FIELDS = ("model", "strategy", "summary", "nodes")


@dataclass(frozen=True)
class Checkpoint:
    """A run after a round.

    Parameters
    ----------
    server_round : int
        The last round in it; 0 before the first.
    model : mapping
        The model's arrays, in the order of its ``state_dict``.
    strategy, summary : mapping
        The states of the strategy and of the run's summary (``RunWriter.get_summary_state``).
    nodes : mapping
        The nodes' states, if the run started the nodes itself; otherwise empty.
    records : mapping
        The lengths of the records: bytes of a file below the run's directory, rows of a table.
    settings : mapping
        All settings by dotted key, as JSON values.
    data : mapping
        The fingerprint of the data, see ``records.data_fingerprint``; empty if it is unknown.
    """

    server_round: int
    model: StateArrays
    strategy: StateArrays
    summary: StateArrays
    nodes: StateArrays
    records: Mapping[str, int]
    settings: Mapping[str, Any]
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class CheckpointSearch:
    """The newest usable checkpoint, if any, and the problems of newer ones."""

    checkpoint: Checkpoint | None
    problems: tuple[str, ...]


class CheckpointStore:
    """The checkpoints of one run; it retains the last two.

    Parameters
    ----------
    run : Path
        The run's directory.
    """

    def __init__(self, run: Path) -> None:
        self._run = run
        self._folder = run / CHECKPOINTS_DIR

    def save(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint durably, and remove those before the last two.

        Raises
        ------
        RunError
            If it cannot be written; earlier checkpoints are then unchanged.
        """
        path = self._get_path(checkpoint.server_round)
        metadata = {
            "round": checkpoint.server_round,
            "model": list(checkpoint.model),
            "records": dict(checkpoint.records),
            "settings": dict(checkpoint.settings),
            "data": dict(checkpoint.data),
        }
        tensors = {
            f"{field}/{name}": np.ascontiguousarray(array).reshape(array.shape)
            for field in _STATE_FIELDS
            for name, array in getattr(checkpoint, field).items()
        }
        try:
            if not self._folder.is_dir():
                self._folder.mkdir()
                fsync(self._run)
        except OSError as error:
            raise RunError(f"{self._folder} cannot be made: {error.strerror}") from None
        with atomic_write(path, durable=True) as partial:
            save_arrays(tensors, partial, {"checkpoint": json.dumps(metadata)})
            digest = _compute_sha256(partial)
        with atomic_write(path.with_suffix(".sha256"), durable=True) as partial:
            partial.write_text(f"{digest}  {path.name}\n")
        for earlier in self._list_rounds()[NUM_KEPT:]:
            self._remove(earlier)

    def find_newest(self) -> CheckpointSearch:
        """Return the newest checkpoint with a correct checksum and complete records.

        Raises
        ------
        RunError
            If there are checkpoints but none is usable. One that a process was writing when it was
            stopped does not count.
        """
        problems: list[str] = []
        damaged = False
        for server_round in self._list_rounds():
            try:
                return CheckpointSearch(self._load(server_round), tuple(problems))
            except _CorruptCheckpointError as error:
                problems.append(str(error))
                damaged = damaged or not isinstance(error, _UnfinishedCheckpointError)
        if damaged:
            raise RunError(f"no checkpoint of {self._run} can be used: {'; '.join(problems)}")
        return CheckpointSearch(None, tuple(problems))

    def build_initial(self) -> Checkpoint:
        """Return the empty start of a run without a checkpoint.

        Raises
        ------
        RunError
            If the run has rounds.
        """
        # A run has a checkpoint before its first round; without one it was killed before that.
        rounds = self._run / "rounds.jsonl"
        if rounds.exists() and rounds.stat().st_size > 0:
            raise RunError(f"resume needs a checkpoint, and the run in {self._run} wrote none")
        return Checkpoint(0, {}, {}, {}, {}, {}, {})

    def list_files(self) -> list[str]:
        """Return the names of the checkpoints' files, the latest first."""
        return [self._get_path(server_round).name for server_round in self._list_rounds()]

    def delete_after(self, server_round: int) -> None:
        """Remove the checkpoints of later rounds, which the resumed run will write again."""
        for later in self._list_rounds():
            if later > server_round:
                self._remove(later)

    def _get_path(self, server_round: int) -> Path:
        return self._folder / f"round-{server_round:06d}.safetensors"

    def _list_rounds(self) -> list[int]:
        """Return the rounds with a checkpoint, latest first."""
        if self._folder.is_symlink():
            raise RunError(f"{self._folder} must be a folder of the run, got a link")
        files = self._folder.iterdir() if self._folder.is_dir() else ()
        found = (_FILE_PATTERN.fullmatch(file.name) for file in files)
        return sorted((int(match[1]) for match in found if match), reverse=True)

    def _remove(self, server_round: int) -> None:
        path = self._get_path(server_round)
        path.with_suffix(".sha256").unlink(missing_ok=True)
        path.unlink(missing_ok=True)

    def _load(self, server_round: int) -> Checkpoint:
        path = self._get_path(server_round)
        self._check_digest(path)
        try:
            with safe_open(path, framework="numpy") as file:
                metadata = json.loads(file.metadata()["checkpoint"])
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
            checkpoint = _build_checkpoint(server_round, metadata, tensors)
            missing = [*self._find_missing_records(checkpoint.records)]
        except _CorruptCheckpointError as error:
            raise _CorruptCheckpointError(f"{path.name} {error}") from None
        except _READ_ERRORS as error:
            raise _CorruptCheckpointError(
                f"{path.name} cannot be read ({sanitize(error)})"
            ) from None
        for length in missing:
            raise _CorruptCheckpointError(f"{path.name} goes with {length}, there are less")
        return checkpoint

    def _find_missing_records(self, records: Mapping[str, int]) -> Iterator[str]:
        """Yield files shorter than the checkpoint recorded; such a checkpoint is unusable."""
        from .parquet import count_rows  # here: reading a manifest must not need Arrow

        run = SafeRunDir(self._run)
        for name, size in records.items():
            if name in TABLE_NAMES:
                if count_rows(run, name) < size:
                    yield f"{size} rows of {name}"
            elif not name.startswith(_OPTIONAL_PREFIX):
                with run.open(*name.split("/")) as file:
                    if file is None or os.fstat(file.fileno()).st_size < size:
                        yield f"{size} bytes of {name}"

    def _check_digest(self, path: Path) -> None:
        """Refuse a checkpoint whose checksum differs, or whose files are not regular files."""
        run = SafeRunDir(self._run)
        try:
            checksum = run.read(CHECKPOINTS_DIR, path.with_suffix(".sha256").name) or b""
            expected = checksum.split()[0]
            with run.open(CHECKPOINTS_DIR, path.name) as file:
                digest = "" if file is None else hashlib.file_digest(file, "sha256").hexdigest()
        except RunError as error:
            raise _CorruptCheckpointError(str(error)) from None
        except (OSError, IndexError):
            raise _UnfinishedCheckpointError(f"{path.name} has no checksum") from None
        if digest.encode() != expected:
            raise _CorruptCheckpointError(
                f"{path.name} is damaged (its SHA-256 is not the one recorded)"
            )


def is_checkpoint(name: str) -> bool:
    """Say whether a file name is that of a checkpoint or of its checksum."""
    return _FILE_PATTERN.fullmatch(re.sub(r"\.sha256$", ".safetensors", name)) is not None


class _CorruptCheckpointError(Exception):
    """Why a checkpoint cannot be used."""


class _UnfinishedCheckpointError(_CorruptCheckpointError):
    """A checkpoint has no checksum, because its writing was interrupted."""


_READ_ERRORS = (
    *(OSError, RunError, SafetensorError, RecursionError),
    *(KeyError, TypeError, ValueError, AttributeError),
)
"""The errors of reading a file that is no checkpoint, or that has other contents."""


def _build_checkpoint(
    server_round: int, metadata: Mapping[str, Any], tensors: StateArrays
) -> Checkpoint:
    """Return the checkpoint of a round from the content of its file."""
    records, settings = dict(metadata["records"]), dict(metadata["settings"])
    if metadata["round"] != server_round:
        raise _CorruptCheckpointError(f"is of round {metadata['round']!r}")
    if not all(isinstance(size, int) for size in records.values()):
        raise _CorruptCheckpointError("has files whose lengths are no whole numbers")
    keys = (key.partition("/") for key in tensors)
    arrays: dict[str, dict[str, NDArray[Any]]] = {name: {} for name in _STATE_FIELDS}
    for group, slash, name in keys:
        arrays[group][name] = tensors[f"{group}{slash}{name}"]
    model = {name: arrays["model"][name] for name in metadata["model"]}
    return Checkpoint(
        server_round,
        model,
        arrays["strategy"],
        arrays["summary"],
        arrays["nodes"],
        records,
        settings,
        dict(metadata.get("data", {})),
    )


def save_arrays(
    arrays: Mapping[str, NDArray[Any]], path: Path, metadata: dict[str, str] | None = None
) -> None:
    """Write arrays to a safetensors file, with the permissions of any other new file.

    Raises
    ------
    OSError
        If it cannot be written, for safetensors has its own error for a full disk.
    """
    path.touch()
    mode = stat.S_IMODE(path.stat().st_mode)
    try:
        save_file(dict(arrays), path, metadata)
        path.chmod(mode)  # safetensors replaces the file by one that only its owner may read
    except SafetensorError as error:
        raise OSError(str(error)) from None


def _compute_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# --- resuming --------------------------------------------------------------------------------


def check_unchanged(
    before: Mapping[str, Any],
    settings: Mapping[str, Any],
    *,
    changeable_prefixes: tuple[str, ...] = (),
) -> None:
    """Refuse settings that a resume may not change; the number of rounds may grow.

    Parameters
    ----------
    before, settings : mapping
        By dotted key, as ``flatten_settings`` returns them.
    changeable_prefixes : tuple of str
        The prefixes of the keys that may change.

    Raises
    ------
    RunError
        For the first setting that changed; the message names it and both values.
    """
    for key in sorted(before.keys() | settings.keys(), key=_rank_key):
        old, new = before.get(key), settings.get(key)
        if key in EXTENDABLE_SETTINGS and isinstance(old, int) and isinstance(new, int):
            if new < old:
                raise RunError(f"{key} must be at least {old}, as in the run so far, got {new}")
        elif not is_same(old, new) and not key.startswith(changeable_prefixes):
            typed = key.removesuffix(".name")  # an option is chosen by its group: strategy=fedau
            raise RunError(
                f"{typed} must be {_format_value(old)}, as in the run so far, "
                f"got {_format_value(new)}"
            )


def _rank_key(key: str) -> tuple[int, bool, str]:
    """Order the settings that decide which others exist before these, such as ``model.name``."""
    rank = _FIRST_KEYS.index(key) if key in _FIRST_KEYS else len(_FIRST_KEYS)
    return rank, not key.endswith(".name"), key


def _format_value(value: Any) -> str:
    return "null" if value is None else sanitize(value)
