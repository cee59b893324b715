"""Read runs back from their folders.

Records are untrusted, so the reader checks everything.
"""

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..errors import RunError, to_one_line
from ..rules.decisions import PERSONAL_MODELS
from ..rules.equality import nan_equals_nan
from ..sanitize import sanitize
from .client_names import NO_NAMES, ClientNames
from .columns import build_schema
from .legs import Leg, Resume, build_legs
from .parquet import read_parquet_file
from .round_record import RoundRecord
from .safe_files import MANIFEST_FILE, TABLE_NAMES, SafeRunDir
from .settings import CorruptSettingsError, flatten_settings, load_settings
from .summary import read_summary
from .tables import (
    AVERAGE_PRECISION_COLUMNS,
    COLUMNS_BY_TABLE,
    POPULATION_COLUMNS,
    list_evaluation_columns,
)
from .values import (
    COUNT,
    CorruptRecordError,
    describe_value,
    get_field,
    read_list,
    read_name,
    read_nonnegative_int,
    read_object,
    read_text,
)

__all__ = ["Run", "find_runs", "load_run", "read_runs"]

FORMAT_VERSION = 1
"""The version of the records, checkpoints included; it is not the version of a release."""

RUN_CONFIG_FILE = "config.yaml"
ROUNDS_FILE = "rounds.jsonl"
POPULATION_FILE = "population.parquet"
MAX_LINE_BYTES = 16 * 2**20
MAX_ERROR_LENGTH = 2000
RUN_STATUSES = ("completed", "running", "interrupted", "failed")


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
        The overrides of the experiment's settings.
    started : str
        The start of the run in ISO 8601, UTC; sorting the texts sorts the times.
    settings : mapping
        All settings of the last leg by dotted key, such as ``client.lr``; see ``legs``.
    rounds : tuple of RoundRecord
        The complete rounds, in order. A null number is NaN.
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
    data : mapping
        How the run interpreted its data, in any form; see ``data_facts``.
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
    data: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def legs(self) -> tuple[Leg, ...]:
        """The legs of the run, each with the settings that decided its rounds."""
        return build_legs(self.config, self.resumed)

    @cached_property
    def client_names(self) -> ClientNames:
        """The names of the clients, read on first use; raises RunError for a damaged table."""
        return read_client_names(self.directory)

    @property
    def simulated_end(self) -> float | None:
        """The simulated seconds at which the run ends whatever its rounds; None without an end."""
        end = self.settings.get("engine.simulated_seconds")
        return float(end) if isinstance(end, int | float) else None

    @property
    def simulated_seconds(self) -> float:
        """The virtual clock after the last round; 0 without one."""
        return (self.rounds[-1].simulated_seconds or 0.0) if self.rounds else 0.0

    def find_leg(self, number: int) -> Leg:
        """Return the leg to which a round belongs, the first one for round 0."""
        return next((leg for leg in reversed(self.legs) if leg.first_round <= number), self.legs[0])


def find_runs(
    directories: Iterable[Path], on_error: Callable[[RunError], object] | None = None
) -> tuple[Path, ...]:
    """Return the folders of all runs in or below ``directories``, each once, sorted.

    A folder with a ``manifest.json`` is a run; the search does not go below it.

    Parameters
    ----------
    directories : iterable of Path
        Folders with runs, or runs.
    on_error : callable, optional
        Called with the error of each folder that cannot be read, which is left out. By default the
        function raises the error.

    Raises
    ------
    RunError
        If one of ``directories`` is not a folder, cannot be read or has no run.
    """
    found: set[Path] = set()
    for directory in directories:
        below = set(_find_runs_below(directory, on_error or _raise_error))
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


def _find_runs_below(directory: Path, on_error: Callable[[RunError], object]) -> Iterable[Path]:
    root = directory.resolve()

    def report_unreadable(error: OSError) -> None:
        reason = f"{error.filename} ({error.strerror})"
        problem = RunError(f"expected a folder that can be read, got {reason}")
        if Path(error.filename) == root:
            raise problem from None
        on_error(problem)

    for folder, subfolders, files in os.walk(root, onerror=report_unreadable):
        if MANIFEST_FILE in files:
            subfolders.clear()
            yield Path(folder)


def _raise_error(error: RunError) -> None:
    raise error


