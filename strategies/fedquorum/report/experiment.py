"""Build all charts and tables of an experiment."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..contrib import REPORTED_METRICS
from .chart_helpers import select_plotted_methods
from .chart_spec import Chart
from .client_charts import (
    build_calibration_chart,
    build_distribution_chart,
    build_mixing_chart,
    build_omega_chart,
    build_participation_chart,
)
from .round_charts import (
    build_admission_chart,
    build_cost_chart,
    build_decision_chart,
    build_rule_metrics_chart,
    build_training_chart,
)
from .seed_groups import Group
from .staleness_chart import build_staleness_chart
from .sweep_charts import build_sweep_charts
from .tables import MethodDifference, Row, compute_method_differences, summarize_groups
from .time_chart import build_time_chart


@dataclass(frozen=True)
class Experiment:
    """The groups of one experiment with their results."""

    name: str
    groups: tuple[Group, ...]
    rows: tuple[Row, ...]
    differences: tuple[MethodDifference, ...]
    charts: tuple[Chart, ...]


@np.errstate(over="ignore", invalid="ignore")  # records may hold huge or infinite numbers
def build_experiments(groups: Sequence[Group]) -> tuple[Experiment, ...]:
    """Build the experiments of the groups, sorted by name.

    Raises
    ------
    RunError
        If a table of a run is damaged.
    """
    names = sorted({group.experiment for group in groups})
    return tuple(
        _build_experiment(name, [g for g in groups if g.experiment == name], 1.0 / len(names))
        for name in names
    )


def _build_experiment(name: str, groups: Sequence[Group], cell_fraction: float) -> Experiment:
    rows = summarize_groups(groups)
    charts = tuple(_build_charts(groups, rows, cell_fraction))
    return Experiment(name, tuple(groups), rows, compute_method_differences(rows), charts)


def _build_charts(
    groups: Sequence[Group], rows: Sequence[Row], cell_fraction: float
) -> list[Chart]:
    """Build the charts in the order of the page; charts without data are omitted."""
    methods = select_plotted_methods(groups)
    if not methods:
        return []
    charts: tuple[Chart | None, ...] = (
        build_training_chart(methods),
        *(build_rule_metrics_chart(methods, numbers) for numbers in REPORTED_METRICS),
        build_time_chart(methods),
        build_staleness_chart(methods),
        *build_sweep_charts(methods, rows),
        build_distribution_chart(methods),
        build_calibration_chart(methods),
        build_participation_chart(methods, cell_fraction),
        build_admission_chart(methods),
        build_omega_chart(methods),
        build_mixing_chart(methods, cell_fraction),
        build_decision_chart(methods),
        build_cost_chart(methods),
    )
    return [chart for chart in charts if chart is not None]
