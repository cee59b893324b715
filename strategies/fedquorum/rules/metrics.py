"""Define the metrics of ``evaluation.metric``, and their ranges.

``client_app/metrics.py`` computes them on a client; this module has their ranges in a reply, their
direction, and the units in which tables show them.
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    """One number by which a client evaluates a model on its test split.

    Parameters
    ----------
    title : str
        The name and unit in headings, fractions in percent.
    low, high : float
        The range of its values.
    higher_is_better : bool
        Whether the lowest value is the worst.
    is_regression : bool
        Whether the metric compares predicted numbers with true ones, rather than classes.
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
        """Whether the metric lies in [0, 1], so that tables show it in percent."""
        return (self.low, self.high) == (0.0, 1.0)

    @property
    def scale(self) -> float:
        """The factor from a value to the unit of ``title``."""
        return 100.0 if self.is_fraction else 1.0

    def contains(self, value: float) -> bool:
        """Say whether a value is possible; NaN, for an undefined metric, is."""
        return math.isnan(value) or self.low <= value <= self.high


AVERAGE_PRECISION = "average_precision"
"""The metric that is recorded beside AUROC."""

METRICS: dict[str, Metric] = {
    "accuracy": Metric("accuracy, %"),
    "top5": Metric("top-5 accuracy, %"),
    "auroc": Metric("AUROC, %"),
    AVERAGE_PRECISION: Metric("average precision, %"),
    "f1": Metric("F1, %"),
    "rmse": Metric("RMSE", high=math.inf, higher_is_better=False, is_regression=True),
    "mae": Metric("MAE", high=math.inf, higher_is_better=False, is_regression=True),
    "r2": Metric("R2", low=-math.inf, is_regression=True),
    "loss": Metric("loss, nats", high=math.inf, higher_is_better=False),
}
"""All metrics by their names in settings and records."""

SUMMED_METRICS = tuple(name for name in METRICS if name not in ("auroc", AVERAGE_PRECISION, "r2"))
"""The metrics that every client has, whose means over clients are there with masks.

The others are not defined for a client whose test rows are of one class, or have one target: the
server, which learns who lacks a number, would learn that.
"""

CLASSIFICATION_METRICS = "accuracy"
REGRESSION_METRICS = "rmse"
"""The metrics of the two kinds of tasks if ``evaluation.metric`` is not set."""


def get_metric(name: str) -> Metric:
    """Return a metric by its name; an unknown name from a record counts as a fraction."""
    return METRICS.get(name, Metric(name))
