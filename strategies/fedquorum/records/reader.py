"""Read runs back from their folders.

Records may come from anybody, so the reader checks everything.
"""

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..equality import nan_equals_nan
from ..errors import RunError, one_line
from ..intake import shown
from .columns import schema_of
from .folder import TABLES, RunFolder
from .legs import Leg, Resume, legs_of
from .parquet import read_file
from .round_record import RoundRecord
from .settings import DamagedSettingsError, flat_settings, load_settings
from .summary import read_summary
from .tables import COLUMNS
from .tables import POPULATION as POPULATION_COLUMNS
from .values import (
    COUNT,
    DamagedError,
    given,
    read_list,
    read_name,
    read_object,
    read_text,
    read_whole,
    told,
)

__all__ = ["Run", "find_runs", "load_run", "read_runs"]

FORMAT = 1
"""The version of the records, checkpoints included, which is that of no release."""

MANIFEST = "manifest.json"
CONFIG = "config.yaml"
ROUNDS = "rounds.jsonl"
POPULATION = "population.parquet"
LONGEST_LINE = 16 * 2**20
LONGEST_ERROR = 2000
STATUSES = ("completed", "running", "interrupted", "failed")


@nan_equals_nan
@dataclass(frozen=True)
class Run:
    """The records of one run.

    Parameters
    ----------
    directory : Path
        The run's folder, an absolute path.
    status : {"completed", "running", "interrupted", "failed"}
        The state of the run. A killed process leaves ``running``.
    experiment, strategy : str
        The names of the preset and of the strategy.
    seed : int
        The run's seed.
    overrides : tuple of str
        The words, beside the experiment, from which the settings were composed.
    started : str
        Start of the run in ISO 8601, UTC: texts in order are times in order.
    settings : mapping
        All settings by dotted key, such as ``client.lr``; of the last leg, see ``legs``.
    rounds : tuple of RoundRecord
        The complete rounds, in order. A null for a number is NaN.
    planned : int
        The planned number of rounds.
    error : str
        The error that ended the run; otherwise empty.
    summary : mapping
        The diagnostics of the whole run; empty during the run.
    config : mapping
        All settings, nested as in ``config.yaml``.
    privacy : mapping
        The privacy cost of the models released so far; empty for a run without privacy.
    resumed : tuple of Resume
        All resumes, the first one first.
    """

    directory: Path
    status: str
    experiment: str
    strategy: str
    seed: int
    overrides: tuple[str, ...]
    started: str
    settings: Mapping[str, Any]
    rounds: tuple[RoundRecord, ...]
    planned: int = 0
    error: str = ""
    summary: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    privacy: Mapping[str, Any] = field(default_factory=dict)
    resumed: tuple[Resume, ...] = ()

    @cached_property
    def legs(self) -> tuple[Leg, ...]:
        """The legs of the run, of which each has the settings that decided its rounds."""
        return legs_of(self.config, self.resumed)

    def leg_of(self, number: int) -> Leg:
        """Return the leg to which a round belongs, the first one for round 0."""
        return next((leg for leg in reversed(self.legs) if leg.first <= number), self.legs[0])


def find_runs(
    directories: Iterable[Path], tell: Callable[[RunError], object] | None = None
) -> tuple[Path, ...]:
    """Return the folders of all runs in or below ``directories``, each once, sorted.

    A folder with a ``manifest.json`` is a run; the search does not go below it.

    Parameters
    ----------
    directories : iterable of Path
        Folders with runs, or runs.
    tell : callable, optional
        Called with the error of each folder that cannot be read, which is left out. By default the
        function raises the error.

    Raises
    ------
    RunError
        If one of ``directories`` is not a folder, cannot be read or has no run.
    """
    found: set[Path] = set()
    for directory in directories:
        below = set(_runs_below(directory, tell or _refuse))
        if not below:
            raise RunError(f"expected a folder with runs (manifest.json) in it, got {directory}")
        found |= below
    return tuple(sorted(found))


def read_runs(
    directories: Iterable[Path], check: Callable[[Run], None] = lambda _: None
) -> tuple[tuple[Run, ...], tuple[str, ...]]:
    """Return all runs in or below ``directories``, and the errors of those left out.

    Parameters
    ----------
    directories : iterable of Path
        Folders with runs, or runs.
    check : callable
        Raises RunError for a run that the caller cannot use.

    Raises
    ------
    RunError
        As in ``find_runs``.
    """
    runs: list[Run] = []
    problems: list[str] = []
    for directory in find_runs(directories, lambda error: problems.append(str(error))):
        try:
            run = load_run(directory)
            check_tables(directory)
            check(run)
        except RunError as error:
            problems.append(str(error))
        else:
            runs.append(run)
    return tuple(runs), tuple(problems)


