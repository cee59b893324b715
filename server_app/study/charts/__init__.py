"""What the page of a study draws."""

from collections.abc import Iterator

from server_app.study.answer import Answer
from server_app.study.charts.forest import forest_chart
from server_app.study.charts.parts import StudyChart, colour_of
from server_app.study.charts.rounds import round_charts
from server_app.study.charts.trade_off import trade_off, trade_off_chart
from server_app.study.charts.tuning import tuning_charts
from server_app.study.words import compared

__all__ = ["StudyChart", "colour_of", "study_charts", "tuning_charts"]


def study_charts(answer: Answer) -> Iterator[StudyChart]:
    """Yield the charts of which there is anything to draw."""
    if not any(method.runs for method in compared(answer)):
        return
    if len(compared(answer)) > 1:
        yield forest_chart(answer)
    if trade_off(answer):
        yield trade_off_chart(answer)
    yield from round_charts(answer)
