"""What the page of a study draws: differences, the trade-off, scores by round, and the tuning."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
import plotly.graph_objects as go

from server_app.report.charts import ANY, COLOURS, Line, LineChart, Panel, thinned
from server_app.report.interactive import (
    AXIS,
    GREY,
    LAYOUT,
    figure,
    plain_text,
    style_of,
    transparent,
)
from server_app.study.answer import Answer, MethodResult, SeedRun, Trial
from server_app.study.decision import Comparison
from server_app.study.placing import LINE, Box, apart, sides
from server_app.study.tables import ALL, WORST, mean_measure, ranked
from server_app.study.words import choice, compared, percent, title, unit_of, whose

Lines = Mapping[int, list[float]]
"""Values of several seeds, by round."""

BLACK = COLOURS.index("#000000")
DARK, PALE, MIDDLE = "#444444", "#C4C4C4", "#8A8A8A"
TRANSLUCENT = "rgba(255, 255, 255, 0.75)"

# Pixels.
HEIGHT = 380
ROW, FOREST_ENDS = 58, 120
TUNING_HEIGHT = 250
LETTER, NO_LABELS, MOST_LABELS = 6.5, 16, 170
CHART_WIDTH, CHART_SPACE = 310, 80
"""Of the trade-off on a telephone: labels that fit there fit everywhere."""

TOP, BOTTOM = 16, 60

# Within a row of the forest plot, of which the lines are 1 apart.
NAME_UP, SEEDS_UP, CLIENTS_UP = 0.34, 0.04, -0.24
PAD = 0.06


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


def study_charts(answer: Answer) -> Iterator[StudyChart]:
    """Yield the charts of which there is anything to draw."""
    if not any(method.runs for method in compared(answer)):
        return
    if len(compared(answer)) > 1:
        yield forest_chart(answer)
    if trade_off(answer):
        yield trade_off_chart(answer)
    yield from round_charts(answer)


# --- differences ------------------------------------------------------------------------------


def seed_differences(answer: Answer, method: MethodResult) -> list[float]:
    """Return by how much a method is better than the baseline in each seed that both have."""
    sign = unit_of(answer).sign
    baseline = {run.seed: run.score for run in _baseline(answer).runs}
    return [sign * (run.score - baseline[run.seed]) for run in method.runs if run.seed in baseline]


def forest_chart(answer: Answer) -> StudyChart:
    """Return the forest plot: of each method the difference from the baseline, with intervals.

    Before there are enough seeds for intervals it has the single seeds alone.
    """
    unit, baseline = unit_of(answer), title(answer.baseline)
    rows = _forest_rows(answer)
    low, high = (unit.factor * end for end in _extent(rows, answer.margin))
    drawn = go.Figure([trace for place, row in enumerate(rows) for trace in row.traces(-place)])
    for place, row in enumerate(rows):
        _write(drawn, 0, NAME_UP - place, row.heading, xref="paper", bgcolor=TRANSLUCENT)
    _write(drawn, 0, 1, plain_text(baseline), yref="paper", xanchor="center", yanchor="bottom")
    drawn.update_layout(
        LAYOUT,
        height=ROW * len(rows) + FOREST_ENDS,
        margin={"t": 24, "b": 70, "l": 12, "r": 12},
        showlegend=False,
        shapes=_zero_and_margin(answer.margin * unit.factor),
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
    pad = PAD * (max(seen) - min(seen)) or 1.0
    return min(seen) - pad, max(seen) + pad


def _write(drawn: go.Figure, x: float, y: float, text: str, **look: object) -> None:
    """Write a text into a figure, at the right of a place unless the look says otherwise."""
    usual = {"showarrow": False, "xanchor": "left", "yanchor": "middle", "align": "left"}
    drawn.add_annotation(x=x, y=y, text=text, **(usual | look))


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
    level, unit = percent(answer.level), unit_of(answer)
    shaded = f"Shaded: differences within the margin of {unit.amount(answer.margin)}."
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


# --- the trade-off ----------------------------------------------------------------------------


def trade_off(answer: Answer) -> dict[str, tuple[float, float]]:
    """Return mean over clients and worst 10 % of each method that has both, mean over seeds."""
    points = {
        method.name: (mean_measure(method.runs, ALL), mean_measure(method.runs, WORST))
        for method in compared(answer)
    }
    return {name: point for name, point in points.items() if not any(map(math.isnan, point))}


def pareto_front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Return the points that no other is at least as good as in both, and better in one.

    Parameters
    ----------
    points : sequence of (x, y)
        Higher is better in both.

    Returns
    -------
    list of int
        Their positions, by ascending x.
    """

    def beaten(point: tuple[float, float]) -> bool:
        x, y = point
        return any(a >= x and b >= y and (a, b) != point for a, b in points)

    kept = [place for place, point in enumerate(points) if not beaten(point)]
    return sorted(kept, key=points.__getitem__)


