"""What is kept of every finished run of the book: its words, where it ran, and its raw numbers.

The runs of a chapter are lines of ``docs/results/runs/NAME.ndjson``, one line a run, in the order
in which they ended. Tables are made of these lines, so no run is measured twice, on whatever
machine the next one runs. Flower's Hub takes 1,000 files at most, and none of this type: an app
needs none.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedquorum.records.reader import Run, read_manifest

COMMIT_LENGTH = 7
NUM_DIGITS = 9  # digits kept of a raw number: differences of runs lose some


@dataclass(frozen=True)
class LoggedRun:
    """One finished run.

    Parameters
    ----------
    words : tuple of str
        After ``fedquorum``: the command that repeats it.
    strategy : str
        ``strategy=`` as it was composed.
    seed, rounds : int
        The run's seed, and its complete rounds.
    started : str
        ISO 8601, UTC.
    commit : str
        The project's, shortened.
    seconds : float
        Of all its rounds together.
    versions : mapping
        Python, packages and machine, from its manifest.
    numbers : mapping
        Its raw numbers by the names that the chapter's tables use; null is NaN.
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
        """Its words by key."""
        return dict(word.split("=", 1) for word in self.words)

    @property
    def experiment(self) -> str:
        """The name of its preset."""
        return self.settings.get("experiment", "")

    def get_number(self, *path: str) -> float:
        """Return one of its numbers, NaN where it is null or there is none."""
        found: Any = self.numbers
        for name in path:
            found = None if found is None else found.get(name)
        return math.nan if found is None else float(found)


def build_log_entry(run: Run, overrides: Sequence[str], numbers: Mapping[str, Any]) -> LoggedRun:
    """Return what is kept of a run that completed.

    Raises
    ------
    RunError
        If its manifest is damaged.
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
    """Return the runs that a file keeps, none where there is no file."""
    if not path.exists():
        return ()
    lines = path.read_text(encoding="utf-8").splitlines()
    return tuple(_to_logged_run(json.loads(line)) for line in lines)


def add_to_log(path: Path, run: LoggedRun) -> None:
    """Add a run to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(run), ensure_ascii=False, allow_nan=False) + "\n")


def shorten_commit(commit: str) -> str:
    """Return a commit in few letters; that the sources were changed stays told."""
    letters, dash, changed = commit.partition("-")
    return f"{letters[:COMMIT_LENGTH]}{dash}{changed}" or "an unknown commit"


def collect_overrides(runs: Iterable[LoggedRun]) -> frozenset[tuple[str, ...]]:
    """Return the words of runs."""
    return frozenset(run.words for run in runs)


def _to_logged_run(fields: Mapping[str, Any]) -> LoggedRun:
    return LoggedRun(**{**fields, "words": tuple(fields["words"])})


def _to_json_value(value: Any) -> Any:
    """Return numbers as JSON has them: of few digits, NaN and infinity as null."""
    if isinstance(value, Mapping):
        return {str(key): _to_json_value(of) for key, of in value.items()}
    if isinstance(value, list | tuple):
        return [_to_json_value(of) for of in value]
    if isinstance(value, float):
        return float(f"{value:.{NUM_DIGITS}g}") if math.isfinite(value) else None
    return value
