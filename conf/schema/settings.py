"""Define the settings of a run: one option of each group."""

from dataclasses import dataclass, field, replace

from fedquorum.rules.metrics import CLASSIFICATION_METRICS, REGRESSION_METRICS
from fedquorum.rules.parameters import NON_NEGATIVE_INT, POSITIVE_INT
from fedquorum.rules.rule import parameter
from omegaconf import MISSING

from conf.schema.availability import AvailabilitySettings
from conf.schema.client import ClientSettings
from conf.schema.data import DataSettings
from conf.schema.engine import EngineSettings, EvaluationSettings, RobustnessSettings
from conf.schema.model import ModelSettings
from conf.schema.privacy import PrivacySettings
from conf.schema.response_time import ResponseTimeSettings
from conf.schema.secure_aggregation import SecureAggregationSettings
from conf.schema.server_optimizer import ServerOptimizerSettings
from conf.schema.strategy import StrategySettings
from conf.schema.tracker import TrackerSettings


@dataclass
class Settings:
    """All settings of one run. ``rounds`` is T.

    ``resume``: the folder of a run to continue from its last checkpoint; null for a new run.
    """

    strategy: StrategySettings = MISSING
    server_optimizer: ServerOptimizerSettings = MISSING
    data: DataSettings = MISSING
    model: ModelSettings = MISSING
    client: ClientSettings = field(default_factory=ClientSettings)
    availability: AvailabilitySettings = MISSING
    response_time: ResponseTimeSettings = MISSING
    privacy: PrivacySettings = MISSING
    secure_aggregation: SecureAggregationSettings = MISSING
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)
    robustness: RobustnessSettings = field(default_factory=RobustnessSettings)
    engine: EngineSettings = MISSING
    tracker: TrackerSettings = MISSING
    rounds: int = parameter(100, POSITIVE_INT)
    seed: int = parameter(1, NON_NEGATIVE_INT)
    resume: str | None = None

    def __post_init__(self) -> None:
        self.evaluation = replace(self.evaluation, metric=get_evaluation_metric(self))


def get_evaluation_metric(settings: Settings) -> str:
    """Return ``evaluation.metric`` or, if it is null, the default for the data's targets."""
    default = (
        REGRESSION_METRICS
        if getattr(settings.data, "regression", False)
        else CLASSIFICATION_METRICS
    )
    return settings.evaluation.metric or default
