"""Report a run to TensorBoard and, if one is set, to a tracker.

All are observers of the library's ``RunWriter``. TensorBoard's files are part of the records. A
tracker (MLflow, Weights & Biases) receives the settings, the numbers of every round, and at the end
the status and the paths of the records. If a tracker fails, the run prints one line and continues
without it.
"""

import logging
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from fedquorum.errors import RunError, SettingsError
from fedquorum.io import lock
from fedquorum.records.callback import FinishedRound, RunObserver
from fedquorum.records.settings import flatten_settings

from conf import ComposedConfig
from conf.schema.tracker import MlflowSettings, TrackerSettings, WandbSettings

if TYPE_CHECKING:
    import mlflow
    from torch.utils.tensorboard import FileWriter

TRACKER_PACKAGES = {"mlflow": "mlflow-skinny", "wandb": "wandb"}
MAX_MLFLOW_VALUE_LENGTH = 6000  # characters of a parameter's value; MLflow refuses longer ones
FLUSH_SECONDS = 1.0
"""Between two writes of TensorBoard's events: each event wakes the writer's thread, which would
slow short rounds by a tenth."""


def check_tracker_installed(settings: TrackerSettings) -> None:
    """Raise SettingsError if the package of the tracker is not installed."""
    if settings.name in TRACKER_PACKAGES and find_spec(settings.name) is None:
        raise SettingsError(
            f"tracker must be tensorboard where {settings.name} is not installed "
            f"(pip install {TRACKER_PACKAGES[settings.name]}), got {settings.name}"
        )


def build_observers(composed: ComposedConfig) -> tuple[RunObserver, ...]:
    """Return the observers of a run with these settings.

    Raises
    ------
    SettingsError
        If the package of the tracker is not installed.
    """
    settings = composed.settings.tracker
    check_tracker_installed(settings)
    if isinstance(settings, MlflowSettings):
        return (TensorBoard(), Trackers([MlflowTracker(settings, composed)]))
    if isinstance(settings, WandbSettings):
        return (TensorBoard(), Trackers([WandbTracker(settings, composed)]))
    return (TensorBoard(),)


class TensorBoard(RunObserver):
    """Writes event files into the folder ``tensorboard`` of the run's records."""

    def __init__(self) -> None:
        self._writer: FileWriter | None = None
        self._buffer: list[tuple[int, float, Mapping[str, float]]] = []  # round, time, numbers
        self._last_write = 0.0

    def start(self, directory: Path) -> None:
        """Open the event file."""
        # The import takes seconds, which users who only read records need not wait for.
        from torch.utils.tensorboard import FileWriter

        self._writer = FileWriter(str(directory / "tensorboard"))

    def end_round(self, finished: FinishedRound) -> None:
        """Buffer the numbers of a round, and write the buffer at most once a second."""
        now = time.time()
        self._buffer.append((finished.record.round, now, finished.scalars))
        if now - self._last_write > FLUSH_SECONDS:
            self._write()
            self._last_write = now

    def flush(self) -> None:
        """Write the buffer."""
        self._write()
        if self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        """Close the event file."""
        self._write()
        if self._writer is not None:
            self._writer.close()

    def _write(self) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        if self._writer is not None:
            for server_round, at, scalars in self._buffer:
                values = [Summary.Value(tag=tag, simple_value=n) for tag, n in scalars.items()]
                self._writer.add_summary(Summary(value=values), server_round, at)
        self._buffer = []


class Trackers(RunObserver):
    """Combines several trackers, and drops any that fails during the run."""

    def __init__(self, trackers: Sequence[RunObserver]) -> None:
        self._trackers = list(trackers)

    def start(self, directory: Path) -> None:
        """Start all trackers.

        Raises
        ------
        RunError
            If one fails.
        """
        for tracker in self._trackers:
            try:
                tracker.start(directory)
            except Exception as error:  # each tracker raises different errors
                name = _get_tracker_name(tracker).lower()
                raise RunError(
                    f"tracker={name} cannot start: {type(error).__name__}: {error}"
                ) from None

    def end_round(self, finished: FinishedRound) -> None:
        """Send the numbers of a round to all trackers."""
        for tracker in tuple(self._trackers):
            try:
                tracker.end_round(finished)
            except Exception as error:
                self._drop_tracker(tracker, error)

    def finish(self, status: str, files: Mapping[str, str]) -> None:
        """Send the run's status and the paths of its records, by name, to all trackers."""
        for tracker in tuple(self._trackers):
            try:
                tracker.finish(status, files)
            except Exception as error:
                self._drop_tracker(tracker, error)

    def _drop_tracker(self, tracker: RunObserver, error: Exception) -> None:
        self._trackers.remove(tracker)
        print(
            f"fedquorum: {_get_tracker_name(tracker)} is left out from here on, the records are "
            f"not affected: {type(error).__name__}: {error}",
            file=sys.stderr,
        )