def _runs_below(directory: Path, tell: Callable[[RunError], object]) -> Iterable[Path]:
    root = directory.resolve()

    def unreadable(error: OSError) -> None:
        reason = f"{error.filename} ({error.strerror})"
        problem = RunError(f"expected a folder that can be read, got {reason}")
        if Path(error.filename) == root:
            raise problem from None
        tell(problem)

    for folder, subfolders, files in os.walk(root, onerror=unreadable):
        if MANIFEST in files:
            subfolders.clear()
            yield Path(folder)


def _refuse(error: RunError) -> None:
    raise error


def load_run(directory: Path) -> Run:
    """Return the run in ``directory``.

    An incomplete last line of ``rounds.jsonl``, as an interrupted process leaves it, is ignored.

    Raises
    ------
    RunError
        If a file is missing or damaged; the message names the file, and the line if there is one.
    """
    run = RunFolder(directory.resolve())
    manifest = checked_manifest(_content(run, MANIFEST), run.path / MANIFEST)
    config = _load_config(run)
    return Run(
        directory=run.path,
        config=config,
        settings={shown(key): value for key, value in flat_settings(config).items()},
        rounds=tuple(_load_rounds(run)),
        **manifest,
    )


def read_manifest(directory: Path) -> dict[str, Any]:
    """Return the manifest of the run in ``directory`` as it was written, checked.

    Raises
    ------
    RunError
        If the manifest is missing or damaged.
    """
    run = RunFolder(directory)
    content, path = _content(run, MANIFEST), run.path / MANIFEST
    checked_manifest(content, path)
    manifest: dict[str, Any] = {"arithmetic": {}, **json.loads(content)}
    if not isinstance(manifest["arithmetic"], dict):
        raise RunError(f"{path}: arithmetic must be a dict, got {manifest['arithmetic']!r}")
    return manifest


def checked_manifest(content: bytes, path: Path) -> dict[str, Any]:
    """Return the fields of ``Run`` that a manifest has.

    Parameters
    ----------
    content : bytes
        The manifest.
    path : Path
        The manifest's path, for messages.

    Raises
    ------
    RunError
        If it is damaged.
    """
    try:
        manifest = json.loads(content)
    except json.JSONDecodeError as error:
        raise RunError(f"{path}, line {error.lineno}: expected JSON, {error.msg}") from None
    except RecursionError:
        raise RunError(f"{path}: expected JSON, got lists in lists without end") from None
    except ValueError as error:
        raise RunError(f"{path}: expected JSON, {error}") from None
    try:
        fields = read_object(manifest)
        _check_format(fields)
        kept: dict[str, Any] = {
            name: _name(fields, name) for name in ("experiment", "strategy", "started")
        }
        kept |= {
            "seed": read_whole(given(fields, "seed"), "seed"),
            "status": _status(fields),
            "overrides": _texts(fields, "overrides"),
            "planned": COUNT.of(fields, "rounds"),
            "error": shown(fields.get("error") or "", LONGEST_ERROR),
            "summary": read_summary(fields.get("summary") or {}),
            "privacy": read_object(fields.get("privacy") or {}, "privacy"),
            "resumed": tuple(map(_resume, read_list(given(fields, "resumed"), "resumed"))),
        }
    except DamagedError as error:
        raise RunError(f"{path}: {error}") from None
    return kept


def _check_format(fields: Mapping[str, Any]) -> None:
    if given(fields, "format") != FORMAT:
        raise DamagedError(
            f"format must be {FORMAT}, that of the records that this version reads, got "
            f"{told(fields['format'])}: read them with the version that wrote them"
        )


def _load_config(run: RunFolder) -> dict[str, Any]:
    path = run.path / CONFIG
    try:
        return load_settings(_content(run, CONFIG).decode())
    except UnicodeDecodeError:
        raise RunError(f"{path}: expected YAML in UTF-8") from None
    except DamagedSettingsError as problem:
        line = "" if problem.line is None else f", line {problem.line}"
        raise RunError(f"{path}{line}: {problem}") from None


