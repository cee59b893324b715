"""Define the settings of the trackers."""

from dataclasses import dataclass

from fedquorum.rules.parameters import OneOf
from fedquorum.rules.rule import parameter
from omegaconf import MISSING

from conf.schema.ranges import FilePath


@dataclass
class TrackerSettings:
    """A tracker of the run beside its records and TensorBoard; see ``server_app.runs.trackers``."""

    name: str = MISSING


@dataclass
class TensorBoardSettings(TrackerSettings):
    """TensorBoard events in the run's folder only, which every run writes."""

    name: str = "tensorboard"


@dataclass
class MlflowSettings(TrackerSettings):
    """MLflow, too (``pip install mlflow-skinny``): offline in an SQLite file, or on a server.

    ``uri``: the path of an SQLite file, or a tracking URI such as a server's.
    ``experiment``: null for the name of the run's experiment.
    """

    name: str = "mlflow"
    uri: str = parameter("outputs/mlflow.db", FilePath("an SQLite file, or a tracking URI"))
    experiment: str | None = None


@dataclass
class WandbSettings(TrackerSettings):
    """Weights & Biases, too (``pip install wandb``): offline unless ``mode`` is online.

    ``mode`` offline writes into the run's folder, for ``wandb sync``.
    """

    name: str = "wandb"
    project: str = "fedquorum"
    mode: str = parameter("offline", OneOf(("offline", "online")))
