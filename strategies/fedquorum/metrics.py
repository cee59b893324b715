"""Define the metrics of ``evaluation.metric``, and their ranges.

How a client measures each one is in ``client_app/metrics.py``; here is what everybody else needs to
know: what a reply may say, which end is the worst, and in what unit a table shows it.
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    """One number that a client measures of a model on its test part.

    Parameters
    ----------
    title : str
        Its name and unit in headings, shares in percent.
    low, high : float
        The range of its values.
    higher_is_better : bool
        Whether the lowest value is the worst.
    is_regression : bool
        Whether it compares predicted numbers with true ones, rather than classes.
    """

    title: str
    low: float = 0.0
    high: float = 1.0
    higher_is_better: bool = True
    is_regression: bool = False

    @property
    def name(self) -> str:
        """The metric's name in sentences, without a unit."""
        return self.title.partition(",")[0]

    @property
    def is_fraction(self) -> bool:
        """Whether it lies in [0, 1], so that people read it in percent."""
        return (self.low, self.high) == (0.0, 1.0)

    @property
    def scale(self) -> float:
        """The factor from a value to the unit of ``title``."""
        return 100.0 if self.is_fraction else 1.0

    def contains(self, value: float) -> bool:
        """Say whether a value is possible; NaN, which is not defined, is."""
        return math.isnan(value) or self.low <= value <= self.high


METRICS: dict[str, Metric] = {
    "accuracy": Metric("accuracy, %"),
    "top5": Metric("top-5 accuracy, %"),
    "auroc": Metric("AUROC, %"),
    "f1": Metric("F1, %"),
    "rmse": Metric("RMSE", high=math.inf, higher_is_better=False, is_regression=True),
    "mae": Metric("MAE", high=math.inf, higher_is_better=False, is_regression=True),
    "r2": Metric("R2", low=-math.inf, is_regression=True),
    "loss": Metric("loss, nats", high=math.inf, higher_is_better=False),
}
"""All metrics by their names in settings and records."""

CLASSIFICATION_METRICS = "accuracy"
REGRESSION_METRICS = "rmse"
"""What is measured where ``evaluation.metric`` does not say."""


def get_metric(name: str) -> Metric:
    """Return a metric by its name; one that a record made up is taken for a share."""
    return METRICS.get(name, Metric(name))
