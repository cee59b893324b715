"""Represent the jobs of a sweep, each with a folder from which its state is read.

A job is identified by its resolved settings, not by its number or the spelling of its overrides.
The same command, or one with more values, therefore finds earlier jobs in the sweep's folder.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fedquorum.errors import SettingsError
from fedquorum.io import LockHolder, find_holder
from fedquorum.records.run_dir import read_manifest_or_empty
from fedquorum.records.safe_files import MANIFEST_FILE
from fedquorum.records.settings import CorruptSettingsError, flatten_settings, load_settings

from conf import ComposedConfig
from conf.compose import compose_overrides
from server_app.runs.job import ERROR_FILE, LOCK_FILE, TODO_FILE

CONFIG_FILE = "config.yaml"
JobStatus = Literal["waiting", "running", "completed", "failed", "interrupted", "died"]


@dataclass(frozen=True)
class JobState:
    """The state of a job.

    Parameters
    ----------
    status : str
        ``waiting`` if the job has not started, ``died`` if its process was killed.
    reason : str
        The reason why the job is not completed; empty if there is none.
    holder : LockHolder or None
        The process that runs the job.
    """

    status: JobStatus
    reason: str = ""
    holder: LockHolder | None = None


@dataclass(frozen=True, eq=False)
class Job:
    """One combination of a sweep.

    Parameters
    ----------
    number : int
        The name of its folder.
    overrides : tuple of str
        Its settings as Hydra overrides.
    label : str
        The overrides in which the jobs of the sweep differ.
    directory : Path
        Its folder, absolute.
    composed : ComposedConfig or None
        Its settings; None if they are not allowed.
    stop_after : int, optional
        The round after which the job counts as completed; None for the last round of its settings.
    """

    number: int
    overrides: tuple[str, ...]
    label: str
    directory: Path
    composed: ComposedConfig | None
    stop_after: int | None = None

    def __str__(self) -> str:
        """Return the job's number and label."""
        return f"job {self.number}" + (f" ({self.label})" if self.label else "")

    @property
    def planned_rounds(self) -> int:
        """The number of rounds in its settings."""
        return 0 if self.composed is None else self.composed.settings.rounds

    @property
    def rounds(self) -> int:
        """The number of rounds that the job runs."""
        return (
            self.planned_rounds
            if self.stop_after is None
            else min(self.planned_rounds, self.stop_after)
        )

    @property
    def has_more_rounds(self) -> bool:
        """Whether the job counts as completed before the last round of its settings."""
        return self.rounds < self.planned_rounds

    @property
    def launch_overrides(self) -> tuple[str, ...]:
        """The overrides that run the job up to ``stop_after``."""
        stop = () if self.stop_after is None else (f"engine.stop_after_round={self.stop_after}",)
        return (*self.overrides, *stop)

    def read_state(self) -> JobState:
        """Read the state of the job from its folder."""
        running = find_holder(self.directory / LOCK_FILE)
        if running is not None:
            return JobState("running", holder=running)
        if (self.directory / TODO_FILE).exists():
            return JobState("waiting")
        if (self.directory / ERROR_FILE).exists():
            lines = (self.directory / ERROR_FILE).read_text().splitlines()
            return JobState("failed", lines[0] if lines else "no reason is known")
        return self._read_run_state()

    def _read_run_state(self) -> JobState:
        manifest = read_manifest_or_empty(self.directory)
        done = count_complete_rounds(self.directory)
        after = f"after round {done} of {self.rounds}"
        match manifest.get("status"):
            case "completed":
                return JobState("completed")
            case "interrupted" if self.stop_after is not None and done >= self.stop_after:
                return JobState("completed")
            case "interrupted":
                return JobState("interrupted", f"interrupted {after}")
            case "failed":
                return JobState("failed", str(manifest.get("error")))
        if manifest or (self.directory / LOCK_FILE).exists():
            return JobState("died", f"its process was killed {after}")
        return JobState("waiting")

    def claim(self, config: str) -> None:
        """Write the job's settings into its folder, and remove the error of a refused job."""
        self.directory.mkdir(exist_ok=True)
        (self.directory / CONFIG_FILE).write_text(config)
        (self.directory / ERROR_FILE).unlink(missing_ok=True)

    def mark_todo(self) -> None:
        """Mark a job of an earlier call as not done; its records stay until the job starts."""
        (self.directory / TODO_FILE).touch()

    def mark_failed(self, reason: str) -> None:
        """Write the reason of a failure into the folder."""
        self.directory.mkdir(exist_ok=True)
        (self.directory / ERROR_FILE).write_text(reason + "\n")


