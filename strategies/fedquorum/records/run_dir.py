"""Create, lock, truncate and clear a run's directory."""

import itertools
import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from ..errors import RunError, to_one_line
from ..io import lock_directory
from .checkpoint import CHECKPOINTS_DIR, is_checkpoint
from .safe_files import MANIFEST_FILE, TABLE_NAMES, SafeRunDir, select_table_files

RECORD_NAMES = (
    "config.yaml",
    "manifest.json",
    "population.parquet",
    "rounds.jsonl",
    "clients",
    "evaluations",
    "model.safetensors",
    "model_card.json",
    "tensorboard",
)


RECORD_DIRS = (*TABLE_NAMES, "tensorboard")

_MODEL_FILES = ("model.safetensors", "mean_model.safetensors", "model_card.json")
_RUN_FILES = (MANIFEST_FILE, "rounds.jsonl", "population.parquet", *_MODEL_FILES)
_NESTED_RUN_PATTERNS = tuple("*/" * depth + MANIFEST_FILE for depth in (1, 2, 3))
"""Where runs are in a folder of outputs or of a sweep."""


def list_append_only_files(directory: Path) -> list[Path]:
    """Return the files of a run that grow with its rounds, except those of its tables."""
    found = [directory / "rounds.jsonl", *(directory / "tensorboard").glob("*")]
    return [path for path in found if path.is_file()]


def truncate_records(directory: Path, offsets: Mapping[str, int]) -> None:
    """Restore the records to their state at the call of ``RunWriter.flush_and_get_offsets``.

    The writers of the tables truncate their rows, see ``fedquorum.records.tables``.
    """
    for path in list_append_only_files(directory):
        size = offsets.get(path.relative_to(directory).as_posix())
        if size is None:
            path.unlink()
        elif size < path.stat().st_size:
            os.truncate(path, size)
    folders = ("", "checkpoints/", *(f"{table}/" for table in TABLE_NAMES))
    for folder in folders:
        for partial in directory.glob(f"{folder}.*.part"):
            partial.unlink()


def refuse_links(directory: Path) -> None:
    """Refuse records through which a resumed run would write to files outside its folder.

    Raises
    ------
    RunError
        For the first record that is neither a folder nor a file with a single name, and for any
        link beside the records: a tracker may write there.
    """
    folders = [directory / name for name in (*RECORD_DIRS, CHECKPOINTS_DIR)]
    for path in directory.iterdir():
        if path.is_symlink() or (path in folders and not path.is_dir()):
            raise _foreign_file_error(path)
    inside = [path for folder in folders for path in folder.glob("*")]
    for path in (*(directory / name for name in RECORD_NAMES), *inside):
        if path in folders or not os.path.lexists(path):
            continue
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
            raise _foreign_file_error(path)


def _foreign_file_error(path: Path) -> RunError:
    return RunError(
        f"{path} must be a file or folder of the run, got a link or something else; a resumed run "
        "writes to no other place"
    )


def lock_run(directory: Path) -> int:
    """Lock a run, so that no other process resumes it while this process lives."""
    descriptor = lock_directory(directory)
    if descriptor is None:
        raise RunError(f"another process is at work on the run in {directory}")
    return descriptor


def can_start_run(directory: Path) -> bool:
    """Say whether a folder exists without a run in it or below it, so that a run may start there.

    A process that is killed while it starts a run leaves such a folder.
    """
    matches = (directory.glob(pattern) for pattern in (MANIFEST_FILE, *_NESTED_RUN_PATTERNS))
    return directory.is_dir() and not any(any(manifests) for manifests in matches)


def holds_run(directory: Path) -> bool:
    """Say whether a folder has a run to keep: a complete one, a round of one, or a release.

    A start that failed before the end of round 1 leaves nothing from which to go on. Whether a
    process is still at work on it, only the folder's lock tells.
    """
    if not os.path.lexists(directory / MANIFEST_FILE):
        return False
    manifest = read_manifest_or_empty(directory)
    is_empty = manifest.get("rounds_completed") == 0 and not manifest.get("resumed")
    is_open = manifest.get("status") in ("running", "interrupted", "failed")
    return not (is_empty and is_open and "privacy" not in manifest)


