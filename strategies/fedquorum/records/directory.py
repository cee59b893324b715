"""A run's directory: made, locked, brought back to a checkpoint, cleared."""

import json
import os
import shutil
import stat
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from ..errors import RunError, one_line
from ..locks import lock_directory
from .checkpoint import FOLDER
from .folder import RunFolder
from .parts import is_made_of

RECORDS = (
    "config.yaml",
    "manifest.json",
    "population.parquet",
    "rounds.jsonl",
    "clients",
    "evaluations",
    "model.safetensors",
    "tensorboard",
)


FOLDERS = ("clients", "evaluations", "tensorboard")


def files_that_go_on(directory: Path) -> list[Path]:
    """Return the files of a run that grow or come with its rounds."""
    found = [path for name in FOLDERS for path in (directory / name).glob("*")]
    return [path for path in (directory / "rounds.jsonl", *found) if path.is_file()]


def rewind(directory: Path, position: Mapping[str, int]) -> None:
    """Restore the records to their state at the call of ``RunRecords.position``."""
    for path in files_that_go_on(directory):
        size = position.get(path.relative_to(directory).as_posix())
        if size is None:
            names = (name.rpartition("/") for name in position)
            parts = [part for folder, _, part in names if folder == path.parent.name]
            if not is_made_of(path.name, parts):
                path.unlink()
        elif size < path.stat().st_size:
            os.truncate(path, size)
    for part in (*directory.glob(".*.part"), *directory.glob("checkpoints/.*.part")):
        part.unlink()


def refuse_links(directory: Path) -> None:
    """Refuse records through which a resumed run would write to files outside its folder.

    Raises
    ------
    RunError
        For the first record that is neither a folder nor a file with no other name, and for any
        link beside the records: a tracker may write there.
    """
    folders = [directory / name for name in (*FOLDERS, FOLDER)]
    for path in directory.iterdir():
        if path.is_symlink() or (path in folders and not path.is_dir()):
            raise _not_of_the_run(path)
    inside = [path for folder in folders for path in folder.glob("*")]
    for path in (*(directory / name for name in RECORDS), *inside):
        if path in folders or not os.path.lexists(path):
            continue
        found = path.lstat()
        if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
            raise _not_of_the_run(path)


def _not_of_the_run(path: Path) -> RunError:
    return RunError(
        f"{path} must be a file or folder of the run, got a link or something else; a run that "
        "goes on writes to no other place"
    )


def locked(directory: Path) -> int:
    """Keep other processes from resuming the same run while this process lives."""
    descriptor = lock_directory(directory)
    if descriptor is None:
        raise RunError(f"another process is at work on the run in {directory}")
    return descriptor


def remove_unfinished(directory: Path) -> None:
    """Remove the records of a run that did not complete, so that it can be run again there.

    Its settings stay; the next run writes its own.

    Raises
    ------
    RunError
        If the run completed.
    """
    if manifest_in(directory).get("status") == "completed":
        raise holds_a_run(directory)
    for name in (*RECORDS, FOLDER):
        path = directory / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif name != "config.yaml":
            path.unlink(missing_ok=True)


def manifest_in(directory: Path) -> dict[str, Any]:
    """Return the manifest of the run in ``directory``, empty where none can be read."""
    try:
        manifest = json.loads(RunFolder(directory).content("manifest.json") or b"{}")
    except (OSError, ValueError, RecursionError, RunError):
        return {}
    return manifest if isinstance(manifest, dict) else {}


def holds_a_run(directory: Path) -> RunError:
    """Return the error of a new run whose folder holds a run."""
    return RunError(
        f"the folder of a new run must not hold a run, got {directory}, which has one: choose "
        "another folder, or resume the run in it"
    )


def cannot_make(directory: Path, error: OSError) -> RunError:
    """Return the error of a run whose folder cannot be written."""
    return RunError(f"the folder of a run must be writable, got {directory}: {one_line(error)}")


def new_run_directory(base: Path, experiment: str) -> Path:
    """Make and return ``base/<experiment>/<time>``, with a number where the time is taken."""
    stamp = datetime.now().astimezone().strftime("%Y-%m-%d_%H-%M-%S")
    attempt = 0
    while True:
        name = stamp if attempt == 0 else f"{stamp}_{attempt}"
        directory = (base / experiment / name).absolute()
        try:
            directory.mkdir(parents=True)
        except FileExistsError:
            attempt += 1
        except OSError as error:
            raise cannot_make(directory, error) from None
        else:
            return directory