def count_complete_rounds(directory: Path) -> int:
    """Count the complete lines of a run's ``rounds.jsonl``, without parsing them."""
    return _read_rounds_file(directory).count(b"\n")


def read_complete_rounds(directory: Path) -> list[Mapping[str, Any]]:
    """Return the parsed complete lines of a run's ``rounds.jsonl``; empty without a run."""
    return [json.loads(line) for line in _read_rounds_file(directory).split(b"\n")[:-1]]


def _read_rounds_file(directory: Path) -> bytes:
    """Return the content of ``rounds.jsonl``; empty without a manifest, because there is no run."""
    try:
        has_run = (directory / MANIFEST_FILE).exists()
        return (directory / "rounds.jsonl").read_bytes() if has_run else b""
    except OSError:
        return b""


class SweepFolder:
    """Assigns a folder to every job of a sweep.

    Parameters
    ----------
    directory : Path
        The folder of the sweep, which may hold jobs of an earlier call.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._found: dict[str, list[int]] = {}
        for path in sorted(directory.glob(f"*/{CONFIG_FILE}")):
            if path.parent.name.isdecimal():
                self._found.setdefault(_compute_job_key(path.read_text()), []).append(
                    int(path.parent.name)
                )
        self._taken = {number for numbers in self._found.values() for number in numbers}
        self._jobs: dict[str, Job] = {}
        self._jobs_by_overrides: dict[tuple[str, ...], Job] = {}

    def get_job(self, overrides: Sequence[str], label: str, number: int) -> Job:
        """Return the job of these settings, always the same one.

        A new job gets the folder ``number`` if it is free. If the settings are not allowed, the job
        is marked as failed at once, with the reason in its folder.
        """
        key = tuple(overrides)
        if key not in self._jobs_by_overrides:
            self._jobs_by_overrides[key] = self._create_job(key, label, number)
        return self._jobs_by_overrides[key]

    def _create_job(self, overrides: tuple[str, ...], label: str, number: int) -> Job:
        composed, reason = None, ""
        try:
            composed = resolve_job_settings(compose_overrides(overrides))
        except SettingsError as error:
            reason = str(error)
        config = "\n".join(overrides) if composed is None else composed.to_yaml()
        key = config if composed is None else _compute_job_key(config)
        if key not in self._jobs:
            number = self._choose_number(key, number)
            job = Job(number, overrides, label, self.directory / str(number), composed)
            if composed is None:
                job.mark_failed(reason)
            elif key not in self._found:
                job.claim(config)
            self._jobs[key] = job
        return self._jobs[key]

    def _choose_number(self, key: str, number: int) -> int:
        found = self._found.get(key, [])
        for earlier in found:
            if read_manifest_or_empty(self.directory / str(earlier)).get("status") == "completed":
                return earlier
        if found:
            return found[0]
        if number in self._taken:
            number = max(self._taken) + 1
        self._taken.add(number)
        return number


def _compute_job_key(config: str) -> str:
    """Return the key that identifies a job, from its settings as YAML."""
    try:
        return json.dumps(flatten_settings(load_settings(config)), sort_keys=True)
    except CorruptSettingsError:
        return config


def resolve_job_settings(composed: ComposedConfig) -> ComposedConfig:
    """Return the settings with which a job runs, with absolute paths outside of this process."""
    if composed.settings.engine.name == "in-process":
        return composed
    from server_app.engines.flower import make_paths_absolute

    return make_paths_absolute(composed)
