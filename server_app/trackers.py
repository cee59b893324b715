"""Report a run beside its records: to TensorBoard, and to a tracker if one is set.

All are observers of the library's ``RunWriter``. TensorBoard's files are part of the records. A
tracker (MLflow, Weights & Biases) is told the settings, the numbers of every round, and in the end
the status and where the records are. A run is worth as much without it; so a tracker that breaks
down is told of once and left out, and the run goes on.
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
from fedquorum.locks import lock
from fedquorum.records.callback import RunCallback
from fedquorum.records.settings import flatten_settings

from conf import ComposedConfig
from conf.schema.tracker import MlflowSettings, TrackerSettings, WandbSettings

if TYPE_CHECKING:
    import mlflow
    from torch.utils.tensorboard import FileWriter

TRACKER_PACKAGES = {"mlflow": "mlflow-skinny", "wandb": "wandb"}
MAX_MLFLOW_VALUE_LENGTH = 6000  # of a parameter's value
FLUSH_SECONDS = 1.0


def check_tracker_installed(settings: TrackerSettings) -> None:
    """Raise SettingsError if the package of the tracker is not installed."""
    if settings.name in TRACKER_PACKAGES and find_spec(settings.name) is None:
        raise SettingsError(
            f"tracker must be tensorboard where {settings.name} is not installed "
            f"(pip install {TRACKER_PACKAGES[settings.name]}), got {settings.name}"
        )


def build_callbacks(composed: ComposedConfig) -> tuple[RunCallback, ...]:
    """Return the observers of a run with these settings.

    Raises
    ------
    SettingsError
        If the package of the tracker is not installed.
    """
    settings = composed.settings.tracker
    check_tracker_installed(settings)
    trackers: list[RunCallback] = []
    if isinstance(settings, MlflowSettings):
        trackers.append(MlflowTracker(settings, composed))
    elif isinstance(settings, WandbSettings):
        trackers.append(WandbTracker(settings, composed))
    return (TensorBoard(), Trackers(trackers))


class TensorBoard(RunCallback):
    """Event files in the folder ``tensorboard`` of the run; a part of its records."""

    def __init__(self) -> None:
        self._writer: FileWriter | None = None
        self._kept: list[tuple[int, float, Mapping[str, float]]] = []  # round, time, numbers
        self._written = 0.0  # the time of the last writing

    def start(self, directory: Path) -> None:
        """Open the event file."""
        # Takes seconds to import: not for those who only read records.
        from torch.utils.tensorboard import FileWriter

        self._writer = FileWriter(str(directory / "tensorboard"))

    def log_round(self, server_round: int, scalars: Mapping[str, float]) -> None:
        """Buffer the numbers of a round, and write the buffer at most once a second.

        The writer has a thread, which each event wakes and which slows quick rounds by a tenth.
        """
        now = time.time()
        self._kept.append((server_round, now, scalars))
        if now - self._written > FLUSH_SECONDS:
            self._write()
            self._written = now

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
            for server_round, at, scalars in self._kept:
                values = [Summary.Value(tag=tag, simple_value=n) for tag, n in scalars.items()]
                self._writer.add_summary(Summary(value=values), server_round, at)
        self._kept = []


class Trackers(RunCallback):
    """Several trackers as one, which continues without trackers that fail."""

    def __init__(self, trackers: Sequence[RunCallback]) -> None:
        self._trackers = list(trackers)

    def start(self, directory: Path) -> None:
        """Let all trackers begin.

        Raises
        ------
        RunError
            If one cannot.
        """
        for tracker in self._trackers:
            try:
                tracker.start(directory)
            except Exception as error:  # each has errors of its own
                raise RunError(
                    f"tracker={_get_tracker_name(tracker).lower()} cannot begin: {type(error).__name__}: "
                    f"{error}"
                ) from None

    def log_round(self, server_round: int, scalars: Mapping[str, float]) -> None:
        """Tell all trackers of a round."""
        for tracker in tuple(self._trackers):
            try:
                tracker.log_round(server_round, scalars)
            except Exception as error:
                self._drop_tracker(tracker, error)

    def finish(self, status: str, files: Mapping[str, str]) -> None:
        """Tell all trackers how the run ended, and where its records are by their names."""
        for tracker in tuple(self._trackers):
            try:
                tracker.finish(status, files)
            except Exception as error:
                self._drop_tracker(tracker, error)

    def _drop_tracker(self, tracker: RunCallback, error: Exception) -> None:
        self._trackers.remove(tracker)
        print(
            f"fedquorum: {_get_tracker_name(tracker)} is left out from here on, the records are not affected: "
            f"{type(error).__name__}: {error}",
            file=sys.stderr,
        )


def _get_tracker_name(tracker: RunCallback) -> str:
    return type(tracker).__name__.removesuffix("Tracker")


class MlflowTracker(RunCallback):
    """A run of MLflow: parameters are the settings by dotted key, steps are rounds.

    The tag ``status`` says how the run ended, tags such as ``model.safetensors`` where its
    records are.
    """

    def __init__(self, settings: MlflowSettings, composed: ComposedConfig) -> None:
        self._settings = settings
        self._composed = composed

    def start(self, directory: Path) -> None:
        """Make MLflow's run, with the settings."""
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

    def log_round(self, server_round: int, scalars: Mapping[str, float]) -> None:
        """Send the numbers of a round."""
        now = int(time.time() * 1000)
        metrics = [self._entities.Metric(k, v, now, server_round) for k, v in scalars.items()]
        self._client.log_batch(self._run_id, metrics=metrics)

    def finish(self, status: str, files: Mapping[str, str]) -> None:
        """End MLflow's run as the run ended."""
        for key, value in {"status": status, **files}.items():
            self._client.set_tag(self._run_id, key, value)
        ends = {"completed": "FINISHED", "interrupted": "KILLED"}
        self._client.set_terminated(self._run_id, ends.get(status, "FAILED"))


class WandbTracker(RunCallback):
    """A run of Weights & Biases: its config are the settings, its steps are rounds.

    Its files are in the folder ``wandb`` of the run; the summary says where the records are and
    how the run ended.
    """

    def __init__(self, settings: WandbSettings, composed: ComposedConfig) -> None:
        self._settings = settings
        self._composed = composed

    def start(self, directory: Path) -> None:
        """Make the run of Weights & Biases, with the settings."""
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

    def log_round(self, server_round: int, scalars: Mapping[str, float]) -> None:
        """Write the numbers of a round, and send them where the mode is online."""
        self._run.log(dict(scalars), step=server_round)

    def finish(self, status: str, files: Mapping[str, str]) -> None:
        """End the run of Weights & Biases as the run ended."""
        self._run.summary.update({"status": status, "files": dict(files)})
        self._run.finish(exit_code=0 if status == "completed" else 1)


def _format_run_name(composed: ComposedConfig) -> str:
    return f"{composed.settings.strategy.name}, seed {composed.settings.seed}"


def _create_mlflow_client(uri: str) -> "mlflow.MlflowClient":
    """Return a client of a tracking URI; what is no URI is the path of an SQLite file.

    MLflow makes the tables of a new file, which jobs that begin together must not do at once.
    """
    import mlflow

    if "://" in uri or uri == "databricks":
        return mlflow.MlflowClient(tracking_uri=uri)
    path = Path(uri).expanduser().absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    with lock(path.with_name(f"{path.name}.lock")):
        return mlflow.MlflowClient(tracking_uri=f"sqlite:///{path}")
