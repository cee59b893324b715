"""Share colors, sizes and texts between the charts of a study."""

from dataclasses import dataclass

import plotly.graph_objects as go
from fedquorum.report.chart_spec import METHOD_COLORS
from fedquorum.report.plotly_charts import get_plotly_style

from server_app.study.result import MethodResult, StudyResult
from server_app.study.text import get_compared_methods

BLACK_STYLE = METHOD_COLORS.index("#000000")
DARK, MIDDLE = "#444444", "#8A8A8A"
RANGE_PADDING = 0.06

# Pixels.
CHART_HEIGHT = 380
TOP, BOTTOM = 16, 60


@dataclass(frozen=True)
class StudyChart:
    """A chart of the page.

    Parameters
    ----------
    name : str
        The chart's id on the page.
    title, note : str
        The heading and the caption.
    figure : Figure
    small : bool
        Whether it is one of many side by side.
    """

    name: str
    title: str
    note: str
    figure: go.Figure
    small: bool = False


def get_styles(result: StudyResult) -> dict[str, int]:
    """Return the style of each compared method: black for the baseline, colors for others."""
    others = (style for style in range(len(result.methods) + 1) if style != BLACK_STYLE)
    return {
        method.name: BLACK_STYLE if method.name == result.baseline else next(others)
        for method in get_compared_methods(result)
    }


def get_method_color(result: StudyResult, name: str) -> str:
    """Return a method's color, the same in all charts of the page."""
    color, _ = get_plotly_style(get_styles(result)[name])
    return color


def expand_range(low: float, high: float) -> tuple[float, float]:
    """Return the limits of an axis: these numbers, padded."""
    pad = RANGE_PADDING * (high - low) or 1.0
    return low - pad, high + pad


def add_text(figure: go.Figure, x: float, y: float, text: str, **options: object) -> None:
    """Write a text into a figure, by default to the right of (x, y)."""
    defaults = {"showarrow": False, "xanchor": "left", "yanchor": "middle", "align": "left"}
    figure.add_annotation(x=x, y=y, text=text, **(defaults | options))


def get_baseline(result: StudyResult) -> MethodResult:
    """Return the method that the others are compared with."""
    return next(method for method in result.methods if method.name == result.baseline)
