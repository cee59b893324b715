"""Write the records of a run while it goes on."""

import errno
import json
import math
import os
import platform
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from numpy.typing import NDArray
from safetensors.numpy import save_file

from ..client.availability.rates import SimulatedRates
from ..errors import RunError
from ..report import ClientEvaluation, TrainReport
from ..state import StateArrays
from ..types import Population
from .checkpoint import Checkpoint
from .directory import (
    MANIFEST,
    RECORDS,
    cannot_make,
    clear,
    files_that_go_on,
    holds_a_run,
    locked,
    refuse_links,
    rewind,
)
from .files import cannot_write, replacing, sync_above
from .identity import RunIdentity
from .interruption import uninterrupted
from .legs import changed_settings
from .observer import Observer
from .provenance import now
from .reader import FORMAT, read_manifest
from .regret import RegretBound
from .round_record import PARTS, RoundRecord
from .settings import flat_settings, load_settings
from .summary import Summary
from .tables import (
    COLUMNS,
    TableWriter,
    client_row,
    evaluation_table,
    population_table,
    write_whole,
)
from .values import DamagedError, read_name, written_number

ROUND_SCALARS = (
    "global_loss",
    "global_accuracy",
    "epsilon",
    "admitted",
    "inclusion_mass",
    "theta",
    "weight_error",
    "decision_loss",
    "decision_loss_sum",
    "kl_to_data",
)


MODEL, MEAN_MODEL = "model.safetensors", "mean_model.safetensors"
"""The model after the last round, and the mean of the models that clients start from next."""


def _no_bound(_decisions: int, _clients: int) -> None:
    """Return the bound of a method that has none."""


