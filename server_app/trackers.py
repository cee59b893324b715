"""Trackers beside TensorBoard: MLflow or Weights & Biases, where they are asked for.

A tracker is told the settings, the numbers of every round, and in the end the status and where
the records are. What a run is worth is in its records (``docs/records.md``); so a tracker that
breaks down is told of once and left out, and the run goes on.
"""

import logging
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from conf import Composed
from conf.errors import RunError, SettingsError
from conf.schema.tracker import MlflowSettings, TrackerSettings, WandbSettings
from server_app.checkpoint import flat_settings
from server_app.locks import lock

if TYPE_CHECKING:
    import mlflow

REQUIREMENTS = {"mlflow": "mlflow-skinny", "wandb": "wandb"}
MLFLOW_LENGTH = 6000  # of a parameter's value


class Tracker(Protocol):
    """What every tracker can do."""

    def log_round(self, server_round: int, scalars: Mapping[str, float]) -> None:
        """Take the numbers of a round, by names such as ``round/global_loss``."""

    def finish(self, status: str, files: Mapping[str, str]) -> None:
        """Take the status of the run and the paths of its records; write what is still kept."""


def check_installed(settings: TrackerSettings) -> None:
    """Raise SettingsError if the package of the tracker is not installed."""
    if settings.name in REQUIREMENTS and find_spec(settings.name) is None:
        raise SettingsError(
            f"tracker must be tensorboard where {settings.name} is not installed "
            f"(pip install {REQUIREMENTS[settings.name]}), got {settings.name}"
        )


def start_trackers(composed: Composed, directory: Path) -> "Trackers":
    """Return the trackers of a run whose records are in ``directory``.

    Raises
    ------
    RunError
        If a tracker cannot begin.
    """
    trackers: list[Tracker] = []
    settings = composed.settings.tracker
    try:
        if isinstance(settings, MlflowSettings):
            trackers.append(MlflowTracker(settings, composed, directory))
        elif isinstance(settings, WandbSettings):
            trackers.append(WandbTracker(settings, composed, directory))
    except Exception as error:  # each has errors of its own
        raise RunError(
            f"tracker={settings.name} cannot begin: {type(error).__name__}: {error}"
        ) from None
    return Trackers(trackers)


class Trackers:
    """Several trackers as one, that goes on without those that break down."""

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        self._trackers = list(trackers)

    def log_round(self, server_round: int, scalars: Mapping[str, float]) -> None:
        """Tell all trackers of a round."""
        for tracker in tuple(self._trackers):
            try:
                tracker.log_round(server_round, scalars)
            except Exception as error:
                self._leave_out(tracker, error)

    def finish(self, status: str, files: Mapping[str, str]) -> None:
        """Tell all trackers how the run ended, and where its records are by their names."""
        for tracker in tuple(self._trackers):
            try:
                tracker.finish(status, files)
            except Exception as error:
                self._leave_out(tracker, error)

    def _leave_out(self, tracker: Tracker, error: Exception) -> None:
        self._trackers.remove(tracker)
        name = type(tracker).__name__.removesuffix("Tracker")
        print(
            f"fedquorum: {name} is left out from here on, the records are not affected: "
            f"{type(error).__name__}: {error}",
            file=sys.stderr,
        )


class MlflowTracker:
    """A run of MLflow: parameters are the settings by dotted key, steps are rounds.

    The tag ``status`` says how the run ended, tags such as ``model.safetensors`` where its
    records are.
    """

    def __init__(self, settings: MlflowSettings, composed: Composed, directory: Path) -> None:
        import mlflow

        logging.getLogger("mlflow").setLevel(logging.WARNING)
        self._entities = mlflow.entities
        self._client = _mlflow_client(settings.uri)
        name = settings.experiment or composed.experiment
        experiment = self._client.get_experiment_by_name(name)
        number = experiment.experiment_id if experiment else self._client.create_experiment(name)
        tags = {"directory": str(directory)}
        run = self._client.create_run(number, run_name=_run_name(composed), tags=tags)
        self._run_id = run.info.run_id
        params = [
            self._entities.Param(key, str(value)[:MLFLOW_LENGTH])
            for key, value in flat_settings(composed.settings).items()
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


class WandbTracker:
    """A run of Weights & Biases: its config are the settings, its steps are rounds.

    Its files are in the folder ``wandb`` of the run; the summary says where the records are and
    how the run ended.
    """

    def __init__(self, settings: WandbSettings, composed: Composed, directory: Path) -> None:
        import wandb

        self._run = wandb.init(
            project=settings.project,
            group=composed.experiment,
            name=_run_name(composed),
            mode="online" if settings.mode == "online" else "offline",
            dir=str(directory),
            config=flat_settings(composed.settings),
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


def _run_name(composed: Composed) -> str:
    return f"{composed.settings.strategy.name}, seed {composed.settings.seed}"


def _mlflow_client(uri: str) -> "mlflow.MlflowClient":
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