def trade_off_chart(answer: Answer) -> StudyChart:
    """Return the mean over all clients against the worst 10 %, with the Pareto front."""
    unit, found = unit_of(answer), trade_off(answer)
    names = list(found)
    x, y = (unit.factor * np.array(axis) for axis in zip(*found.values(), strict=True))
    towards = unit.sign * np.column_stack([x, y])
    front = pareto_front([(float(a), float(b)) for a, b in towards])
    texts = [title(name) for name in names]
    x_range, y_range = (_padded(axis, unit.sign) for axis in (x, y))
    pixels = [
        (_pixels(a, x_range, CHART_WIDTH), _pixels(b, y_range, HEIGHT - CHART_SPACE))
        for a, b in zip(x, y, strict=True)
    ]
    drawn = go.Figure(_staircase(x[front], y[front], x_range, y_range))
    drawn.add_trace(
        go.Scatter(
            x=x,
            y=y,
            mode="markers+text",
            text=[plain_text(text) for text in texts],
            textposition=sides(pixels, texts, CHART_WIDTH, _steps([pixels[i] for i in front])),
            marker={"color": [colour_of(answer, name) for name in names], "size": 10},
            hovertemplate="%{text}: %{x:.4g}, worst 10 %: %{y:.4g}<extra></extra>",
        )
    )
    in_unit = answer.measured.title.partition(", ")[2]
    named = f"{unit.metric}{f', {in_unit}' if in_unit else ''}"
    drawn.update_layout(
        LAYOUT,
        height=HEIGHT,
        margin={"t": TOP, "b": BOTTOM, "l": 60, "r": 12},
        showlegend=False,
    )
    for update, text, ends in (
        (drawn.update_xaxes, f"{named}: mean over all clients", x_range),
        (drawn.update_yaxes, f"{named}: worst 10 % of clients", y_range),
    ):
        update(AXIS, range=ends, title={"text": plain_text(text), "standoff": 6})
    note = (
        "Means over seeds; further up and to the right is better. No method beats one on the grey "
        "line, the Pareto front, in both."
    )
    return StudyChart("trade-off", "All clients against the worst", note, drawn)


def _padded(values: np.ndarray, sign: float) -> list[float]:
    """Return an axis with room for labels, from worse to better."""
    low, high = float(values.min()), float(values.max())
    pad = 0.2 * (high - low) or 1.0
    return [low - pad, high + pad] if sign > 0 else [high + pad, low - pad]


def _pixels(value: float, ends: Sequence[float], length: float) -> float:
    return length * (value - ends[0]) / (ends[1] - ends[0])


def _staircase(
    x: np.ndarray, y: np.ndarray, x_range: Sequence[float], y_range: Sequence[float]
) -> go.Scatter:
    """Return the border of what is worse than a point of the front, worst x first."""
    return go.Scatter(
        x=[x_range[0], *x, x[-1]],
        y=[y[0], *y, y_range[0]],
        mode="lines",
        line={"shape": "vh", "color": MIDDLE, "width": 1.5},
        hoverinfo="skip",
    )


