"""Write the records of a run while it is running."""

import errno
import json
import os
import platform
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from numpy.typing import NDArray

from ..client.availability.rates import ParticipationRates
from ..errors import RunError
from ..io import atomic_write, cannot_write_error, defer_signals, fsync_parents
from ..rules.state_arrays import StateArrays
from ..rules.types import Population
from .callback import FinishedRound, RunCallback, RunObserver
from .checkpoint import Checkpoint, save_arrays
from .client_names import NO_NAMES, ClientNames
from .hosts import Host
from .legs import find_changed_settings
from .provenance import RunInfo, get_utc_time
from .reader import FORMAT_VERSION, read_manifest
from .run_dir import (
    RECORD_NAMES,
    cannot_create_error,
    holds_run,
    list_append_only_files,
    lock_run,
    refuse_links,
    remove_run_files,
    run_exists_error,
    truncate_records,
)
from .safe_files import MANIFEST_FILE
from .settings import flatten_settings, load_settings
from .summary import RegretBound, RunSummary
from .tables import (
    CLIENTS_COLUMNS,
    TableWriter,
    build_decisions_table,
    build_evaluations_table,
    build_population_table,
    list_evaluation_columns,
    write_table,
)
from .values import CorruptRecordError, read_name, to_json_number

MODEL, MEAN_MODEL = "model.safetensors", "mean_model.safetensors"
"""The model after the last round, and the mean of the models from which clients start next."""

PRIVACY_ENTRY, MASKS_ENTRY = LATER_ENTRIES = ("privacy", "masks")
"""Entries of the manifest that a run learns after its start, and keeps when it is resumed."""

MODEL_CARD = "model_card.json"
"""What the model is, and how rows become its inputs."""


def _no_regret_bound(_decisions: int, _clients: int) -> None:
    """Return the bound of a method that has none."""


