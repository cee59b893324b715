"""Draw the report's charts of related runs, one at a time."""

from collections.abc import Mapping, Sequence

from fedquorum.errors import ParameterError, RunError
from fedquorum.records.reader import Run
from fedquorum.report.chart_spec import Chart
from fedquorum.report.experiment import build_experiments
from fedquorum.report.figure_files import NotebookFigure
from fedquorum.report.matplotlib_charts import draw_figure
from fedquorum.report.seed_groups import group_runs


def build_charts(runs: Sequence[Run]) -> Mapping[str, Chart]:
    """Return the charts by name; with several experiments, as EXPERIMENT:NAME.

    Raises
    ------
    RunError
        If a table of a run is damaged.
    """
    experiments = build_experiments(group_runs(runs))
    is_qualified = len(experiments) > 1
    return {
        f"{experiment.name}:{chart.name}" if is_qualified else chart.name: chart
        for experiment in experiments
        for chart in experiment.charts
    }


def draw_named_chart(runs: Sequence[Run], name: str) -> NotebookFigure:
    """Return the figure of a chart; of the first chart if the name is empty.

    Raises
    ------
    ParameterError
        If the runs have no chart of that name.
    RunError
        If there is nothing to draw.
    """
    charts = build_charts(runs)
    if not charts:
        raise RunError("expected a run with at least one complete round to plot, got none")
    if not name:
        return draw_figure(next(iter(charts.values())))
    if name not in charts:
        raise ParameterError("chart", f"one of {', '.join(charts)}", name)
    return draw_figure(charts[name])
