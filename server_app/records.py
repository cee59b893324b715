"""What a run leaves behind, written while it goes on.

``config.yaml``         all settings, resolved
``manifest.json``       versions, commit, engine, device, seed, start, end, status
``population.parquet``  one row per client: what the server knows of it, and p_n of a simulation
``rounds.jsonl``        one line a round, flushed
``clients/``            Parquet, one row per client asked and round: the audit trail
``evaluations/``        Parquet, one row per client evaluated and round
``model.safetensors``   the last model
``tensorboard/``        event files

An interrupted or failed run keeps all of these up to its last complete round. One that goes on
(``resume``) continues them where its checkpoint was.
"""

import errno
import fcntl
import json
import math
import os
import platform
import shutil
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import fmean
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from safetensors.numpy import save_file

from conf import Composed
from conf.errors import RunError
from conf.schema.strategy import StrategySettings
from server_app.checkpoint import FOLDER, Checkpoint, read_manifest
from server_app.fairness import spread, weighted_mean
from server_app.files import cannot_write, replacing
from server_app.job import uninterrupted
from server_app.regret import decision_summary
from server_app.trackers import check_installed, start_trackers
from strategies.report import ClientDecision, ClientEvaluation, TrainReport
from strategies.state import StateArrays
from strategies.types import FloatArray, Population

CLIENTS_SCHEMA = pa.schema(
    [
        pa.field("round", pa.int32(), nullable=False),
        pa.field("client", pa.int32(), nullable=False),
        pa.field("priority", pa.bool_(), nullable=False),
        pa.field("status", pa.string(), nullable=False),
        pa.field("reason", pa.string()),
        pa.field("num_examples", pa.int64()),
        pa.field("loss", pa.float64()),
        pa.field("accuracy", pa.float64()),
        pa.field("response", pa.float64()),
        pa.field("mixing", pa.float64()),
        pa.field("omega", pa.float64()),
        pa.field("draws", pa.int32()),
        pa.field("update_norm", pa.float64()),
        pa.field("weight", pa.float64(), nullable=False),
        pa.field("test_loss", pa.float64()),
        pa.field("test_accuracy", pa.float64()),
    ]
)
EVALUATIONS_SCHEMA = pa.schema(
    [
        pa.field("round", pa.int32(), nullable=False),
        pa.field("client", pa.int32(), nullable=False),
        pa.field("priority", pa.bool_(), nullable=False),
        pa.field("num_examples", pa.int64()),
        pa.field("loss", pa.float64()),
        pa.field("accuracy", pa.float64()),
        pa.field("test_num_examples", pa.int64()),
        pa.field("test_loss", pa.float64()),
        pa.field("test_accuracy", pa.float64()),
        pa.field("test_metric", pa.float64()),
    ]
)
POPULATION_SCHEMA = pa.schema(
    [
        pa.field("client", pa.int32(), nullable=False),
        pa.field("priority", pa.bool_(), nullable=False),
        pa.field("priority_weight", pa.float64(), nullable=False),
        pa.field("participation_rate", pa.float64()),
    ]
)
PACKAGES = (
    "fedquorum",
    "flwr",
    "torch",
    "numpy",
    "hydra-core",
    "ray",
    "torchvision",
    "flwr-datasets",
)
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
TEST_GROUPS = ("priority", "non_priority", "all")
FLUSH_SECONDS = 10.0
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
    "kl",
)
SOURCE = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class RoundRecord:
    """One line of ``rounds.jsonl``; see ``docs/records.md`` for each field."""

    round: int
    epsilon: float | None
    global_loss: float
    global_accuracy: float
    asked: int
    trained: int
    silent: int
    unavailable: int
    rejected: int
    failed: int
    admitted: int
    bytes_down: int
    bytes_up: int
    seconds: float
    state_bytes: int
    weight_error: float | None
    decision_loss: float | None
    decision_loss_sum: float | None
    kl: float | None
    inclusion_mass: float | None
    theta: float | None
    priority_data: float | None
    unknown: tuple[int, ...]
    test: Mapping[str, Mapping[str, float] | None] | None