def _steps(front: Sequence[tuple[float, float]]) -> list[Box]:
    """Return where the staircase of these points runs, in pixels."""
    before, after = [(0.0, 0.0), *front[:-1]], [*front[1:], (0.0, 0.0)]
    across = [(left, y, x, y) for (left, _), (x, y) in zip(before, front, strict=True)]
    down = [(x, low, x, y) for (_, low), (x, y) in zip(after, front, strict=True)]
    return [*across, *down]


# --- by round ---------------------------------------------------------------------------------


def round_charts(answer: Answer) -> Iterator[StudyChart]:
    """Yield the score by round, and by how much it is better than the baseline's."""
    unit, baseline = unit_of(answer), _baseline(answer)
    scores = {m.name: _by_round(m.runs, lambda run: dict(run.curve)) for m in compared(answer)}
    in_unit = answer.measured.title.partition(", ")[2]
    label = f"{unit.metric} of {whose(answer)}{f', {in_unit}' if in_unit else ''}"
    drawn = _over_rounds(answer, scores, label, _deviation)
    if drawn is not None:
        note = "On test parts: mean over seeds, band: ± one standard deviation."
        yield StudyChart("scores", "Score by round", note, drawn)
    first = {run.seed: dict(run.curve) for run in baseline.runs}

    def lead(run: SeedRun) -> dict[int, float]:
        other = first.get(run.seed, {})
        return {t: unit.sign * (value - other[t]) for t, value in run.curve if t in other}

    leads = {
        method.name: _by_round(method.runs, lead)
        for method in compared(answer)
        if method is not baseline
    }
    name = title(answer.baseline)
    label = f"better than {name} by …{f', {unit.unit}' if unit.unit else ''}"
    drawn = _over_rounds(answer, leads, label, _standard_error)
    if drawn is not None:
        drawn.add_hline(0, line={"color": DARK, "width": 1}, layer="below")
        note = "Paired by seed: mean of the differences, band: ± one standard error."
        yield StudyChart("leads", f"Lead over {name} by round", note, drawn)


def _by_round(runs: Sequence[SeedRun], values: Callable[[SeedRun], Mapping[int, float]]) -> Lines:
    """Return the values of all seeds after each round that all of them measured."""
    curves = [values(run) for run in runs]
    shared = sorted(set.intersection(*(set(one) for one in curves))) if curves else []
    return {t: [one[t] for one in curves] for t in shared}


def _deviation(values: Sequence[float]) -> float:
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def _standard_error(values: Sequence[float]) -> float:
    return _deviation(values) / math.sqrt(len(values))


def _over_rounds(
    answer: Answer,
    series: Mapping[str, Lines],
    label: str,
    spread: Callable[[Sequence[float]], float],
) -> go.Figure | None:
    """Return a line for each method with its name at its end; None without anything to draw."""
    unit, style = unit_of(answer), styles(answer)
    lines = []
    for name, values in series.items():
        if values:
            kept = thinned(len(values))
            rounds = np.array(list(values), dtype=np.float64)[kept]
            mean = unit.factor * np.array([fmean(one) for one in values.values()])[kept]
            band = unit.factor * np.array([spread(one) for one in values.values()])[kept]
            lines.append(Line(title(name), style[name], rounds, mean, band if band.any() else None))
    if not lines:
        return None
    drawn = figure(LineChart("", "", "", (Panel("", "round", label, tuple(lines), bounds=ANY),)))
    longest = LETTER * max(len(line.label) for line in lines) + NO_LABELS
    drawn.update_layout(
        height=HEIGHT,
        margin={"t": TOP, "b": BOTTOM, "l": 60, "r": min(MOST_LABELS, longest)},
        showlegend=False,
    )
    low, high = _ends(lines)
    drawn.update_yaxes(range=[low, high])
    line_height = LINE * (high - low) / (HEIGHT - TOP - BOTTOM)
    places = apart([float(line.y[-1]) for line in lines], line_height, low, high)
    for line, y in zip(lines, places, strict=True):
        colour, _ = style_of(line.style)
        font, text = {"color": colour}, plain_text(line.label)
        _write(drawn, 1, y, text, xref="paper", xshift=4, font=font)
    return drawn


