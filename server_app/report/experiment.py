"""Everything that a report says of one experiment: its charts and its tables."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from fedquorum.contrib import REPORTED_NUMBERS

from server_app.report.chart_parts import methods_of
from server_app.report.charts import Chart
from server_app.report.client_charts import (
    distribution_chart,
    mixing_chart,
    omega_chart,
    participation_chart,
)
from server_app.report.groups import Group
from server_app.report.round_charts import (
    admission_chart,
    costs_chart,
    decisions_chart,
    report_chart,
    training_chart,
)
from server_app.report.sweep_charts import sweep_charts
from server_app.report.tables import Difference, Row, differences, summarize
from server_app.report.time_chart import time_chart


@dataclass(frozen=True)
class Experiment:
    """The groups of one experiment and what they come to."""

    name: str
    groups: tuple[Group, ...]
    rows: tuple[Row, ...]
    differences: tuple[Difference, ...]
    charts: tuple[Chart, ...]


@np.errstate(over="ignore", invalid="ignore")  # records hold any number
def experiments_of(groups: Sequence[Group]) -> tuple[Experiment, ...]:
    """Return the experiments of the groups, by name.

    Raises
    ------
    RunError
        If a table of a run is damaged.
    """
    names = sorted({group.experiment for group in groups})
    return tuple(
        _experiment(name, [g for g in groups if g.experiment == name], 1.0 / len(names))
        for name in names
    )


def _experiment(name: str, groups: Sequence[Group], share: float) -> Experiment:
    rows = summarize(groups)
    charts = tuple(_charts(groups, rows, share))
    return Experiment(name, tuple(groups), rows, differences(rows), charts)


def _charts(groups: Sequence[Group], rows: Sequence[Row], share: float) -> list[Chart]:
    """Return the charts in the order of a page. No chart of what a rule does not have."""
    methods = methods_of(groups)
    if not methods:
        return []
    charts: tuple[Chart | None, ...] = (
        training_chart(methods),
        *(report_chart(methods, numbers) for numbers in REPORTED_NUMBERS),
        time_chart(methods),
        *sweep_charts(methods, rows),
        distribution_chart(methods),
        participation_chart(methods, share),
        admission_chart(methods),
        omega_chart(methods),
        mixing_chart(methods, share),
        decisions_chart(methods),
        costs_chart(methods),
    )
    return [chart for chart in charts if chart is not None]