def _load_rounds(run: RunFolder) -> Iterable[RoundRecord]:
    path = run.path / ROUNDS
    with run.opened(ROUNDS) as file:
        if file is None:
            raise _missing(path)
        for number, line in enumerate(iter(lambda: file.readline(LONGEST_LINE + 1), b""), 1):
            try:
                yield RoundRecord.of(_parsed(line))
            except _BrokenOffError as error:
                if line.endswith(b"\n") or len(line) > LONGEST_LINE:
                    raise RunError(f"{path}, line {number}: {error}") from None
                return  # the process was stopped while it wrote this line
            except DamagedError as error:
                raise RunError(f"{path}, line {number}: {error}") from None


def check_tables(directory: Path) -> None:
    """Read all tables of a run that exist.

    Raises
    ------
    RunError
        If one is damaged; the message names the file.
    """
    run = RunFolder(directory)
    for folder in TABLES:
        if run.identity(folder) is not None:
            read_parts(directory / folder)
    if run.identity(POPULATION) is not None:
        read_population(directory)


def read_parts(folder: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Return a Parquet table that was written in parts, without incomplete parts.

    Parameters
    ----------
    folder : Path
        ``clients`` or ``evaluations`` of a run.
    columns : sequence of str, optional
        The columns to read, by default all.

    Raises
    ------
    RunError
        If there is no such folder, or a part of it is damaged.
    """
    run = RunFolder(folder.parent)
    if run.identity(folder.name) is None:
        raise RunError(f"expected a folder of a run, got {folder} (No such file or directory)")
    tables = [
        read_file(run, (folder.name, part), COLUMNS[folder.name], columns)
        for part in run.parts(folder.name)
    ]
    return pa.concat_tables(tables, promote_options="default") if tables else pa.table({})


def read_table(folder: Path) -> pa.Table:
    """Return a Parquet table with all columns.

    Parameters
    ----------
    folder : Path
        ``clients`` or ``evaluations`` of a run.

    Raises
    ------
    RunError
        As in ``read_parts``, or if a column has another type.
    """
    table, schema = read_parts(folder), schema_of(COLUMNS[folder.name])
    if table.num_columns == 0:
        return schema.empty_table()
    try:
        return table.select(schema.names).cast(schema)
    except (pa.ArrowException, KeyError, ValueError) as error:
        raise RunError(f"{folder}: {one_line(error)}") from None


def read_population(directory: Path) -> pa.Table:
    """Return the table of a run's clients.

    Raises
    ------
    RunError
        If the table is missing or damaged, or has a client twice.
    """
    table = read_file(RunFolder(directory), (POPULATION,), POPULATION_COLUMNS)
    counts = table["client"].value_counts().to_pylist()
    for client in (found["values"] for found in counts if found["counts"] > 1):
        raise RunError(f"{directory / POPULATION}: expected each client once, got {client} again")
    return table


def _content(run: RunFolder, name: str) -> bytes:
    """Return a file of a run; RunError names one that cannot be read."""
    content = run.content(name)
    if content is None:
        raise _missing(run.path / name)
    return content


def _missing(path: Path) -> RunError:
    if path.name == MANIFEST:
        return RunError(f"expected the folder of a run, got {no_run(path.parent)}")
    return RunError(f"expected a file of a run, got {path} (No such file or directory)")


def no_run(directory: Path, error: RunError | None = None) -> str:
    """Return a folder, and why it is not that of a run that can be read."""
    if not directory.is_dir():
        return f"{directory}: there is no such folder"
    if not (directory / MANIFEST).exists():
        return f"{directory}: it has no {MANIFEST}"
    return f"{directory}: {error}"


def _resume(given: Any) -> Resume:
    resume = read_object(given, "resumed")
    before = read_object(resume.get("before", {}), "before")
    return Resume(COUNT.of(resume, "round"), before)


# --- one line of rounds.jsonl ----------------------------------------------------------------


class _BrokenOffError(DamagedError):
    """A line is no JSON, as one that a process was writing when it was stopped."""


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        raise _BrokenOffError("expected one round as a JSON object, got something else") from None


# --- texts ------------------------------------------------------------------------------------


def _text(fields: Mapping[str, Any], name: str) -> str:
    return read_text(given(fields, name), name)


def _name(fields: Mapping[str, Any], name: str) -> str:
    return read_name(given(fields, name), name)


def _texts(fields: Mapping[str, Any], name: str) -> tuple[str, ...]:
    values = given(fields, name)
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise DamagedError(f"{name} must be a list of texts, got {told(values)}")
    return tuple(values)


def _status(fields: Mapping[str, Any]) -> str:
    value = _text(fields, "status")
    if value not in STATUSES:
        raise DamagedError(f"status must be one of {', '.join(STATUSES)}, got {told(value)}")
    return value
