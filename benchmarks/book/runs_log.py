"""Log every finished run of the book: its overrides, its machine and its raw numbers.

``docs/results/runs/NAME.ndjson`` has one line for each run of a chapter, in the order in which the
runs ended. The tables are made from these lines, so no run is repeated, even on another machine.
Flower's Hub accepts at most 1,000 files and none of this type; an app does not need them.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedquorum.records.reader import Run, read_manifest

COMMIT_LENGTH = 7
NUM_DIGITS = 9  # significant digits of a raw number; differences of runs lose some


@dataclass(frozen=True)
class LoggedRun:
    """One finished run.

    Parameters
    ----------
    words : tuple of str
        The overrides after ``fedquorum`` that repeat the run.
    strategy : str
        The composed value of ``strategy=``.
    seed : int
    rounds : int
        The number of complete rounds.
    started : str
        ISO 8601, UTC.
    commit : str
        The project's commit, shortened.
    seconds : float
        The duration of all rounds.
    versions : mapping
        Python, packages and machine, from the manifest.
    numbers : mapping
        Raw numbers by the names that the chapter's tables use; null is NaN.
    """

    words: tuple[str, ...]
    strategy: str
    seed: int
    rounds: int
    started: str
    commit: str
    seconds: float
    versions: Mapping[str, Any]
    numbers: Mapping[str, Any]

    @property
    def settings(self) -> Mapping[str, str]:
        """The values of the overrides by key."""
        return dict(override.split("=", 1) for override in self.words)

    @property
    def experiment(self) -> str:
        """The name of the preset."""
        return self.settings.get("experiment", "")

    def get_number(self, *path: str) -> float:
        """Return one raw number, NaN if it is null or missing."""
        value: Any = self.numbers
        for name in path:
            value = None if value is None else value.get(name)
        return math.nan if value is None else float(value)


def build_log_entry(run: Run, overrides: Sequence[str], numbers: Mapping[str, Any]) -> LoggedRun:
    """Build the log entry of a completed run.

    Raises
    ------
    RunError
        If the manifest is damaged.
    """
    manifest = read_manifest(run.directory)
    return LoggedRun(
        words=tuple(overrides),
        strategy=run.strategy,
        seed=run.seed,
        rounds=len(run.rounds),
        started=run.started,
        commit=shorten_commit(manifest.get("commit") or ""),
        seconds=round(sum(record.duration_seconds for record in run.rounds), 1),
        versions={
            **{name: manifest.get(name) for name in ("python", "platform", "packages")},
            "instructions": (manifest.get("arithmetic") or {}).get("instructions"),
        },
        numbers=_to_json_value(numbers),
    )


def read_run_log(path: Path) -> tuple[LoggedRun, ...]:
    """Return the logged runs of a file, none if it does not exist."""
    if not path.exists():
        return ()
    lines = path.read_text(encoding="utf-8").splitlines()
    return tuple(_to_logged_run(json.loads(line)) for line in lines)


def add_to_log(path: Path, run: LoggedRun) -> None:
    """Append a run to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(run), ensure_ascii=False, allow_nan=False) + "\n")


def shorten_commit(commit: str) -> str:
    """Shorten a commit hash, but keep the suffix that marks changed sources."""
    digest, dash, suffix = commit.partition("-")
    return f"{digest[:COMMIT_LENGTH]}{dash}{suffix}" or "an unknown commit"


def collect_overrides(runs: Iterable[LoggedRun]) -> frozenset[tuple[str, ...]]:
    """Return the overrides of each run."""
    return frozenset(run.words for run in runs)


def _to_logged_run(fields: Mapping[str, Any]) -> LoggedRun:
    return LoggedRun(**{**fields, "words": tuple(fields["words"])})


def _to_json_value(value: Any) -> Any:
    """Convert to JSON: round numbers to NUM_DIGITS digits, write NaN and infinity as null."""
    if isinstance(value, Mapping):
        return {str(key): _to_json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_json_value(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.{NUM_DIGITS}g}") if math.isfinite(value) else None
    return value
