"""Build the charts of a study's page."""

from collections.abc import Iterator

from server_app.study.charts.forest import build_forest_chart
from server_app.study.charts.helpers import StudyChart, get_method_color
from server_app.study.charts.rounds import build_round_charts
from server_app.study.charts.trade_off import build_trade_off_chart, compute_trade_off
from server_app.study.charts.tuning import build_tuning_charts
from server_app.study.result import StudyResult
from server_app.study.text import get_compared_methods

__all__ = ["StudyChart", "build_study_charts", "build_tuning_charts", "get_method_color"]


def build_study_charts(result: StudyResult) -> Iterator[StudyChart]:
    """Yield the charts that have data."""
    if not any(method.runs for method in get_compared_methods(result)):
        return
    if len(get_compared_methods(result)) > 1:
        yield build_forest_chart(result)
    if compute_trade_off(result):
        yield build_trade_off_chart(result)
    yield from build_round_charts(result)
