"""Settings of the trackers."""

from dataclasses import dataclass

from fedquorum.parameters import OneOf
from fedquorum.rule import parameter
from omegaconf import MISSING

from conf.schema.ranges import FilePath


@dataclass
class TrackerSettings:
    """Where a run is told of beside its records and TensorBoard; see ``server_app.trackers``."""

    name: str = MISSING


@dataclass
class TensorBoardSettings(TrackerSettings):
    """TensorBoard events in the run's folder, which every run writes; nothing else."""

    name: str = "tensorboard"


@dataclass
class MlflowSettings(TrackerSettings):
    """Also MLflow (``pip install mlflow-skinny``): offline into an SQLite file, or to a server.

    ``uri``: the path of an SQLite file, or a tracking URI such as a server's.
    ``experiment`` null is the name of the run's own.
    """

    name: str = "mlflow"
    uri: str = parameter("outputs/mlflow.db", FilePath("an SQLite file, or a tracking URI"))
    experiment: str | None = None


@dataclass
class WandbSettings(TrackerSettings):
    """Also Weights & Biases (``pip install wandb``): offline unless ``mode`` is online.

    ``mode`` offline writes into the run's folder, for ``wandb sync``.
    """

    name: str = "wandb"
    project: str = "fedquorum"
    mode: str = parameter("offline", OneOf(("offline", "online")))