def round_record(
    report: TrainReport,
    evaluations: Sequence[ClientEvaluation],
    *,
    bytes_down: int,
    bytes_up: int,
    seconds: float,
    state_bytes: int,
    rates: Sequence[float] | None,
    metric: str,
    all_evaluated: bool,
    previous: RoundRecord | None = None,
) -> RoundRecord:
    """Return the record of a round.

    ``rates``: p_n by client id where a simulation knows it. ``metric``: the setting
    ``evaluation.metric``, what the spread over clients is of. ``all_evaluated``: not only priority
    clients were. ``previous``: the record of the round before, for what is summed over rounds.
    """
    draws = report.call.draws
    omega = {d.client: d.omega for d in report.decisions if d.omega is not None}
    return RoundRecord(
        round=report.server_round,
        epsilon=report.call.epsilon,
        global_loss=report.measure.loss,
        global_accuracy=report.measure.accuracy,
        asked=len(report.call.clients),
        **{
            status: report.count(status)
            for status in ("trained", "silent", "unavailable", "rejected", "failed")
        },
        admitted=report.admitted,
        bytes_down=bytes_down,
        bytes_up=bytes_up,
        seconds=seconds,
        state_bytes=state_bytes,
        weight_error=weight_error(omega, rates),
        decision_loss=report.decision_loss,
        decision_loss_sum=_running_sum(previous, report.decision_loss),
        kl=report.divergence,
        inclusion_mass=report.inclusion_mass,
        theta=report.theta,
        priority_data=None if draws is None else draws.priority_data,
        unknown=report.unknown,
        test=evaluation_summary(evaluations, metric, all_evaluated),
    )


def _running_sum(previous: RoundRecord | None, loss: float | None) -> float | None:
    before = None if previous is None else previous.decision_loss_sum
    return before if loss is None else (before or 0.0) + loss


def weight_error(omega: Mapping[int, float], rates: Sequence[float] | None) -> float | None:
    """Return the round's term of Theorem 3, (1 / N) sum_n (p_n omega_n - 1)^2 (Wang and Ji)."""
    if rates is None or not omega:
        return None
    return fmean((rates[client] * own - 1.0) ** 2 for client, own in omega.items())


def evaluation_summary(
    evaluations: Sequence[ClientEvaluation], metric: str, all_evaluated: bool
) -> dict[str, Mapping[str, float] | None] | None:
    """Return ``test`` of a round's record, None if nobody's test part was measured.

    Parameters
    ----------
    evaluations : sequence of ClientEvaluation
        One for each client that was evaluated after the round.
    metric : str
        The setting ``evaluation.metric``, what the spread over clients is of.
    all_evaluated : bool
        Whether not only priority clients were asked.
    """
    tested = [e for e in evaluations if e.test_num_examples > 0]
    if not tested:
        return None
    priority = [e for e in tested if e.priority]
    others = [e for e in tested if not e.priority]
    return {
        "priority": _group_summary(priority, metric, lambda e: e.objective_data),
        "non_priority": _group_summary(others, metric, lambda e: e.num_examples),
        "all": _group_summary(tested, metric, lambda e: e.num_examples) if all_evaluated else None,
    }


def _group_summary(
    tested: Sequence[ClientEvaluation], metric: str, weight: Callable[[ClientEvaluation], float]
) -> Mapping[str, float] | None:
    """Return weighted means of what was measured, and the spread over clients of ``metric``.

    ``left_out`` counts the clients for which the metric is not defined.
    """
    if not tested:
        return None
    defined = [e for e in tested if not math.isnan(_value(e, metric))]
    means = {
        name: weighted_mean([_value(e, name) for e in own], [weight(e) for e in own])
        for name, own in (("loss", tested), ("accuracy", tested), (metric, defined))
    }
    values = [_value(e, metric) for e in defined]
    return {
        **means,
        "left_out": len(tested) - len(defined),
        **(spread(values, higher_is_better=metric != "loss") if values else {}),
    }


def _value(evaluation: ClientEvaluation, metric: str) -> float:
    if metric == "loss":
        return evaluation.test_loss
    return evaluation.test_accuracy if metric == "accuracy" else evaluation.test_metric