def remove_unfinished(directory: Path) -> None:
    """Remove the records of a run that did not complete, so that another run can start there.

    Its settings stay until the next run overwrites them.

    Raises
    ------
    RunError
        If the run completed, or another process is at work on it.
    """
    lock = lock_run(directory)
    try:
        if read_manifest_or_empty(directory).get("status") == "completed":
            raise run_exists_error(directory)
        remove_run_files(directory)
    finally:
        os.close(lock)


def remove_run_files(directory: Path) -> None:
    """Remove exactly the files that a run wrote into its folder, except its settings.

    The caller holds the folder's lock. The manifest goes first: a folder without it is no run, even
    if other files are left. Links are removed, not followed. A run writes its settings before a
    model: without settings, the models are not the run's.
    """
    foreign = () if (directory / "config.yaml").exists() else _MODEL_FILES
    for name in _RUN_FILES:
        if name not in foreign:
            (directory / name).unlink(missing_ok=True)
    for partial in directory.glob(".*.part"):
        if partial.name.removeprefix(".").removesuffix(".part") in (*_RUN_FILES, "config.yaml"):
            partial.unlink()
    for name in (*RECORD_DIRS, CHECKPOINTS_DIR):
        folder = directory / name
        if folder.is_symlink():
            folder.unlink()
            continue
        for path in _list_written_files(folder):
            path.unlink()
        with suppress(OSError):  # the folder is missing, or has foreign files
            folder.rmdir()


def _list_written_files(folder: Path) -> Iterator[Path]:
    """Yield the files that a run wrote into one of its folders, partial ones included."""
    for path in [*folder.iterdir()] if folder.is_dir() else ():
        name = path.name.removeprefix(".").removesuffix(".part")
        if folder.name == "tensorboard":
            written = name.startswith("events")
        else:
            written = (
                is_checkpoint(name)
                if folder.name == CHECKPOINTS_DIR
                else bool(select_table_files([name]))
            )
        if written:
            yield path


def read_manifest_or_empty(directory: Path) -> dict[str, Any]:
    """Return the manifest of the run in ``directory``; empty if it cannot be read."""
    try:
        manifest = json.loads(SafeRunDir(directory).read("manifest.json") or b"{}")
    except (OSError, ValueError, RecursionError, RunError):
        return {}
    return manifest if isinstance(manifest, dict) else {}


def run_exists_error(directory: Path) -> RunError:
    """Return the error of a new run whose folder already has a run."""
    return RunError(
        f"the folder of a new run must not hold a run, got {directory}, which has one: choose "
        "another folder, or resume the run in it"
    )


def cannot_create_error(directory: Path, error: OSError) -> RunError:
    """Return the error of a run whose folder cannot be written."""
    return RunError(f"the folder of a run must be writable, got {directory}: {to_one_line(error)}")


def create_run_directory(base: Path, experiment: str) -> Path:
    """Create and return ``base/<experiment>/<time>``, with a number if that name is taken."""
    stamp = datetime.now().astimezone().strftime("%Y-%m-%d_%H-%M-%S")
    directory = (base / experiment / stamp).absolute()
    try:
        return create_new_directory(directory)
    except OSError as error:
        raise cannot_create_error(directory, error) from None


def create_new_directory(directory: Path) -> Path:
    """Create and return a folder, or if it exists the first free one of ``-2``, ``-3``, ...

    Of several processes that ask for the same folder, each gets its own.

    Raises
    ------
    OSError
        If no folder can be created there.
    """
    directory.parent.mkdir(parents=True, exist_ok=True)
    for number in itertools.count(1):
        name = directory.name if number == 1 else f"{directory.name}-{number}"
        try:
            directory.with_name(name).mkdir()
        except FileExistsError:
            continue
        return directory.with_name(name)
    raise AssertionError("there are infinitely many numbers")
