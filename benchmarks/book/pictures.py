"""Draw a chapter's picture as a chart of the report."""

from collections.abc import Mapping

from fedquorum.records.reader import Run
from fedquorum.report.experiment import build_experiments
from fedquorum.report.figure_files import DPI, to_png
from fedquorum.report.matplotlib_charts import draw_figure
from fedquorum.report.seed_groups import group_runs


def draw_training_chart(runs: Mapping[tuple[str, ...], Run]) -> bytes:
    """Return the report's chart of accuracy over rounds as PNG; the runs are one experiment."""
    (experiment,) = build_experiments(group_runs(runs.values()))
    (chart,) = (chart for chart in experiment.charts if chart.name == "training")
    return to_png(draw_figure(chart), DPI)