def load_run(directory: Path) -> Run:
    """Return the run in ``directory``.

    An incomplete last line of ``rounds.jsonl``, left by an interrupted process, is ignored.

    Raises
    ------
    RunError
        If a file is missing or damaged; the message names the file, and the line if there is one.
    """
    run = SafeRunDir(directory.resolve())
    manifest = parse_manifest(_read_required_file(run, MANIFEST_FILE), run.path / MANIFEST_FILE)
    config = _load_config(run)
    return Run(
        directory=run.path,
        config=config,
        settings={sanitize(key): value for key, value in flatten_settings(config).items()},
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
    run = SafeRunDir(directory)
    content, path = _read_required_file(run, MANIFEST_FILE), run.path / MANIFEST_FILE
    parse_manifest(content, path)
    manifest: dict[str, Any] = {"arithmetic": {}, **json.loads(content)}
    if not isinstance(manifest["arithmetic"], dict):
        raise RunError(f"{path}: arithmetic must be a dict, got {manifest['arithmetic']!r}")
    return manifest


def parse_manifest(content: bytes, path: Path) -> dict[str, Any]:
    """Return the fields of ``Run`` that a manifest provides.

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
        values: dict[str, Any] = {
            name: _read_name_field(fields, name) for name in ("experiment", "strategy", "started")
        }
        values |= {
            "seed": read_nonnegative_int(get_field(fields, "seed"), "seed"),
            "status": _read_status_field(fields),
            "overrides": _read_texts_field(fields, "overrides"),
            "planned": COUNT.read_field(fields, "rounds"),
            "error": sanitize(fields.get("error") or "", MAX_ERROR_LENGTH),
            "summary": read_summary(fields.get("summary") or {}),
            "privacy": read_object(fields.get("privacy") or {}, "privacy"),
            "data": fields["data"] if isinstance(fields.get("data"), dict) else {},
            "resumed": tuple(map(_read_resume, read_list(get_field(fields, "resumed"), "resumed"))),
        }
    except CorruptRecordError as error:
        raise RunError(f"{path}: {error}") from None
    return values


def _check_format(fields: Mapping[str, Any]) -> None:
    if get_field(fields, "format") != FORMAT_VERSION:
        raise CorruptRecordError(
            f"format must be {FORMAT_VERSION}, that of the records that this version reads, got "
            f"{describe_value(fields['format'])}: read them with the version that wrote them"
        )


def _load_config(run: SafeRunDir) -> dict[str, Any]:
    path = run.path / RUN_CONFIG_FILE
    try:
        return load_settings(_read_required_file(run, RUN_CONFIG_FILE).decode())
    except UnicodeDecodeError:
        raise RunError(f"{path}: expected YAML in UTF-8") from None
    except CorruptSettingsError as problem:
        line = "" if problem.line is None else f", line {problem.line}"
        raise RunError(f"{path}{line}: {problem}") from None


def _load_rounds(run: SafeRunDir) -> Iterable[RoundRecord]:
    path = run.path / ROUNDS_FILE
    with run.open(ROUNDS_FILE) as file:
        if file is None:
            raise _missing_file_error(path)
        for number, line in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES + 1), b""), 1):
            try:
                yield RoundRecord.from_json(_parse_line(line))
            except _UnparsableLineError as error:
                if line.endswith(b"\n") or len(line) > MAX_LINE_BYTES:
                    raise RunError(f"{path}, line {number}: {error}") from None
                return  # the process was stopped while it wrote this line
            except CorruptRecordError as error:
                raise RunError(f"{path}, line {number}: {error}") from None


def check_tables(directory: Path) -> None:
    """Read all tables of a run that exist.

    Raises
    ------
    RunError
        If one is damaged; the message names the file.
    """
    run = SafeRunDir(directory)
    for folder in TABLE_NAMES:
        if run.get_file_id(folder) is not None:
            read_dataset(directory / folder)
    if run.get_file_id(POPULATION_FILE) is not None:
        read_population(directory)


def read_dataset(folder: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Return a table of several Parquet files, without incomplete files.

    Parameters
    ----------
    folder : Path
        ``clients`` or ``evaluations`` of a run.
    columns : sequence of str, optional
        The columns to read, by default all.

    Raises
    ------
    RunError
        If there is no such folder, or a file in it is damaged.
    """
    run = SafeRunDir(folder.parent)
    if run.get_file_id(folder.name) is None:
        raise RunError(f"expected a folder of a run, got {folder} (No such file or directory)")
    tables = [
        read_parquet_file(run, (folder.name, name), COLUMNS_BY_TABLE[folder.name], columns)
        for name in run.list_table_files(folder.name)
    ]
    return pa.concat_tables(tables, promote_options="default") if tables else pa.table({})


def read_table(folder: Path) -> pa.Table:
    """Return a Parquet table with all columns, without optional ones that no client has.

    Parameters
    ----------
    folder : Path
        ``clients`` or ``evaluations`` of a run.

    Raises
    ------
    RunError
        As in ``read_dataset``, or if a column has another type.
    """
    table, columns = read_dataset(folder), COLUMNS_BY_TABLE[folder.name]
    if folder.name == "evaluations":
        columns = list_evaluation_columns(
            _find_personal_models(table), has_average_precision=_has_average_precision(table)
        )
    schema = build_schema(columns)
    if table.num_columns == 0:
        return schema.empty_table()
    try:
        return table.select(schema.names).cast(schema)
    except (pa.ArrowException, KeyError, ValueError) as error:
        raise RunError(f"{folder}: {to_one_line(error)}") from None


def _has_average_precision(table: pa.Table) -> bool:
    """Return whether a table has average precision beside the metric."""
    names = [column.name for column in AVERAGE_PRECISION_COLUMNS]
    return table.num_columns > 0 and any(table[n].null_count < table.num_rows for n in names)


def _find_personal_models(table: pa.Table) -> list[str]:
    """Return the personal models that a table has evaluations of."""
    if table.num_columns == 0:
        return []
    missing = {
        name: table[f"{name}_epochs"].null_count == table.num_rows for name in PERSONAL_MODELS
    }
    return [name for name in PERSONAL_MODELS if not missing[name]]


def read_population(directory: Path) -> pa.Table:
    """Return the table of a run's clients.

    Raises
    ------
    RunError
        If the table is missing or damaged, or has a client twice.
    """
    table = read_parquet_file(SafeRunDir(directory), (POPULATION_FILE,), POPULATION_COLUMNS)
    counts = table["client"].value_counts().to_pylist()
    for client in (found["values"] for found in counts if found["counts"] > 1):
        raise RunError(
            f"{directory / POPULATION_FILE}: expected each client once, got {client} again"
        )
    return table


def read_client_names(directory: Path) -> ClientNames:
    """Return the names of a run's clients; none without a table of clients.

    Raises
    ------
    RunError
        If the table is damaged.
    """
    run = SafeRunDir(directory)
    if run.get_file_id(POPULATION_FILE) is None:
        return NO_NAMES
    columns = ["client", "name"]
    table = read_parquet_file(run, (POPULATION_FILE,), POPULATION_COLUMNS, columns).to_pydict()
    named = zip(table["client"], table["name"], strict=True)
    return ClientNames.clean({client: name for client, name in named if name is not None})


def _read_required_file(run: SafeRunDir, name: str) -> bytes:
    """Return the content of a file of a run; a missing file raises RunError."""
    content = run.read(name)
    if content is None:
        raise _missing_file_error(run.path / name)
    return content


def _missing_file_error(path: Path) -> RunError:
    if path.name == MANIFEST_FILE:
        return RunError(f"expected the folder of a run, got {explain_not_a_run(path.parent)}")
    return RunError(f"expected a file of a run, got {path} (No such file or directory)")


def explain_not_a_run(directory: Path, error: RunError | None = None) -> str:
    """Return a folder, and the reason why no run can be read from it."""
    if not directory.is_dir():
        return f"{directory}: there is no such folder"
    if not (directory / MANIFEST_FILE).exists():
        return f"{directory}: it has no {MANIFEST_FILE}"
    return f"{directory}: {error}"


def _read_resume(given: Any) -> Resume:
    resume = read_object(given, "resumed")
    before = read_object(resume.get("before", {}), "before")
    return Resume(COUNT.read_field(resume, "round"), before)


# --- one line of rounds.jsonl ----------------------------------------------------------------


class _UnparsableLineError(CorruptRecordError):
    """A line is not JSON, for example because its writer was stopped."""


def _parse_line(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        raise _UnparsableLineError(
            "expected one round as a JSON object, got something else"
        ) from None


# --- texts ------------------------------------------------------------------------------------


def _read_text_field(fields: Mapping[str, Any], name: str) -> str:
    return read_text(get_field(fields, name), name)


def _read_name_field(fields: Mapping[str, Any], name: str) -> str:
    return read_name(get_field(fields, name), name)


def _read_texts_field(fields: Mapping[str, Any], name: str) -> tuple[str, ...]:
    values = get_field(fields, name)
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise CorruptRecordError(f"{name} must be a list of texts, got {describe_value(values)}")
    return tuple(values)


def _read_status_field(fields: Mapping[str, Any]) -> str:
    value = _read_text_field(fields, "status")
    if value not in RUN_STATUSES:
        raise CorruptRecordError(
            f"status must be one of {', '.join(RUN_STATUSES)}, got {describe_value(value)}"
        )
    return value
