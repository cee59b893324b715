"""Build the chart of metrics over simulated seconds, for runs with slow clients."""

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from ..records.reader import Run
from ..records.round_record import RoundRecord
from ..rules.metrics import get_metric
from ..rules.types import FloatArray
from .chart_helpers import (
    PlottedMethod,
    format_group_label,
    format_loss_label,
    format_metric_label,
    get_metric_bounds,
    select_tested_groups,
)
from .chart_spec import MAX_POINTS, POSITIVE_BOUNDS, Line, LineChart, Panel
from .seed_groups import get_test_metric

TIME_NOTE = (
    "The virtual clock counts simulated seconds: a round lasts until its quorum has replied and "
    "the grace is over, or until the slowest client has replied. Each value is that of the last "
    "model evaluated by then; bands or bars are one standard deviation over seeds to either side."
)


def build_time_chart(methods: Sequence[PlottedMethod]) -> LineChart | None:
    """Build the chart of metrics over simulated seconds, or None without a virtual clock."""
    timed = [m for m in methods if all(map(_has_clock, m.group.counted_runs))]
    if not timed:
        return None
    clients = select_tested_groups(timed)[0]
    metric = timed[0].group.metric
    shown = "accuracy" if metric == "loss" else metric
    labels = {shown: format_metric_label(shown), "loss": format_loss_label(timed, "test loss")}
    panels = [
        _build_seconds_panel(
            timed,
            label,
            partial(_get_scaled_metric, clients, name),
            format_group_label(clients),
            get_metric_bounds({name}),
        )
        for name, label in labels.items()
    ]
    panels.append(
        _build_seconds_panel(
            timed, "late or busy clients, a round", lambda r: float(r.late + r.busy)
        )
    )
    return LineChart("time", "Over simulated seconds", TIME_NOTE, tuple(panels))


def _build_seconds_panel(
    methods: Sequence[PlottedMethod],
    label: str,
    value: Callable[[RoundRecord], float],
    title: str = "",
    bounds: tuple[float, float] = POSITIVE_BOUNDS,
) -> Panel:
    lines = [
        Line(method.label, method.style, seconds, mean, sd if sd.any() else None)
        for method in methods
        for seconds, mean, sd in [_average_over_seeds(method.group.counted_runs, value)]
        if len(seconds)
    ]
    return Panel(title, "simulated seconds", label, tuple(lines), bounds=bounds)


def _average_over_seeds(
    runs: Sequence[Run], value: Callable[[RoundRecord], float]
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return seconds, and the values' mean and standard deviation over seeds.

    Each seed's rounds end at different times: a seed counts with its last value so far. The range
    is from the latest first value to the earliest last value, where all seeds have one.
    """
    curves = [curve for curve in (_read_timed_values(run, value) for run in runs) if len(curve[0])]
    if not curves:
        return np.zeros(0), np.zeros(0), np.zeros(0)
    start = max(seconds[0] for seconds, _ in curves)
    end = min(seconds[-1] for seconds, _ in curves)
    grid = np.unique(np.concatenate([seconds for seconds, _ in curves]))
    grid = grid[(grid >= start) & (grid <= end)]
    if len(grid) > MAX_POINTS:
        grid = np.linspace(start, end, MAX_POINTS)
    values = np.stack(
        [y[np.searchsorted(seconds, grid, side="right") - 1] for seconds, y in curves]
    )
    sd = values.std(axis=0, ddof=1) if len(values) > 1 else np.zeros(len(grid))
    return grid, values.mean(axis=0), sd


def _read_timed_values(
    run: Run, value: Callable[[RoundRecord], float]
) -> tuple[FloatArray, FloatArray]:
    """Return the rounds' simulated seconds and finite values."""
    pairs = [(r.simulated_seconds or 0.0, value(r)) for r in run.rounds]
    found = np.array([pair for pair in pairs if math.isfinite(pair[1])]).reshape(-1, 2)
    return found[:, 0], found[:, 1]


def _has_clock(run: Run) -> bool:
    return run.rounds[-1].simulated_seconds is not None


def _get_scaled_metric(clients: str, name: str, record: RoundRecord) -> float:
    return get_metric(name).scale * get_test_metric(record, clients, name)