class RunWriter(RunCallback):
    """Writes the records of one run; use as a context manager.

    Leaving it closes all files and sets the final status: completed, interrupted
    (KeyboardInterrupt, SystemExit) or failed (any other exception).

    Parameters
    ----------
    directory : Path
        The run's folder; created if missing. A new run refuses a folder that already has a run, and
        removes what a start left there that was killed before its manifest was written.
    identity : RunInfo
        The identity of the run, for the manifest.
    config : str
        All settings, resolved, as YAML.
    observers : sequence of RunObserver
        Called with the events of the records, in this order.
    regret_bound : callable
        The bound on the regret of the method's decisions; by default there is none.
    personal_models : sequence of str
        The personal models that the run evaluates, some of ``PERSONAL_MODELS``.
    has_average_precision : bool
        Whether the run has average precision beside its metric, which is AUROC.
    resumed : Checkpoint, optional
        The checkpoint from which to resume the run in ``directory``; later records are removed.

    Raises
    ------
    RunError
        If the directory already has a run, is used by another process or cannot be written, if a
        reader would refuse a name of the run, or if an observer cannot start.
    """

    def __init__(
        self,
        directory: Path,
        identity: RunInfo,
        config: str,
        *,
        observers: Sequence[RunObserver] = (),
        regret_bound: RegretBound = _no_regret_bound,
        personal_models: Sequence[str] = (),
        has_average_precision: bool = False,
        resumed: Checkpoint | None = None,
    ) -> None:
        self.directory = directory.absolute()
        self._personal_models = personal_models
        self._has_average_precision = has_average_precision
        _check_names(identity)
        settings = flatten_settings(load_settings(config))
        self._counts_late = settings.get("engine.late_replies") == "count"
        before = None if resumed is None else read_manifest(self.directory)
        with ExitStack() as cleanup:  # closes what is already open if a later step fails
            self._directory_lock = self._prepare(config, resumed)
            cleanup.callback(os.close, self._directory_lock)
            self._manifest = _build_manifest(identity)
            if before is not None and resumed is not None:
                self._manifest |= _build_resumed_manifest(before, resumed, identity, config)
            self._lock = threading.Lock()
            self._summary = RunSummary(regret_bound)
            if resumed is not None and resumed.server_round > 0:
                self._summary.restore(resumed.summary)
            self._observers = tuple(observers)
            try:
                self._open_files(cleanup, resumed)
            except OSError as error:
                raise cannot_write_error(self.directory, error) from None
            self._write_manifest()  # last: from here on, the run exists and ends with a status
            cleanup.pop_all()
        if resumed is not None:
            self._update_settings(config)

    def _prepare(self, config: str, resumed: Checkpoint | None) -> int:
        """Create and lock the directory, restore it to the checkpoint, and return the lock."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            with ExitStack() as cleanup:
                lock = lock_run(self.directory)
                cleanup.callback(os.close, lock)
                if resumed is not None:
                    refuse_links(self.directory)
                    # Tables first: they must not have rounds that rounds.jsonl has already lost.
                    self._open_tables(resumed.records)
                    truncate_records(self.directory, resumed.records)
                elif holds_run(self.directory):
                    raise run_exists_error(self.directory)
                else:
                    remove_run_files(self.directory)
                fsync_parents(self.directory)
                if resumed is None:
                    self._write_settings(config)
                cleanup.pop_all()
        except OSError as error:
            raise cannot_create_error(self.directory, error) from None
        return lock

    def _write_settings(self, config: str) -> None:
        with atomic_write(self.directory / "config.yaml", durable=True) as partial:
            partial.write_text(config)

    def _update_settings(self, config: str) -> None:
        """Write the settings of a resumed run, after the manifest has the previous ones."""
        try:
            self._write_settings(config)
        except RunError as error:
            self._finish("failed", f"{type(error).__name__}: {error}")
            raise

    def _open_files(self, cleanup: ExitStack, resumed: Checkpoint | None) -> None:
        """Open all files, and start all observers."""
        # Unbuffered, so that a partly written line can be removed.
        self._rounds = (self.directory / "rounds.jsonl").open("ab", buffering=0)
        cleanup.callback(self._rounds.close)
        if resumed is None:
            self._open_tables({})
        for observer in self._observers:
            observer.start(self.directory)
            cleanup.callback(observer.close)

    def _open_tables(self, rows: Mapping[str, int]) -> None:
        """Open the tables that grow with the rounds, truncated to these numbers of rows."""
        self._clients = TableWriter(
            self.directory / "clients",
            [c for c in CLIENTS_COLUMNS if self._counts_late or not c.is_optional],
            rows.get("clients", 0),
            build_decisions_table,
        )
        self._evaluations = TableWriter(
            self.directory / "evaluations",
            list_evaluation_columns(
                self._personal_models, has_average_precision=self._has_average_precision
            ),
            rows.get("evaluations", 0),
            partial(
                build_evaluations_table,
                personal_models=self._personal_models,
                has_average_precision=self._has_average_precision,
            ),
        )
        self._tables = {"clients": self._clients, "evaluations": self._evaluations}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            problem = self._finish("completed")
            if problem is not None:
                raise problem
        elif isinstance(error, KeyboardInterrupt | SystemExit):
            self._finish("interrupted")
        else:
            self._finish("failed", f"{type(error).__name__}: {error}")

    def mark_interrupted(self) -> None:
        """Finish as interrupted, unless finished already.

        Use this to end the process while another thread runs the rounds; the writer refuses that
        thread's next round.
        """
        self._finish("interrupted")

    def mark_failed(self, error: RunError) -> None:
        """Finish as failed, unless finished already, for a program that continues all the same."""
        self._finish("failed", f"{type(error).__name__}: {error}")

    def _finish(self, status: str, error: str | None = None) -> RunError | None:
        """Close all files and set the final status; return the first error, if any."""
        with defer_signals(), self._lock:
            if self._manifest["status"] != "running":
                return None
            problem: RunError | None = None
            tables = [table.close for table in self._tables.values()]
            for close in (*tables, self._rounds.close, *(one.close for one in self._observers)):
                try:
                    close()
                except RunError as failure:
                    problem = problem or failure
                except OSError as failure:
                    problem = problem or cannot_write_error(self.directory, failure)
            if problem is not None and error is None:
                status, error = "failed", f"{type(problem).__name__}: {problem}"
            paths = [self.directory / name for name in RECORD_NAMES]
            written = {path.name: str(path) for path in paths if path.exists()}
            for observer in self._observers:
                observer.finish(status, written)
            self._manifest |= {
                "status": status,
                "error": error,
                "ended": get_utc_time(),
                "summary": self._summary.to_json(),
            }
            try:
                self._write_manifest()
            except RunError as failure:
                problem = problem or failure
            os.close(self._directory_lock)
            return problem

    def save_population(
        self,
        population: Population,
        rates: ParticipationRates | None,
        joined: Mapping[int, int] | None = None,
        columns: Mapping[str, Mapping[int, float]] | None = None,
        names: ClientNames = NO_NAMES,
        *,
        hosts: Mapping[int, Host] | None = None,
    ) -> None:
        """Write the table of clients, see ``build_population_table``."""
        table = build_population_table(population, rates, joined, columns, names, hosts=hosts)
        write_table(
            table, self.directory / "population.parquet", durable=True, sorted_column="client"
        )

    def set_entry(self, name: str, entry: Mapping[str, Any]) -> None:
        """Write an entry of the manifest that a run learns after its start.

        Parameters
        ----------
        name : str
            One of ``LATER_ENTRIES``; a resumed run keeps what the earlier legs wrote.
        entry : mapping

        Raises
        ------
        RunError
            If it cannot be written, or the run has ended meanwhile.
        """
        with self._lock:
            self._check_running()
            self._manifest[name] = dict(entry)
            self._write_manifest()

    def _check_running(self) -> None:
        if self._manifest["status"] != "running":
            raise RunError(f"the run in {self.directory} is {self._manifest['status']}")

    def end_round(self, finished: FinishedRound) -> None:
        """Write one round to all records, and pass it on to the observers.

        Raises
        ------
        RunError
            If the round cannot be written, as on a full disk, or the run has ended meanwhile.
        """
        with self._lock:
            self._check_running()
            try:
                self._write_round(finished)
            except OSError as error:
                raise cannot_write_error(self.directory, error) from None

    def flush_and_get_offsets(self) -> dict[str, int]:
        """Write buffered data, and return the lengths of the files (bytes) and tables (rows).

        All are durable when this returns, except the files of observers.

        Raises
        ------
        RunError
            If it cannot be written.
        """
        with self._lock:
            try:
                for table in self._tables.values():
                    table.flush()
                for observer in self._observers:
                    observer.flush()
                os.fsync(self._rounds.fileno())
            except OSError as error:
                raise cannot_write_error(self.directory, error) from None
            files = {
                path.relative_to(self.directory).as_posix(): path.stat().st_size
                for path in list_append_only_files(self.directory)
            }
            return files | {name: table.num_rows for name, table in self._tables.items()}

    @property
    def manifest(self) -> Mapping[str, Any]:
        """The manifest as it is now."""
        return self._manifest

    @property
    def admission_counts(self) -> dict[int, int]:
        """The number of rounds so far in which each client's update counted; 0 left out."""
        return self._summary.admission_counts

    def get_summary_state(self) -> StateArrays:
        """Return the state of the manifest's summary."""
        return self._summary.to_arrays()

    def _write_round(self, finished: FinishedRound) -> None:
        record, report, evaluations = finished.record, finished.report, finished.evaluations
        self._summary.add_round(record, report)
        self._evaluations.add_rows((record.round - 1, e) for e in finished.initial_evaluations)
        evaluation_by_client = {e.client: e for e in evaluations}
        self._clients.add_rows(
            (record.round, decision, evaluation_by_client.get(decision.client))
            for decision in report.decisions
        )
        self._evaluations.add_rows((record.round, e) for e in evaluations)
        self._write_line(json.dumps(record.to_json(), allow_nan=False) + "\n")
        self._manifest["rounds_completed"] = record.round
        for observer in self._observers:
            observer.end_round(finished)

    def _write_line(self, line: str) -> None:
        """Write a line of rounds.jsonl completely or not at all."""
        content, length = line.encode(), os.fstat(self._rounds.fileno()).st_size
        try:
            complete = self._rounds.write(content) == len(content)
        except OSError:
            self._rounds.truncate(length)
            raise
        if not complete:
            self._rounds.truncate(length)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def save_model(self, arrays: Mapping[str, NDArray[Any]], name: str = MODEL) -> None:
        """Write a model to the file ``name`` atomically.

        Raises
        ------
        RunError
            If it cannot be written.
        """
        with atomic_write(self.directory / name, durable=True) as partial:
            save_arrays(arrays, partial)

    def save_model_card(self, card: Mapping[str, Any]) -> None:
        """Write the card of the saved model atomically; its values are JSON values.

        Raises
        ------
        RunError
            If it cannot be written.
        """
        with atomic_write(self.directory / MODEL_CARD, durable=True) as partial:
            partial.write_text(json.dumps(card, indent=1, allow_nan=False) + "\n")

    def _write_manifest(self) -> None:
        with atomic_write(self.directory / MANIFEST_FILE, durable=True) as partial:
            partial.write_text(json.dumps(self._manifest, indent=2, allow_nan=False) + "\n")


