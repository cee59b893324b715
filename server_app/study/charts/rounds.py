"""Scores by round, and how far ahead of the baseline they are."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean

import numpy as np
import plotly.graph_objects as go

from server_app.report.charts import ANY, Line, LineChart, Panel, thinned
from server_app.report.interactive import panel_figure
from server_app.study.answer import Answer, SeedRun
from server_app.study.charts.parts import DARK, HEIGHT, StudyChart, baseline_of, styles
from server_app.study.words import compared, title, unit_of, whose

Lines = Mapping[int, list[float]]
"""Values of several seeds, by round."""


def round_charts(answer: Answer) -> Iterator[StudyChart]:
    """Yield the score by round, and by how much it is better than the baseline's."""
    unit, baseline = unit_of(answer), baseline_of(answer)
    scores = {m.name: _by_round(m.runs, lambda run: dict(run.curve)) for m in compared(answer)}
    in_unit = answer.measured.title.partition(", ")[2]
    label = f"{unit.metric} of {whose(answer)}{f', {in_unit}' if in_unit else ''}"
    drawn = _over_rounds(answer, scores, label, _deviation)
    if drawn is not None:
        note = "On test parts: mean over seeds, ± one standard deviation."
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
        note = "Paired by seed: mean of the differences, ± one standard error."
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
    panel = Panel("", "round", label, tuple(lines), bounds=ANY)
    return panel_figure(LineChart("", "", "", (panel,)), panel, HEIGHT)
