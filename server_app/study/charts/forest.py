"""The forest plot: how much better each method is than the baseline."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from server_app.report.interactive import (
    AXIS,
    GREY,
    LAYOUT,
    plain_text,
    transparent,
)
from server_app.study.answer import Answer, MethodResult
from server_app.study.charts.parts import (
    DARK,
    StudyChart,
    baseline_of,
    colour_of,
    padded,
    write,
)
from server_app.study.decision import Comparison
from server_app.study.tables import ranked
from server_app.study.words import percent, title, unit_of

TRANSLUCENT = "rgba(255, 255, 255, 0.75)"
ROW, FOREST_ENDS = 58, 120
"""Pixels of a row, and of what is above and below all of them."""

NAME_UP, SEEDS_UP, CLIENTS_UP = 0.34, 0.04, -0.24
"""Within a row, of which the lines are 1 apart."""


def seed_differences(answer: Answer, method: MethodResult) -> list[float]:
    """Return by how much a method is better than the baseline in each seed that both have."""
    sign = unit_of(answer).sign
    baseline = {run.seed: run.score for run in baseline_of(answer).runs}
    return [sign * (run.score - baseline[run.seed]) for run in method.runs if run.seed in baseline]


def forest_chart(answer: Answer) -> StudyChart:
    """Return the forest plot: of each method the difference from the baseline, with intervals.

    Before there are enough seeds for intervals it has the single seeds alone.
    """
    unit, baseline = unit_of(answer), title(answer.baseline)
    rows = _forest_rows(answer)
    low, high = (unit.factor * end for end in _extent(rows, answer.min_effect))
    drawn = go.Figure([trace for place, row in enumerate(rows) for trace in row.traces(-place)])
    for place, row in enumerate(rows):
        write(drawn, 0, NAME_UP - place, row.heading, xref="paper", bgcolor=TRANSLUCENT)
    write(drawn, 0, 1, plain_text(baseline), yref="paper", xanchor="center", yanchor="bottom")
    drawn.update_layout(
        LAYOUT,
        height=ROW * len(rows) + FOREST_ENDS,
        margin={"t": 24, "b": 70, "l": 12, "r": 12},
        showlegend=False,
        shapes=_zero_and_margin(answer.min_effect * unit.factor),
    )
    in_unit = f", {unit.unit}" if unit.unit else ""
    label = plain_text(f"{unit.metric}: better than {baseline} by …{in_unit}")
    drawn.update_xaxes(AXIS, range=[low, high], title={"text": label, "standoff": 6})
    drawn.update_yaxes(visible=False, range=[0.6 - len(rows), 0.6], fixedrange=True)
    heading = f"How much better than {baseline}"
    return StudyChart("differences", heading, _forest_note(answer), drawn)


@dataclass(frozen=True)
class _ForestRow:
    """A method of the forest plot.

    Parameters
    ----------
    heading : str
        Its name and numbers, as Plotly reads it.
    colour : str
        Its colour.
    factor : float
        What turns differences into the axis's unit.
    single : sequence of float
        The difference in each seed.
    over_seeds, over_clients : Comparison or None
        The intervals, as far as there are any.
    """

    heading: str
    colour: str
    factor: float
    single: Sequence[float]
    over_seeds: Comparison | None
    over_clients: Comparison | None

    @property
    def numbers(self) -> list[float]:
        """All that the row has to have room for."""
        intervals = (one for one in (self.over_seeds, self.over_clients) if one is not None)
        return [*self.single, *(end for one in intervals for end in (one.low, one.high))]

    def traces(self, y: float) -> Iterator[go.Scatter]:
        """Yield what is drawn of the row, which lies at ``y``."""
        if self.over_clients is not None:
            yield _thin(self.over_clients, self.factor, y + CLIENTS_UP, self.colour)
        if self.over_seeds is not None:
            yield _thick(self.over_seeds, self.factor, y + SEEDS_UP, self.colour)
        yield _dots(self.single, self.factor, y + SEEDS_UP, self.colour)


def _forest_rows(answer: Answer) -> list[_ForestRow]:
    unit = unit_of(answer)
    over_seeds = _by_method(() if answer.decision is None else answer.decision.comparisons)
    over_clients = _by_method(answer.over_clients)
    rows = []
    for method in ranked(answer):
        if method.name != answer.baseline:
            one, heading = over_seeds.get(method.name), f"<b>{plain_text(title(method.name))}</b>"
            if one is not None:
                ends = unit.interval(one.low, one.high, signed=True)
                heading += f"  {unit.number(one.difference, signed=True)} ({ends})"
            single, colour = seed_differences(answer, method), colour_of(answer, method.name)
            clients = over_clients.get(method.name)
            rows.append(_ForestRow(heading, colour, unit.factor, single, one, clients))
    return rows


def _extent(rows: Sequence[_ForestRow], margin: float) -> tuple[float, float]:
    """Return the ends of the axis: all rows, 0 and the margin, and a little more."""
    seen = [margin, -margin, *(number for row in rows for number in row.numbers)]
    return padded(min(seen), max(seen))


def _by_method(comparisons: Sequence[Comparison]) -> dict[str, Comparison]:
    return {one.method: one for one in comparisons}


def _thick(one: Comparison, factor: float, y: float, colour: str) -> go.Scatter:
    return go.Scatter(
        x=[factor * one.low, factor * one.difference, factor * one.high],
        y=[y] * 3,
        mode="lines+markers",
        line={"color": transparent(colour, 0.45), "width": 7},
        marker={"color": colour, "size": [0, 13, 0], "symbol": "square", "opacity": 1},
        hovertemplate="over seeds: %{x:.4g}<extra></extra>",
    )


def _thin(one: Comparison, factor: float, y: float, colour: str) -> go.Scatter:
    return go.Scatter(
        x=[factor * one.low, factor * one.difference, factor * one.high],
        y=[y] * 3,
        mode="lines+markers",
        line={"color": colour, "width": 1.2},
        marker={
            "color": colour,
            "size": [9, 7, 9],
            "symbol": ["line-ns-open", "diamond-open", "line-ns-open"],
        },
        hovertemplate="over clients: %{x:.4g}<extra></extra>",
    )


def _dots(differences: Sequence[float], factor: float, y: float, colour: str) -> go.Scatter:
    return go.Scatter(
        x=[factor * one for one in differences],
        y=[y] * len(differences),
        mode="markers",
        marker={"color": "white", "size": 6, "line": {"color": colour, "width": 1.5}},
        hovertemplate="one seed: %{x:.4g}<extra></extra>",
    )


def _zero_and_margin(margin: float) -> list[dict[str, object]]:
    across = {"yref": "paper", "y0": 0, "y1": 1, "layer": "below"}
    band = {"type": "rect", "x0": -margin, "x1": margin, **across, "line": {"width": 0}}
    zero = {"type": "line", "x0": 0, "x1": 0, **across, "line": {"color": DARK, "width": 1}}
    return [{**band, "fillcolor": GREY, "opacity": 0.7}, zero]


def _forest_note(answer: Answer) -> str:
    level, unit = percent(answer.confidence), unit_of(answer)
    shaded = f"Shaded: differences within the margin of {unit.amount(answer.min_effect)}."
    dots = "Dots: single seeds, each method beside the baseline with the same seed."
    if answer.decision is None:
        return f"{dots} {shaded} There are too few seeds for intervals."
    clients = ""
    if answer.over_clients:
        clients = (
            f" Thin: {level} interval over the clients of these divisions of the data, which is "
            "another question."
        )
    return (
        f"Square and thick bar: mean over seeds with its {level} interval, simultaneous over all "
        f"methods.{clients} {dots} {shaded}"
    )