def _ends(lines: Sequence[Line]) -> tuple[float, float]:
    """Return the least and the greatest value with its band, and a little more."""
    spreads = [np.zeros_like(line.y) if line.spread is None else line.spread for line in lines]
    low = min(float((line.y - band).min()) for line, band in zip(lines, spreads, strict=True))
    high = max(float((line.y + band).max()) for line, band in zip(lines, spreads, strict=True))
    pad = PAD * (high - low) or 1.0
    return low - pad, high + pad


# --- the tuning -------------------------------------------------------------------------------


def tuning_charts(answer: Answer) -> Iterator[StudyChart]:
    """Yield, for each method, the score on validation parts of all trials, the best one strong."""
    shown = [m for m in compared(answer) if any(trial.curve for trial in m.trials)]
    values = [v for m in shown for trial in m.trials for _, v in trial.curve]
    if not values:
        return
    unit = unit_of(answer)
    low, high = min(values) * unit.factor, max(values) * unit.factor
    pad = PAD * (high - low) or 1.0
    for method in shown:
        drawn = go.Figure([*_trials(answer, method)])
        drawn.update_layout(
            LAYOUT,
            height=TUNING_HEIGHT,
            margin={"t": 8, "b": 44, "l": 48, "r": 8},
            showlegend=False,
            hovermode="closest",
        )
        drawn.update_xaxes(AXIS, title={"text": "round", "standoff": 4})
        drawn.update_yaxes(AXIS, range=[low - pad, high + pad])
        yield StudyChart(
            f"tuning-{answer.methods.index(method)}",
            title(method.name),
            _tuning_note(method),
            drawn,
            small=True,
        )


def _trials(answer: Answer, method: MethodResult) -> Iterator[go.Scatter]:
    """Yield the trials' curves, those that matter more later, so on top."""
    best = best_trial(method)

    def weight(trial: Trial) -> int:
        return 2 if trial is best else int(trial.status == "completed")

    looks = ({"color": PALE, "width": 1}, {"color": MIDDLE, "width": 1.2})
    strong = {"color": colour_of(answer, method.name), "width": 3}
    for trial in sorted(method.trials, key=weight):
        values = ", ".join(map(choice, trial.words)) or "as set"
        yield _trial(trial, (*looks, strong)[weight(trial)], values, unit_of(answer).factor)


def _trial(trial: Trial, line: Mapping[str, object], values: str, factor: float) -> go.Scatter:
    return go.Scatter(
        x=[number for number, _ in trial.curve],
        y=[factor * score for _, score in trial.curve],
        mode="lines" if len(trial.curve) > 1 else "markers",
        line=line,
        marker={"color": line["color"]},
        text=plain_text(f"{values} ({trial.status})"),
        hovertemplate="%{text}<br>round %{x}: %{y:.4g}<extra></extra>",
    )


def best_trial(method: MethodResult) -> Trial | None:
    """Return the trial whose values the method was compared with."""
    return next((trial for trial in method.trials if trial.words == method.tuned), None)


def _tuning_note(method: MethodResult) -> str:
    count = len(method.trials)
    said = [f"{count} trial{'s' if count != 1 else ''}"]
    said += [
        f"{number} {status}"
        for status in ("pruned", "failed")
        if (number := sum(trial.status == status for trial in method.trials))
    ]
    best = ", ".join(map(choice, method.tuned)) or "the settings as they were"
    return f"{', '.join(said)}. Best: {best}."


def _baseline(answer: Answer) -> MethodResult:
    return next(method for method in answer.methods if method.name == answer.baseline)