class RunRecords:
    """Writes the records of one run; use as a context manager.

    Leaving it closes all files and sets the final status: completed, interrupted
    (KeyboardInterrupt) or failed (any other exception).

    Parameters
    ----------
    directory : Path
        Where to write; made if missing. Must not hold a run already, unless that one goes on.
    composed : Composed
        The run's settings.
    engine : str
        ``in-process`` or ``flower``, for the manifest.
    resumed : Checkpoint, optional
        Go on with the run in ``directory`` from there: what its records hold beyond is removed.

    Raises
    ------
    RunError
        If the directory holds a run already, is used by another process or cannot be written, or
        if a tracker cannot begin.
    SettingsError
        If the tracker is not installed.
    """

    def __init__(
        self,
        directory: Path,
        composed: Composed,
        *,
        engine: str,
        resumed: Checkpoint | None = None,
    ) -> None:
        check_installed(composed.settings.tracker)
        self.directory = directory.absolute()
        if resumed is None and (self.directory / "manifest.json").exists():
            raise RunError(f"output-dir must not hold a run already, got {self.directory}")
        before = None if resumed is None else read_manifest(self.directory)
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._directory_lock = _locked(self.directory)
            if resumed is not None:
                _rewind(self.directory, resumed.records)
            with replacing(self.directory / "config.yaml") as part:
                settings = replace(composed.settings, resume=None)
                part.write_text(replace(composed, settings=settings).to_yaml())
        except OSError as error:
            raise RunError(f"output-dir must be writable, got {self.directory}: {error}") from None
        self._manifest: dict[str, Any] = {
            "status": "running",
            "experiment": composed.experiment,
            "overrides": [word for word in composed.overrides if not word.startswith("resume=")],
            "strategy": composed.settings.strategy.name,
            "seed": composed.settings.seed,
            "engine": engine,
            "device": composed.settings.client.device,
            "rounds": composed.settings.rounds,
            "rounds_completed": 0,
            "started": _now(),
            "ended": None,
            "error": None,
            "source": str(SOURCE),
            "commit": _commit(),
            "python": platform.python_version(),
            "platform": platform.platform(),
            "packages": _versions(),
            "resumed": [],
        }
        if before is not None and resumed is not None:
            going_on = {"round": resumed.server_round, "time": _now(), "commit": _commit()}
            self._manifest |= {
                "started": before["started"],
                "rounds_completed": resumed.server_round,
                "resumed": [*before.get("resumed", []), going_on],
            }
        # Takes seconds to import: not for those who only read records.
        from torch.utils.tensorboard import SummaryWriter

        self._lock = threading.Lock()
        self._summary = _Summary(composed.settings.strategy)
        if resumed is not None and resumed.server_round > 0:
            self._summary.restore(resumed.summary)
        self._trackers = start_trackers(composed, self.directory)
        try:
            # Unbuffered, so that a line that did not go in can be taken back.
            self._rounds = (self.directory / "rounds.jsonl").open("ab", buffering=0)
            self._clients = _ParquetParts(self.directory / "clients", CLIENTS_SCHEMA)
            self._evaluations = _ParquetParts(self.directory / "evaluations", EVALUATIONS_SCHEMA)
            self._tensorboard = SummaryWriter(str(self.directory / "tensorboard"))
        except OSError as error:
            raise cannot_write(self.directory, error) from None
        self._write_manifest()  # last: from here on there is a run, which always gets an end

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
        elif isinstance(error, KeyboardInterrupt):
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
            for part in (self._clients, self._evaluations, self._rounds, self._tensorboard):
                try:
                    part.close()
                except RunError as told:
                    problem = problem or told
                except OSError as told:
                    problem = problem or cannot_write(self.directory, told)
            if problem is not None and error is None:
                status, error = "failed", f"{type(problem).__name__}: {problem}"
            paths = [self.directory / name for name in RECORDS]
            self._trackers.finish(status, {p.name: str(p) for p in paths if p.exists()})
            self._manifest |= {
                "status": status,
                "error": error,
                "ended": _now(),
                "summary": self._summary.as_dict(),
            }
            try:
                self._write_manifest()
            except RunError as told:
                problem = problem or told
            os.close(self._directory_lock)
            return problem

    def save_population(self, population: Population, rates: Sequence[float] | None) -> None:
        """Write who the clients are; ``rates`` is p_n by client id where a simulation knows it."""
        clients = population.ascending.tolist()
        columns = {
            "client": clients,
            "priority": [k in population.priority for k in clients],
            "priority_weight": [population.priority_weight(k) for k in clients],
            "participation_rate": None if rates is None else [rates[k] for k in clients],
        }
        table = pa.table(
            [pa.array(columns[f.name] or [None] * len(clients), f.type) for f in POPULATION_SCHEMA],
            schema=POPULATION_SCHEMA,
        )
        _write_whole(table, self.directory / "population.parquet")

    def add_evaluations(self, number: int, evaluations: Sequence[ClientEvaluation]) -> None:
        """Write evaluations of the model after round ``number``; 0 is the first model."""
        with self._lock:
            self._evaluations.add(_evaluation_row(number, e) for e in evaluations)

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
            if self._manifest["status"] != "running":
                raise RunError(f"the run in {self.directory} is {self._manifest['status']}")
            try:
                self._write_round(record, report, evaluations)
            except OSError as error:
                raise cannot_write(self.directory, error) from None

    def position(self) -> dict[str, int]:
        """Write what is still kept, and return all files that go on and their lengths in bytes.

        Raises
        ------
        RunError
            If it cannot be written.
        """
        with self._lock:
            try:
                self._clients.flush()
                self._evaluations.flush()
                self._tensorboard.flush()
                os.fsync(self._rounds.fileno())
            except OSError as error:
                raise cannot_write(self.directory, error) from None
            return {
                path.relative_to(self.directory).as_posix(): path.stat().st_size
                for path in _files_that_go_on(self.directory)
            }

    def summary_state(self) -> StateArrays:
        """Return what the manifest's summary is made of, so far."""
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
            _client_row(record.round, d, tested.get(d.client)) for d in report.decisions
        )
        self._evaluations.add(_evaluation_row(record.round, e) for e in evaluations)
        line = {item.name: _json_value(getattr(record, item.name)) for item in fields(record)}
        self._append_line(json.dumps(line, allow_nan=False) + "\n")
        self._manifest["rounds_completed"] = record.round
        scalars = dict(_scalars(record))
        for tag, value in scalars.items():
            self._tensorboard.add_scalar(tag, value, record.round)
        self._trackers.log_round(record.round, scalars)

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

    def save_model(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Write the model, all at once or not at all.

        Raises
        ------
        RunError
            If it cannot be written.
        """
        with replacing(self.directory / "model.safetensors") as part:
            save_file(dict(arrays), part)

    def _write_manifest(self) -> None:
        with replacing(self.directory / "manifest.json") as part:
            part.write_text(json.dumps(self._manifest, indent=2) + "\n")


class _Summary:
    """The diagnostics of a whole run.

    theta_T (FedALIGN, eq. 7), mean A, who was admitted how often; the regret of the mixing
    decisions (AAggFF, eq. 5).
    """

    def __init__(self, strategy: StrategySettings) -> None:
        self._strategy = strategy
        self._decision_losses: list[float] = []
        self._responses: list[FloatArray] = []
        self._masses: list[float] = []
        self._thetas: list[float] = []
        self._empty = 0
        self._admitted: Counter[int] = Counter()

    def add(self, record: RoundRecord, report: TrainReport) -> None:
        if report.decision_loss is not None and report.response is not None:
            self._decision_losses.append(report.decision_loss)
            self._responses.append(report.response)
        if record.inclusion_mass is not None and record.theta is not None:
            self._masses.append(record.inclusion_mass)
            self._thetas.append(record.theta)
        self._empty += record.admitted == 0
        self._admitted.update(d.client for d in report.decisions if d.weight != 0.0)

    def state(self) -> StateArrays:
        return {
            "decision_losses": np.array(self._decision_losses),
            "responses": np.array(self._responses),
            "masses": np.array(self._masses),
            "thetas": np.array(self._thetas),
            "empty": np.array(self._empty),
            "admitted": np.array(sorted(self._admitted.items()), dtype=np.int64).reshape(-1, 2),
        }

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        self._decision_losses = state["decision_losses"].tolist()
        self._responses = list(state["responses"])
        self._masses = state["masses"].tolist()
        self._thetas = state["thetas"].tolist()
        self._empty = int(state["empty"])
        self._admitted = Counter({int(k): int(n) for k, n in state["admitted"]})

    def as_dict(self) -> dict[str, Any]:
        return {
            "theta": fmean(self._thetas) if self._thetas else None,
            "inclusion_mass": fmean(self._masses) if self._masses else None,
            "empty_rounds": self._empty,
            "admitted_rounds": {str(k): n for k, n in sorted(self._admitted.items())},
            "mixing": decision_summary(self._strategy, self._decision_losses, self._responses),
        }


class _ParquetParts:
    """A Parquet data set in a folder, written in parts: a part is whole or not there.

    A Parquet file cannot be read before its footer is written, so rows are kept for at most
    ``FLUSH_SECONDS`` and then written as a file of their own.
    """

    def __init__(self, folder: Path, schema: pa.Schema) -> None:
        self._folder = folder
        self._schema = schema
        self._rows: list[dict[str, Any]] = []
        self._flushed = time.monotonic()
        folder.mkdir(exist_ok=True)
        self._parts = len(list(folder.iterdir()))

    def add(self, rows: Iterable[dict[str, Any]]) -> None:
        self._rows.extend(rows)
        if time.monotonic() - self._flushed > FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write the rows that are still kept."""
        if self._rows:
            self._write()

    def close(self) -> None:
        """Write the rows that are still kept; an empty data set gets one empty part."""
        if self._rows or self._parts == 0:
            self._write()

    def _write(self) -> None:
        table = pa.Table.from_pylist(self._rows, schema=self._schema)
        _write_whole(table, self._folder / f"part-{self._parts:05d}.parquet")
        self._parts += 1
        self._rows = []
        self._flushed = time.monotonic()


def _write_whole(table: pa.Table, path: Path) -> None:
    with replacing(path) as part:
        pq.write_table(table, part)


def _files_that_go_on(directory: Path) -> list[Path]:
    """Return the files of a run that grow or come with its rounds."""
    folders = ("clients", "evaluations", "tensorboard")
    found = [path for name in folders for path in (directory / name).glob("*")]
    return [path for path in (directory / "rounds.jsonl", *found) if path.is_file()]


def _rewind(directory: Path, position: Mapping[str, int]) -> None:
    """Bring the records back to what they were when ``RunRecords.position`` was asked."""
    for path in _files_that_go_on(directory):
        size = position.get(path.relative_to(directory).as_posix())
        if size is None:
            path.unlink()
        else:
            os.truncate(path, size)
    for part in (*directory.glob(".*.part"), *directory.glob("checkpoints/.*.part")):
        part.unlink()


def _locked(directory: Path) -> int:
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
        raise RunError(f"output-dir must not hold a run already, got {directory}")
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
            raise RunError(f"output-dir must be writable, got {directory}: {error}") from None
        else:
            return directory


def _client_row(
    round_number: int, decision: ClientDecision, tested: ClientEvaluation | None
) -> dict[str, Any]:
    return {
        "round": round_number,
        **{item.name: getattr(decision, item.name) for item in fields(decision)},
        "test_loss": None if tested is None else _finite(tested.test_loss),
        "test_accuracy": None if tested is None else _finite(tested.test_accuracy),
    }


def _evaluation_row(round_number: int, evaluation: ClientEvaluation) -> dict[str, Any]:
    counts = {
        name: None if math.isnan(value) else int(value)
        for name, value in (
            ("num_examples", evaluation.num_examples),
            ("test_num_examples", evaluation.test_num_examples),
        )
    }
    return {
        "round": round_number,
        "client": evaluation.client,
        "priority": evaluation.priority,
        **counts,
        "loss": _finite(evaluation.loss),
        "accuracy": _finite(evaluation.accuracy),
        "test_loss": _finite(evaluation.test_loss),
        "test_accuracy": _finite(evaluation.test_accuracy),
        "test_metric": _finite(evaluation.test_metric),
    }


def _scalars(record: RoundRecord) -> Iterable[tuple[str, float]]:
    for name in ROUND_SCALARS:
        value = getattr(record, name)
        if value is not None and not math.isnan(value):
            yield f"round/{name}", value
    for group, values in (record.test or {}).items():
        for name, value in (values or {}).items():
            if not math.isnan(value):
                yield f"test_{group}/{name}", value


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None


def _json_value(value: Any) -> Any:
    """JSON has no NaN and no infinity: null and, for a threshold, the word that Hydra reads."""
    if isinstance(value, Mapping):
        return {key: _json_value(item) for key, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else ("inf" if value > 0 else "-inf")
    return value


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found


def _commit() -> str | None:
    """Return the source's git commit, with "-dirty" if it was changed; None outside git.

    A bundle installed by Flower is no checkout; its folder, which carries the bundle's hash, is
    the manifest's ``source``.
    """
    if not (SOURCE / ".git").exists():
        return None
    command = ["git", "-C", str(SOURCE), "describe", "--always", "--dirty", "--abbrev=40"]
    try:
        found = subprocess.run(
            [*command, "--exclude=*"], capture_output=True, text=True, check=True, timeout=10
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip()
