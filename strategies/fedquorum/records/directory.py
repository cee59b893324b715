"""A run's directory: made, locked, brought back to a checkpoint, cleared."""

import fcntl
import json
import os
import shutil
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from ..errors import RunError
from .checkpoint import FOLDER

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


def files_that_go_on(directory: Path) -> list[Path]:
    """Return the files of a run that grow or come with its rounds."""
    folders = ("clients", "evaluations", "tensorboard")
    found = [path for name in folders for path in (directory / name).glob("*")]
    return [path for path in (directory / "rounds.jsonl", *found) if path.is_file()]


def rewind(directory: Path, position: Mapping[str, int]) -> None:
    """Bring the records back to what they were when ``RunRecords.position`` was asked."""
    for path in files_that_go_on(directory):
        size = position.get(path.relative_to(directory).as_posix())
        if size is None:
            path.unlink()
        else:
            os.truncate(path, size)
    for part in (*directory.glob(".*.part"), *directory.glob("checkpoints/.*.part")):
        part.unlink()


def locked(directory: Path) -> int:
    """Keep other processes from going on with the same run, as long as this one lives."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise RunError(f"another process is at work on the run in {directory}") from None
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
        if path.is_dir():
            shutil.rmtree(path)
        elif name != "config.yaml":
            path.unlink(missing_ok=True)


def manifest_in(directory: Path) -> dict[str, Any]:
    """Return the manifest of the run in ``directory``, empty where there is none."""
    try:
        manifest: dict[str, Any] = json.loads((directory / "manifest.json").read_text())
    except (OSError, ValueError):
        return {}
    return manifest


def holds_a_run(directory: Path) -> RunError:
    """Return the error of a new run whose directory is taken."""
    return RunError(f"the directory of a new run must not hold a run already, got {directory}")


def cannot_make(directory: Path, error: OSError) -> RunError:
    """Return the error of a run whose directory cannot be written."""
    return RunError(f"the directory of a run must be writable, got {directory}: {error}")


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