class RunRecords:
    """Writes the records of one run; use as a context manager.

    Leaving it closes all files and sets the final status: completed, interrupted
    (KeyboardInterrupt, SystemExit) or failed (any other exception).

    Parameters
    ----------
    directory : Path
        Where to write; made if missing. Must not hold a run already, unless that one goes on. What
        an earlier start left there that was killed before there was a run is removed.
    identity : RunIdentity
        Which run it is, for the manifest.
    config : str
        All settings, resolved, as YAML.
    observers : sequence of Observer
        Who else is told of the run, in this order.
    regret_bound : callable
        The bound on the regret of the method's decisions; by default there is none.
    resumed : Checkpoint, optional
        Go on with the run in ``directory`` from there: what its records hold beyond is removed.

    Raises
    ------
    RunError
        If the directory holds a run already, is used by another process or cannot be written, a
        name of the run is none that a reader takes, or an observer cannot begin.
    """

    def __init__(
        self,
        directory: Path,
        identity: RunIdentity,
        config: str,
        *,
        observers: Sequence[Observer] = (),
        regret_bound: RegretBound = _no_bound,
        resumed: Checkpoint | None = None,
    ) -> None:
        self.directory = directory.absolute()
        _check_names(identity)
        before = None if resumed is None else read_manifest(self.directory)
        with ExitStack() as begun:  # where something cannot begin, what has begun is closed
            self._directory_lock = self._prepare(config, resumed)
            begun.callback(os.close, self._directory_lock)
            self._manifest = _first_manifest(identity)
            if before is not None and resumed is not None:
                self._manifest |= _going_on(before, resumed, identity, config)
            self._lock = threading.Lock()
            self._summary = Summary(regret_bound)
            if resumed is not None and resumed.server_round > 0:
                self._summary.restore(resumed.summary)
            self._observers = tuple(observers)
            try:
                self._open(begun, resumed)
            except OSError as error:
                raise cannot_write(self.directory, error) from None
            self._write_manifest()  # last: from here on there is a run, which always gets an end
            begun.pop_all()
        if resumed is not None:
            self._change_settings(config)

    def _prepare(self, config: str, resumed: Checkpoint | None) -> int:
        """Make and lock the directory, bring it to where the run is, and return the lock."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            with ExitStack() as begun:
                lock = locked(self.directory)
                begun.callback(os.close, lock)
                if resumed is not None:
                    refuse_links(self.directory)
                    # Tables first: they never have a round that rounds.jsonl has lost already.
                    self._open_tables(resumed.records)
                    rewind(self.directory, resumed.records)
                elif (self.directory / MANIFEST).exists():
                    raise holds_a_run(self.directory)
                else:
                    clear(self.directory)
                sync_above(self.directory)
                if resumed is None:
                    self._write_settings(config)
                begun.pop_all()
        except OSError as error:
            raise cannot_make(self.directory, error) from None
        return lock

    def _write_settings(self, config: str) -> None:
        with replacing(self.directory / "config.yaml", synced=True) as part:
            part.write_text(config)

    def _change_settings(self, config: str) -> None:
        """Write the settings of a run that goes on, after the manifest has those before."""
        try:
            self._write_settings(config)
        except RunError as error:
            self._finish("failed", f"{type(error).__name__}: {error}")
            raise

    def _open(self, begun: ExitStack, resumed: Checkpoint | None) -> None:
        """Open all files, and let all observers begin."""
        # Unbuffered, so that a line that did not go in can be taken back.
        self._rounds = (self.directory / "rounds.jsonl").open("ab", buffering=0)
        begun.callback(self._rounds.close)
        if resumed is None:
            self._open_tables({})
        for observer in self._observers:
            observer.start(self.directory)
            begun.callback(observer.close)

    def _open_tables(self, rows: Mapping[str, int]) -> None:
        """Open the tables that grow, which keep so many of their first rows."""
        self._tables = {
            name: TableWriter(self.directory / name, columns, rows.get(name, 0))
            for name, columns in COLUMNS.items()
        }
        self._clients, self._evaluations = self._tables["clients"], self._tables["evaluations"]

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

    def interrupt(self) -> None:
        """Finish as interrupted, unless finished already.

        For whoever ends the process while another thread runs the rounds; that thread's next
        round is refused.
        """
        self._finish("interrupted")

    def _finish(self, status: str, error: str | None = None) -> RunError | None:
        """Close all files, whichever can be, and say which cannot."""
        with uninterrupted(), self._lock:
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
                    problem = problem or cannot_write(self.directory, failure)
            if problem is not None and error is None:
                status, error = "failed", f"{type(problem).__name__}: {problem}"
            paths = [self.directory / name for name in RECORDS]
            written = {path.name: str(path) for path in paths if path.exists()}
            for observer in self._observers:
                observer.finish(status, written)
            self._manifest |= {
                "status": status,
                "error": error,
                "ended": now(),
                "summary": self._summary.as_dict(),
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
        rates: SimulatedRates | None,
        joined: Mapping[int, int] | None = None,
        columns: Mapping[str, Mapping[int, float]] | None = None,
    ) -> None:
        """Write the table of clients, see ``population_table``."""
        table = population_table(population, rates, joined, columns)
        write_whole(table, self.directory / "population.parquet", synced=True, ascending="client")

    def set_privacy(self, spent: Mapping[str, Any]) -> None:
        """Write the privacy cost of the released models, before the next release.

        Raises
        ------
        RunError
            If it cannot be written, or the run was ended meanwhile.
        """
        with self._lock:
            self._check_running()
            self._manifest["privacy"] = dict(spent)
            self._write_manifest()

    def _check_running(self) -> None:
        if self._manifest["status"] != "running":
            raise RunError(f"the run in {self.directory} is {self._manifest['status']}")

    def add_evaluations(self, number: int, evaluations: Sequence[ClientEvaluation]) -> None:
        """Write evaluations of the model after round ``number``; 0 is the first model."""
        with self._lock:
            self._evaluations.add_table(evaluation_table(number, evaluations))

    def add_round(
        self,
        record: RoundRecord,
        report: TrainReport,
        evaluations: Sequence[ClientEvaluation],
    ) -> None:
        """Write one round to all records.

        Raises
        ------
        RunError
            If it cannot be written, as on a full disk, or the run was ended meanwhile.
        """
        with self._lock:
            self._check_running()
            try:
                self._write_round(record, report, evaluations)
            except OSError as error:
                raise cannot_write(self.directory, error) from None

    def position(self) -> dict[str, int]:
        """Write buffered data, and return how long the files are in bytes, the tables in rows.

        All of them are on the disk when this returns, but those of observers.

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
                raise cannot_write(self.directory, error) from None
            files = {
                path.relative_to(self.directory).as_posix(): path.stat().st_size
                for path in files_that_go_on(self.directory)
            }
            return files | {name: table.num_rows for name, table in self._tables.items()}

    @property
    def admitted_rounds(self) -> dict[int, int]:
        """In how many rounds so far the update of each client counted; others in none."""
        return self._summary.admitted_rounds

    def summary_state(self) -> StateArrays:
        """Return the state of the manifest's summary."""
        return self._summary.state()

    def _write_round(
        self,
        record: RoundRecord,
        report: TrainReport,
        evaluations: Sequence[ClientEvaluation],
    ) -> None:
        self._summary.add(record, report)
        tested = {e.client: e for e in evaluations}
        self._clients.add(
            client_row(record.round, d, tested.get(d.client)) for d in report.decisions
        )
        self._evaluations.add_table(evaluation_table(record.round, evaluations))
        self._append_line(json.dumps(record.written(), allow_nan=False) + "\n")
        self._manifest["rounds_completed"] = record.round
        scalars = dict(_scalars(record))
        for observer in self._observers:
            observer.log_round(record.round, scalars)

    def _append_line(self, line: str) -> None:
        """Write a line of rounds.jsonl, all of it or nothing."""
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
        """Write a model to the file ``name``, all at once or not at all.

        Raises
        ------
        RunError
            If it cannot be written.
        """
        with replacing(self.directory / name, synced=True) as part:
            save_file(dict(arrays), part)

    def _write_manifest(self) -> None:
        with replacing(self.directory / MANIFEST, synced=True) as part:
            part.write_text(json.dumps(self._manifest, indent=2, allow_nan=False) + "\n")


