"""The report's charts of runs that belong together, drawn one at a time."""

from collections.abc import Mapping, Sequence

from fedquorum.errors import ParameterError, RunError
from fedquorum.records.reader import Run

from server_app.drawing import ShownFigure
from server_app.report.charts import Chart
from server_app.report.experiment import experiments_of
from server_app.report.figures import draw
from server_app.report.groups import group_runs


def charts_of(runs: Sequence[Run]) -> Mapping[str, Chart]:
    """Return the charts by name; of several experiments with the experiment before the name.

    Raises
    ------
    RunError
        If a table of a run is damaged.
    """
    experiments = experiments_of(group_runs(runs))
    several = len(experiments) > 1
    return {
        f"{one.name}:{chart.name}" if several else chart.name: chart
        for one in experiments
        for chart in one.charts
    }


def drawn(runs: Sequence[Run], name: str) -> ShownFigure:
    """Return a chart's figure; without a name the first one's.

    Raises
    ------
    ParameterError
        If the runs have no chart of that name.
    RunError
        If there is nothing to draw.
    """
    charts = charts_of(runs)
    if not charts:
        raise RunError("expected a run with at least one complete round to plot, got none")
    if not name:
        return draw(next(iter(charts.values())))
    if name not in charts:
        raise ParameterError("chart", f"one of {', '.join(charts)}", name)
    return draw(charts[name])