def _get_tracker_name(tracker: RunObserver) -> str:
    return type(tracker).__name__.removesuffix("Tracker")


class MlflowTracker(RunObserver):
    """Logs to a run of MLflow: parameters are the settings by dotted key, steps are rounds.

    The tag ``status`` has the run's final status, and tags such as ``model.safetensors`` have the
    paths of its records.
    """

    def __init__(self, settings: MlflowSettings, composed: ComposedConfig) -> None:
        self._settings = settings
        self._composed = composed

    def start(self, directory: Path) -> None:
        """Create MLflow's run, and log the settings."""
        import mlflow

        logging.getLogger("mlflow").setLevel(logging.WARNING)
        self._entities = mlflow.entities
        self._client = _create_mlflow_client(self._settings.uri)
        name = self._settings.experiment or self._composed.experiment
        experiment = self._client.get_experiment_by_name(name)
        number = experiment.experiment_id if experiment else self._client.create_experiment(name)
        tags = {"directory": str(directory)}
        run = self._client.create_run(number, run_name=_format_run_name(self._composed), tags=tags)
        self._run_id = run.info.run_id
        params = [
            self._entities.Param(key, str(value)[:MAX_MLFLOW_VALUE_LENGTH])
            for key, value in flatten_settings(asdict(self._composed.settings)).items()
        ]
        self._client.log_batch(self._run_id, params=params)

    def end_round(self, finished: FinishedRound) -> None:
        """Send the numbers of a round."""
        now, step = int(time.time() * 1000), finished.record.round
        metrics = [self._entities.Metric(k, v, now, step) for k, v in finished.scalars.items()]
        self._client.log_batch(self._run_id, metrics=metrics)

    def finish(self, status: str, files: Mapping[str, str]) -> None:
        """End MLflow's run with the status of the run."""
        for key, value in {"status": status, **files}.items():
            self._client.set_tag(self._run_id, key, value)
        ends = {"completed": "FINISHED", "interrupted": "KILLED"}
        self._client.set_terminated(self._run_id, ends.get(status, "FAILED"))


class WandbTracker(RunObserver):
    """Logs to a run of Weights & Biases: its config is the settings, its steps are rounds.

    Its files are in the folder ``wandb`` of the run. Its summary has the run's final status and the
    paths of the records.
    """

    def __init__(self, settings: WandbSettings, composed: ComposedConfig) -> None:
        self._settings = settings
        self._composed = composed

    def start(self, directory: Path) -> None:
        """Create the run of Weights & Biases, with the settings."""
        import wandb

        self._run = wandb.init(
            project=self._settings.project,
            group=self._composed.experiment,
            name=_format_run_name(self._composed),
            mode="online" if self._settings.mode == "online" else "offline",
            dir=str(directory),
            config=flatten_settings(asdict(self._composed.settings)),
            reinit="create_new",
            settings=wandb.Settings(silent=True, console="off"),
        )
        self._run.summary["directory"] = str(directory)

    def end_round(self, finished: FinishedRound) -> None:
        """Log the numbers of a round; in online mode they are also sent."""
        self._run.log(dict(finished.scalars), step=finished.record.round)

    def finish(self, status: str, files: Mapping[str, str]) -> None:
        """End the run of Weights & Biases with the status of the run."""
        self._run.summary.update({"status": status, "files": dict(files)})
        self._run.finish(exit_code=0 if status == "completed" else 1)


def _format_run_name(composed: ComposedConfig) -> str:
    return f"{composed.settings.strategy.name}, seed {composed.settings.seed}"


def _create_mlflow_client(uri: str) -> "mlflow.MlflowClient":
    """Return a client of a tracking URI, or of an SQLite file if ``uri`` is a path.

    MLflow creates the tables of a new file. A lock keeps jobs that start together from doing so at
    the same time.
    """
    import mlflow

    if "://" in uri or uri == "databricks":
        return mlflow.MlflowClient(tracking_uri=uri)
    path = Path(uri).expanduser().absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    with lock(path.with_name(f"{path.name}.lock")):
        return mlflow.MlflowClient(tracking_uri=f"sqlite:///{path}")