def _check_names(identity: RunIdentity) -> None:
    """Refuse names that no reader takes, before the run begins."""
    try:
        for name in ("experiment", "strategy"):
            read_name(getattr(identity, name), name)
    except DamagedError as error:
        raise RunError(str(error)) from None


def _first_manifest(identity: RunIdentity) -> dict[str, Any]:
    """Return the manifest of a run that begins."""
    of_run = asdict(identity)
    code = {name: of_run.pop(name) for name in ("source", "commit", "packages")}
    return {
        "format": FORMAT,
        "status": "running",
        **of_run,
        "rounds_completed": 0,
        "started": now(),
        "ended": None,
        "error": None,
        "source": code["source"],
        "commit": code["commit"],
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": code["packages"],
        "resumed": [],
    }


def _going_on(
    before: Mapping[str, Any], resumed: Checkpoint, identity: RunIdentity, config: str
) -> dict[str, Any]:
    """Return what the manifest says of a run that goes on, beside what it says of a new one."""
    changed = changed_settings(resumed.settings, flat_settings(load_settings(config)))
    going_on = {
        "round": resumed.server_round,
        "time": now(),
        "commit": identity.commit,
        "before": {
            key: written_number(value) if isinstance(value, float) else value
            for key, value in changed.items()
        },
    }
    spent = {"privacy": before["privacy"]} if "privacy" in before else {}
    return {
        **spent,
        "started": before["started"],
        "rounds_completed": resumed.server_round,
        "resumed": [*before["resumed"], going_on],
    }


def _scalars(record: RoundRecord) -> Iterable[tuple[str, float]]:
    for name in ROUND_SCALARS:
        value = getattr(record, name)
        if value is not None and not math.isnan(value):
            yield f"round/{name}", value
    for part in PARTS:
        for group, values in (getattr(record, part) or {}).items():
            for name, value in (values or {}).items():
                if not math.isnan(value):
                    yield f"{part}_{group}/{name}", value