def _check_names(identity: RunInfo) -> None:
    """Refuse names that a reader would refuse, before the run starts."""
    try:
        for name in ("experiment", "strategy"):
            read_name(getattr(identity, name), name)
    except CorruptRecordError as error:
        raise RunError(str(error)) from None


def _build_manifest(identity: RunInfo) -> dict[str, Any]:
    """Return the manifest of a new run."""
    facts = asdict(identity)
    code = {name: facts.pop(name) for name in ("source", "commit", "packages")}
    return {
        "format": FORMAT_VERSION,
        "status": "running",
        **facts,
        "rounds_completed": 0,
        "started": get_utc_time(),
        "ended": None,
        "error": None,
        "source": code["source"],
        "commit": code["commit"],
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": code["packages"],
        "resumed": [],
    }


def _build_resumed_manifest(
    before: Mapping[str, Any], resumed: Checkpoint, identity: RunInfo, config: str
) -> dict[str, Any]:
    """Return the fields of a resumed run's manifest that differ from those of a new run."""
    changed = find_changed_settings(resumed.settings, flatten_settings(load_settings(config)))
    resume = {
        "round": resumed.server_round,
        "time": get_utc_time(),
        "commit": identity.commit,
        "before": {
            key: to_json_number(value) if isinstance(value, float) else value
            for key, value in changed.items()
        },
    }
    return {
        **{name: before[name] for name in LATER_ENTRIES if name in before},
        "started": before["started"],
        "rounds_completed": resumed.server_round,
        "resumed": [*before["resumed"], resume],
    }
