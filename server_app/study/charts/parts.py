"""What the charts of a study share: their colours, sizes and texts."""

from dataclasses import dataclass

import plotly.graph_objects as go

from server_app.report.charts import COLOURS
from server_app.report.interactive import (
    style_of,
)
from server_app.study.answer import Answer, MethodResult
from server_app.study.words import compared

BLACK = COLOURS.index("#000000")
DARK, MIDDLE = "#444444", "#8A8A8A"
PAD = 0.06

# Pixels.
HEIGHT = 380
TOP, BOTTOM = 16, 60


@dataclass(frozen=True)
class StudyChart:
    """A chart of the page.

    Parameters
    ----------
    name : str
        What identifies it on the page.
    title, note : str
        What it shows, and what a reader has to know.
    drawn : Figure
        The figure.
    small : bool
        Whether it is one of many that stand side by side.
    """

    name: str
    title: str
    note: str
    drawn: go.Figure
    small: bool = False


def styles(answer: Answer) -> dict[str, int]:
    """Return the style of each method that was compared: black for the baseline, then colours."""
    others = (style for style in range(len(answer.methods) + 1) if style != BLACK)
    return {
        method.name: BLACK if method.name == answer.baseline else next(others)
        for method in compared(answer)
    }


def colour_of(answer: Answer, name: str) -> str:
    """Return a method's colour, the same on the whole page."""
    colour, _ = style_of(styles(answer)[name])
    return colour


def padded(low: float, high: float) -> tuple[float, float]:
    """Return the ends of an axis with a little more than these numbers."""
    pad = PAD * (high - low) or 1.0
    return low - pad, high + pad


def write(drawn: go.Figure, x: float, y: float, text: str, **look: object) -> None:
    """Write a text into a figure, at the right of a place unless the look says otherwise."""
    usual = {"showarrow": False, "xanchor": "left", "yanchor": "middle", "align": "left"}
    drawn.add_annotation(x=x, y=y, text=text, **(usual | look))


def baseline_of(answer: Answer) -> MethodResult:
    """Return the method that the others are compared with."""
    return next(method for method in answer.methods if method.name == answer.baseline)
