"""Build the chart of all clients against the worst, with the Pareto front."""

import math
from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
from fedquorum.report.label_layout import MARKER_RADIUS, PixelBox, choose_label_sides
from fedquorum.report.plotly_charts import AXIS, LAYOUT, escape_html

from server_app.study.charts.helpers import (
    BOTTOM,
    CHART_HEIGHT,
    MIDDLE,
    TOP,
    StudyChart,
    get_method_color,
)
from server_app.study.result import StudyResult
from server_app.study.tables import ALL, WORST, average_measure
from server_app.study.text import format_method_name, get_compared_methods, get_unit

CHART_WIDTH, CHART_SPACE = 310, 80
"""Pixels on a phone: labels that fit there fit everywhere."""

MAX_NAMES_PER_LABEL = 3


def compute_trade_off(result: StudyResult) -> dict[str, tuple[float, float]]:
    """Return each method's mean over clients and worst 10 %, mean over seeds, if it has both."""
    points = {
        method.name: (average_measure(method.runs, ALL), average_measure(method.runs, WORST))
        for method in get_compared_methods(result)
    }
    return {name: point for name, point in points.items() if not any(map(math.isnan, point))}


def find_pareto_front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Return the points that no other point dominates.

    Parameters
    ----------
    points : sequence of (x, y)
        Higher is better in both.

    Returns
    -------
    list of int
        Their indices, by ascending x.
    """

    def is_dominated(point: tuple[float, float]) -> bool:
        x, y = point
        return any(a >= x and b >= y and (a, b) != point for a, b in points)

    front = [index for index, point in enumerate(points) if not is_dominated(point)]
    return sorted(front, key=points.__getitem__)


def build_trade_off_chart(result: StudyResult) -> StudyChart:
    """Build the chart of the mean over all clients against the worst 10 %."""
    unit, found = get_unit(result), compute_trade_off(result)
    names = list(found)
    x, y = (unit.factor * np.array(axis) for axis in zip(*found.values(), strict=True))
    oriented = unit.sign * np.column_stack([x, y])
    front = find_pareto_front([(float(a), float(b)) for a, b in oriented])
    texts = [format_method_name(name) for name in names]
    x_range, y_range = (_pad_axis(axis, unit.sign) for axis in (x, y))
    pixels = [
        (_to_pixels(a, x_range, CHART_WIDTH), _to_pixels(b, y_range, CHART_HEIGHT - CHART_SPACE))
        for a, b in zip(x, y, strict=True)
    ]
    labels = _merge_labels(pixels, texts)
    lines = _compute_front_boxes([pixels[i] for i in front])
    sides = choose_label_sides(
        [pixels[i] for i in labels], list(labels.values()), CHART_WIDTH, lines
    )
    positions = dict(zip(labels, sides, strict=True))
    drawn = go.Figure(_draw_front(x[front], y[front], x_range, y_range))
    drawn.add_trace(
        go.Scatter(
            x=x,
            y=y,
            mode="markers+text",
            text=[escape_html(labels.get(i, "")) for i in range(len(texts))],
            textposition=[positions.get(i, "middle right") for i in range(len(texts))],
            hovertext=[escape_html(text) for text in texts],
            marker={"color": [get_method_color(result, name) for name in names], "size": 10},
            hovertemplate="%{hovertext}: %{x:.4g}, worst 10 %: %{y:.4g}<extra></extra>",
        )
    )
    in_unit = result.metric_info.title.partition(", ")[2]
    metric = f"{unit.metric}{f', {in_unit}' if in_unit else ''}"
    drawn.update_layout(
        LAYOUT,
        height=CHART_HEIGHT,
        margin={"t": TOP, "b": BOTTOM, "l": 60, "r": 12},
        showlegend=False,
    )
    for update, text, ends in (
        (drawn.update_xaxes, f"{metric}: mean over all clients", x_range),
        (drawn.update_yaxes, f"{metric}: worst 10 % of clients", y_range),
    ):
        update(AXIS, range=ends, title={"text": escape_html(text), "standoff": 6})
    note = (
        "Means over seeds; further up and to the right is better. No method beats one on the gray "
        "line, the Pareto front, in both."
    )
    return StudyChart("trade-off", "All clients against the worst", note, drawn)


def _merge_labels(points: Sequence[tuple[float, float]], names: Sequence[str]) -> dict[int, str]:
    """Return labels by the index of their point; points close together share one label."""
    merged: dict[int, list[str]] = {}
    for i, (point, name) in enumerate(zip(points, names, strict=True)):
        near = (first for first in merged if math.dist(points[first], point) < MARKER_RADIUS)
        merged.setdefault(next(near, i), []).append(name)
    return {
        first: ", ".join(same)
        if len(same) <= MAX_NAMES_PER_LABEL
        else f"{same[0]}, {len(same) - 1} others"
        for first, same in merged.items()
    }


def _pad_axis(values: np.ndarray, sign: float) -> list[float]:
    """Return the limits of an axis with space for labels, from worse to better."""
    low, high = float(values.min()), float(values.max())
    pad = 0.2 * (high - low) or 1.0
    return [low - pad, high + pad] if sign > 0 else [high + pad, low - pad]


def _to_pixels(value: float, ends: Sequence[float], length: float) -> float:
    return length * (value - ends[0]) / (ends[1] - ends[0])


def _draw_front(
    x: np.ndarray, y: np.ndarray, x_range: Sequence[float], y_range: Sequence[float]
) -> go.Scatter:
    """Draw the staircase that bounds the dominated region, worst x first."""
    return go.Scatter(
        x=[x_range[0], *x, x[-1]],
        y=[y[0], *y, y_range[0]],
        mode="lines",
        line={"shape": "vh", "color": MIDDLE, "width": 1.5},
        hoverinfo="skip",
    )


def _compute_front_boxes(front: Sequence[tuple[float, float]]) -> list[PixelBox]:
    """Return the boxes of the staircase through these points, in pixels."""
    before, after = [(0.0, 0.0), *front[:-1]], [*front[1:], (0.0, 0.0)]
    across = [(left, y, x, y) for (left, _), (x, y) in zip(before, front, strict=True)]
    down = [(x, low, x, y) for (_, low), (x, y) in zip(after, front, strict=True)]
    return [*across, *down]
