"""Settings of the trackers."""

from dataclasses import dataclass

from omegaconf import MISSING

from conf.schema.ranges import FilePath, setting
from strategies.parameters import OneOf


@dataclass
class TrackerSettings:
    """Where a run is told of beside its records and TensorBoard; see ``server_app.trackers``."""

    name: str = MISSING


@dataclass
class TensorBoardSettings(TrackerSettings):
    """Nowhere else."""

    name: str = "tensorboard"


@dataclass
class MlflowSettings(TrackerSettings):
    """MLflow. ``uri``: the path of an SQLite file, or a tracking URI such as a server's.

    ``experiment`` null is the name of the run's own.
    """

    name: str = "mlflow"
    uri: str = setting("outputs/mlflow.db", FilePath("an SQLite file, or a tracking URI"))
    experiment: str | None = None


@dataclass
class WandbSettings(TrackerSettings):
    """Weights & Biases. ``mode`` offline writes into the run's folder, for ``wandb sync``."""

    name: str = "wandb"
    project: str = "fedquorum"
    mode: str = setting("offline", OneOf(("offline", "online")))
