"""Represent the jobs of a sweep, each with a folder from which its state is read.

A job is known by its resolved settings, not by its number or by how they are written: the same
command, or one with more values, finds in the sweep's folder what has been run already.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fedquorum.errors import SettingsError
from fedquorum.locks import LockHolder, find_holder
from fedquorum.records.run_dir import MANIFEST_FILE, read_manifest_or_empty
from fedquorum.records.settings import (
    CorruptSettingsError,
    flatten_settings,
    load_settings,
)

from conf import ComposedConfig
from conf.compose import compose_overrides
from server_app.job import ERROR_FILE, LOCK_FILE, TODO_FILE

CONFIG_FILE = "config.yaml"
JobStatus = Literal["waiting", "running", "completed", "failed", "interrupted", "died"]


@dataclass(frozen=True)
class JobState:
    """The state of a job.

    Parameters
    ----------
    status : str
        ``waiting`` where nothing was run; ``died`` where its process was killed.
    reason : str
        Why it is not completed; empty where there is nothing to say.
    holder : Holder or None
        The process that runs it.
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
        Those of the settings in which the jobs of the sweep differ.
    directory : Path
        Its folder, absolute.
    composed : Composed or None
        Its settings, None if they are not allowed.
    stop_after : int, optional
        The round after which it counts as completed, with all its rounds to come; None for the
        last.
    """

    number: int
    overrides: tuple[str, ...]
    label: str
    directory: Path
    composed: ComposedConfig | None
    stop_after: int | None = None

    def __str__(self) -> str:
        """Return the number and what makes the job different from the others."""
        return f"job {self.number}" + (f" ({self.label})" if self.label else "")

    @property
    def planned_rounds(self) -> int:
        """The rounds of its settings."""
        return 0 if self.composed is None else self.composed.settings.rounds

    @property
    def rounds(self) -> int:
        """The rounds that the job runs."""
        return (
            self.planned_rounds
            if self.stop_after is None
            else min(self.planned_rounds, self.stop_after)
        )

    @property
    def has_more_rounds(self) -> bool:
        """Whether rounds are left when it counts as completed."""
        return self.rounds < self.planned_rounds

    @property
    def launch_overrides(self) -> tuple[str, ...]:
        """The overrides with which it runs that far."""
        stop = () if self.stop_after is None else (f"engine.stop_after_round={self.stop_after}",)
        return (*self.overrides, *stop)

    def read_state(self) -> JobState:
        """Read from the folder how far the job is."""
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
        """Make the folder this job's own, by its settings, whatever failed there without any."""
        self.directory.mkdir(exist_ok=True)
        (self.directory / CONFIG_FILE).write_text(config)
        (self.directory / ERROR_FILE).unlink(missing_ok=True)

    def mark_todo(self) -> None:
        """Mark an earlier call's job as not done; its records stay until the job begins."""
        (self.directory / TODO_FILE).touch()

    def mark_failed(self, reason: str) -> None:
        """Write into the folder why the job failed."""
        self.directory.mkdir(exist_ok=True)
        (self.directory / ERROR_FILE).write_text(reason + "\n")


def count_complete_rounds(directory: Path) -> int:
    """Return how many complete lines a run's ``rounds.jsonl`` has, without reading them."""
    return _read_rounds_file(directory).count(b"\n")


def read_complete_rounds(directory: Path) -> list[Mapping[str, Any]]:
    """Return the complete lines of a run's ``rounds.jsonl``, none where there is no run."""
    return [json.loads(line) for line in _read_rounds_file(directory).split(b"\n")[:-1]]


def _read_rounds_file(directory: Path) -> bytes:
    """Return the content of ``rounds.jsonl``; without a manifest it is of no run, and empty."""
    try:
        there = (directory / MANIFEST_FILE).exists()
        return (directory / "rounds.jsonl").read_bytes() if there else b""
    except OSError:
        return b""


class SweepFolder:
    """Gives every job of a sweep its folder.

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
        self._of_words: dict[tuple[str, ...], Job] = {}

    def get_job(self, overrides: Sequence[str], label: str, number: int) -> Job:
        """Return the job of these settings, always the same; ``number`` if it is new and free.

        A job whose settings are not allowed is failed at once: its folder says why.
        """
        known = tuple(overrides)
        if known not in self._of_words:
            self._of_words[known] = self._create_job(known, label, number)
        return self._of_words[known]

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
        for known in found:
            if read_manifest_or_empty(self.directory / str(known)).get("status") == "completed":
                return known
        if found:
            return found[0]
        if number in self._taken:
            number = max(self._taken) + 1
        self._taken.add(number)
        return number


def _compute_job_key(config: str) -> str:
    """Return by what a job with these settings, as YAML, is known."""
    try:
        return json.dumps(flatten_settings(load_settings(config)), sort_keys=True)
    except CorruptSettingsError:
        return config


def resolve_job_settings(composed: ComposedConfig) -> ComposedConfig:
    """Return the settings with which a job runs: outside of this process paths are absolute."""
    if composed.settings.engine.name == "in-process":
        return composed
    from server_app.submit import make_paths_absolute

    return make_paths_absolute(composed)
