"""Build the charts of scores, and of leads over the baseline, by round."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean

import numpy as np
import plotly.graph_objects as go
from fedquorum.report.chart_spec import NO_BOUNDS, Line, LineChart, Panel, sample_indices
from fedquorum.report.plotly_charts import build_panel_figure

from server_app.study.charts.helpers import CHART_HEIGHT, DARK, StudyChart, get_baseline, get_styles
from server_app.study.result import SeedRun, StudyResult
from server_app.study.text import (
    describe_score_clients,
    format_method_name,
    get_compared_methods,
    get_unit,
)

ValuesByRound = Mapping[int, list[float]]
"""Values of several seeds, by round."""


def build_round_charts(result: StudyResult) -> Iterator[StudyChart]:
    """Yield the charts of the score, and of its lead over the baseline's, by round."""
    unit, baseline = get_unit(result), get_baseline(result)
    scores = {
        m.name: _group_by_round(m.runs, lambda run: dict(run.curve))
        for m in get_compared_methods(result)
    }
    in_unit = result.metric_info.title.partition(", ")[2]
    label = f"{unit.metric} of {describe_score_clients(result)}{f', {in_unit}' if in_unit else ''}"
    drawn = _draw_over_rounds(result, scores, label, _compute_deviation)
    if drawn is not None:
        note = "On test splits: mean over seeds, ± one standard deviation."
        yield StudyChart("scores", "Score by round", note, drawn)
    baseline_curves = {run.seed: dict(run.curve) for run in baseline.runs}

    def compute_lead(run: SeedRun) -> dict[int, float]:
        other = baseline_curves.get(run.seed, {})
        return {t: unit.sign * (value - other[t]) for t, value in run.curve if t in other}

    leads = {
        method.name: _group_by_round(method.runs, compute_lead)
        for method in get_compared_methods(result)
        if method is not baseline
    }
    name = format_method_name(result.baseline)
    label = f"better than {name} by …{f', {unit.unit}' if unit.unit else ''}"
    drawn = _draw_over_rounds(result, leads, label, _compute_standard_error)
    if drawn is not None:
        drawn.add_hline(0, line={"color": DARK, "width": 1}, layer="below")
        note = "Paired by seed: mean of the differences, ± one standard error."
        yield StudyChart("leads", f"Lead over {name} by round", note, drawn)


def _group_by_round(
    runs: Sequence[SeedRun], get_values: Callable[[SeedRun], Mapping[int, float]]
) -> ValuesByRound:
    """Return the values of all seeds after each round that all of them have."""
    curves = [get_values(run) for run in runs]
    shared = sorted(set.intersection(*(set(one) for one in curves))) if curves else []
    return {t: [one[t] for one in curves] for t in shared}


def _compute_deviation(values: Sequence[float]) -> float:
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def _compute_standard_error(values: Sequence[float]) -> float:
    return _compute_deviation(values) / math.sqrt(len(values))


def _draw_over_rounds(
    result: StudyResult,
    series: Mapping[str, ValuesByRound],
    label: str,
    compute_half_width: Callable[[Sequence[float]], float],
) -> go.Figure | None:
    """Draw a line for each method with its name at its end, or return None without data."""
    unit, style = get_unit(result), get_styles(result)
    lines = []
    for name, values in series.items():
        if values:
            indices = sample_indices(len(values))
            rounds = np.array(list(values), dtype=np.float64)[indices]
            mean = unit.factor * np.array([fmean(one) for one in values.values()])[indices]
            half_widths = np.array([compute_half_width(one) for one in values.values()])
            band = unit.factor * half_widths[indices]
            lines.append(
                Line(
                    format_method_name(name),
                    style[name],
                    rounds,
                    mean,
                    band if band.any() else None,
                )
            )
    if not lines:
        return None
    panel = Panel("", "round", label, tuple(lines), bounds=NO_BOUNDS)
    return build_panel_figure(LineChart("", "", "", (panel,)), panel, CHART_HEIGHT)
