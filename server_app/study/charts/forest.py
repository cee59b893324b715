"""Build the forest plot: each method's difference from the baseline."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go
from fedquorum.report.plotly_charts import AXIS, GRAY, LAYOUT, add_opacity, escape_html

from server_app.study.charts.helpers import (
    DARK,
    StudyChart,
    add_text,
    expand_range,
    get_baseline,
    get_method_color,
)
from server_app.study.paired_statistics import PairedDifference
from server_app.study.result import MethodResult, StudyResult
from server_app.study.tables import rank_methods
from server_app.study.text import format_method_name, format_percent, get_unit

TRANSLUCENT = "rgba(255, 255, 255, 0.75)"
ROW, FOREST_ENDS = 58, 120
"""Pixels of a row, and of the margins above and below all rows."""

NAME_UP, SEEDS_UP = 0.34, 0.04
"""Offsets from a row's position; rows are 1 apart."""


def compute_differences_by_seed(result: StudyResult, method: MethodResult) -> list[float]:
    """Return a method's improvement over the baseline in each common seed."""
    sign = get_unit(result).sign
    baseline = {run.seed: run.score for run in get_baseline(result).runs}
    return [sign * (run.score - baseline[run.seed]) for run in method.runs if run.seed in baseline]


def build_forest_chart(result: StudyResult) -> StudyChart:
    """Build the forest plot of differences from the baseline, with intervals.

    With too few seeds for intervals it shows only single seeds.
    """
    unit, baseline = get_unit(result), format_method_name(result.baseline)
    rows = _build_forest_rows(result)
    low, high = (unit.factor * end for end in _compute_x_limits(rows, result.min_effect))
    drawn = go.Figure(
        [trace for index, row in enumerate(rows) for trace in row.build_traces(-index)]
    )
    for index, row in enumerate(rows):
        add_text(drawn, 0, NAME_UP - index, row.heading, xref="paper", bgcolor=TRANSLUCENT)
    add_text(drawn, 0, 1, escape_html(baseline), yref="paper", xanchor="center", yanchor="bottom")
    drawn.update_layout(
        LAYOUT,
        height=ROW * len(rows) + FOREST_ENDS,
        margin={"t": 24, "b": 70, "l": 12, "r": 12},
        showlegend=False,
        shapes=_build_margin_shapes(result.min_effect * unit.factor),
    )
    in_unit = f", {unit.unit}" if unit.unit else ""
    label = escape_html(f"{unit.metric}: better than {baseline} by …{in_unit}")
    drawn.update_xaxes(AXIS, range=[low, high], title={"text": label, "standoff": 6})
    drawn.update_yaxes(visible=False, range=[0.6 - len(rows), 0.6], fixedrange=True)
    heading = f"How much better than {baseline}"
    return StudyChart("differences", heading, _format_forest_note(result), drawn)


@dataclass(frozen=True)
class _ForestRow:
    """A method of the forest plot.

    Parameters
    ----------
    heading : str
        The method's name and numbers, as HTML for Plotly.
    color : str
    factor : float
        The factor from differences to the axis's unit.
    seed_values : sequence of float
        The difference in each seed.
    over_seeds : PairedDifference or None
        The interval, if there is one.
    """

    heading: str
    color: str
    factor: float
    seed_values: Sequence[float]
    over_seeds: PairedDifference | None

    @property
    def values(self) -> list[float]:
        """All numbers that the axis must include."""
        one = self.over_seeds
        return [*self.seed_values, *(() if one is None else (one.low, one.high))]

    def build_traces(self, y: float) -> Iterator[go.Scatter]:
        """Yield the traces of the row at ``y``."""
        if self.over_seeds is not None:
            yield _draw_thick_interval(self.over_seeds, self.factor, y + SEEDS_UP, self.color)
        yield _draw_seed_dots(self.seed_values, self.factor, y + SEEDS_UP, self.color)


def _build_forest_rows(result: StudyResult) -> list[_ForestRow]:
    unit = get_unit(result)
    over_seeds = _group_by_method(() if result.decision is None else result.decision.differences)
    rows = []
    for method in rank_methods(result):
        if method.name != result.baseline:
            one = over_seeds.get(method.name)
            heading = f"<b>{escape_html(format_method_name(method.name))}</b>"
            if one is not None:
                ends = unit.format_interval(one.low, one.high, signed=True)
                heading += f"  {unit.format_number(one.difference, signed=True)} ({ends})"
            seed_values = compute_differences_by_seed(result, method)
            color = get_method_color(result, method.name)
            rows.append(_ForestRow(heading, color, unit.factor, seed_values, one))
    return rows


def _compute_x_limits(rows: Sequence[_ForestRow], margin: float) -> tuple[float, float]:
    """Return the limits of the x axis: all rows and the margin around 0, padded."""
    numbers = [margin, -margin, *(number for row in rows for number in row.values)]
    return expand_range(min(numbers), max(numbers))


def _group_by_method(comparisons: Sequence[PairedDifference]) -> dict[str, PairedDifference]:
    return {one.method: one for one in comparisons}


def _draw_thick_interval(
    interval: PairedDifference, factor: float, y: float, color: str
) -> go.Scatter:
    return go.Scatter(
        x=[factor * interval.low, factor * interval.difference, factor * interval.high],
        y=[y] * 3,
        mode="lines+markers",
        line={"color": add_opacity(color, 0.45), "width": 7},
        marker={"color": color, "size": [0, 13, 0], "symbol": "square", "opacity": 1},
        hovertemplate="over seeds: %{x:.4g}<extra></extra>",
    )


def _draw_seed_dots(
    differences: Sequence[float], factor: float, y: float, color: str
) -> go.Scatter:
    return go.Scatter(
        x=[factor * one for one in differences],
        y=[y] * len(differences),
        mode="markers",
        marker={"color": "white", "size": 6, "line": {"color": color, "width": 1.5}},
        hovertemplate="one seed: %{x:.4g}<extra></extra>",
    )


def _build_margin_shapes(margin: float) -> list[dict[str, object]]:
    across = {"yref": "paper", "y0": 0, "y1": 1, "layer": "below"}
    band = {"type": "rect", "x0": -margin, "x1": margin, **across, "line": {"width": 0}}
    zero = {"type": "line", "x0": 0, "x1": 0, **across, "line": {"color": DARK, "width": 1}}
    return [{**band, "fillcolor": GRAY, "opacity": 0.7}, zero]


def _format_forest_note(result: StudyResult) -> str:
    level, unit = format_percent(result.confidence), get_unit(result)
    shaded = f"Shaded: differences within the margin of {unit.format_amount(result.min_effect)}."
    dots = "Dots: single seeds, each method beside the baseline with the same seed."
    if result.decision is None:
        return f"{dots} {shaded} There are too few seeds for intervals."
    return (
        f"Square and thick bar: mean over seeds with its {level} interval, simultaneous over all "
        f"methods. {dots} {shaded}"
    )
