"""The charts of a run that is followed, in the report's look."""

from collections.abc import Iterator

import numpy as np
from fedquorum.metrics import metric_called
from fedquorum.records.round_record import MORE_GROUPS, TEST_GROUPS
from fedquorum.report import STATUSES
from fedquorum.types import FloatArray

from server_app.report.chart_parts import bounds_of, metric_label, whose
from server_app.report.charts import POSITIVE, Line, LineChart, Panel, thinned
from server_app.report.groups import TESTED
from server_app.report.watch.rounds import Rounds

LARGEST = float(np.finfo(np.float32).max)  # what the page gets are float32
STATUS_STYLES = {
    "trained": 0,
    "silent": 5,
    "unavailable": 2,
    "rejected": 1,
    "failed": 6,
    "late": 3,
    "busy": 4,
}
"""The places of the colours among the report's: those of its raster, where lines can have them."""


@np.errstate(over="ignore", invalid="ignore")  # records hold any number
def charts(rounds: Rounds, metric: str) -> tuple[LineChart, ...]:
    """Return what is drawn of a run's rounds; ``metric`` is ``evaluation.metric``."""
    clock = rounds.column("simulated_seconds")
    drawn = (
        LineChart(
            "training",
            "Accuracy and loss",
            "Test metrics are of the model after the round, F(w) of the model broadcast in it. The "
            "mean is by training data, the worst is that of a single client.",
            tuple(_training_panels(rounds, metric, clock)),
        ),
        LineChart(
            "rounds",
            "Clients and time",
            "A long run is drawn with every few rounds left out.",
            tuple(_round_panels(rounds, clock)),
        ),
    )
    return tuple(chart for chart in drawn if chart.panels)


def _training_panels(rounds: Rounds, metric: str, clock: FloatArray) -> Iterator[Panel]:
    number = rounds.column("round")
    tested = _tested_groups(rounds)
    for name in dict.fromkeys((metric, "accuracy")):
        for group in tested:
            lines = _test_lines(rounds, group, name, number, spread=name == metric)
            yield from _panel("round", metric_label(name), lines, whose(group), bounds_of({name}))
    lines = _line("F(w)", 4, number, rounds.column("global_loss"))
    yield from _panel("round", "training loss F(w), nats", lines)
    for group in tested[:1]:
        lines = _test_lines(rounds, group, metric, clock, spread=True)
        yield from _panel("simulated seconds", metric_label(metric), lines, whose(group))


def _round_panels(rounds: Rounds, clock: FloatArray) -> Iterator[Panel]:
    number = rounds.column("round")
    counts = {status: rounds.column(status) for status in STATUSES}
    lines = tuple(
        line
        for status, style in STATUS_STYLES.items()
        if counts[status].any()
        for line in _line(status, style, number, counts[status])
    )
    yield from _panel("round", "clients asked", lines)
    seconds = _line("time", 15, number, rounds.column("seconds"))
    yield from _panel("round", "seconds a round", seconds)
    yield from _panel("round", "simulated seconds so far", _line("time", 15, number, clock))


def _tested_groups(rounds: Rounds) -> tuple[str, ...]:
    """Return whose test parts are drawn: priority and the others, or all if all have priority."""
    measured = [
        group
        for group in (*TEST_GROUPS, *MORE_GROUPS)
        if any(np.isfinite(rounds.column(f"{group}.{name}")).any() for name in TESTED)
    ]
    if "non_priority" in measured:
        return tuple(group for group in measured if group != "all")
    return tuple(group for group in measured if group != "priority" or "all" not in measured)


def _test_lines(
    rounds: Rounds, group: str, name: str, x: FloatArray, *, spread: bool
) -> tuple[Line, ...]:
    """Return the mean over clients and, with ``spread``, the worst client."""
    factor = metric_called(name).factor
    mean = _line("mean", 0, x, factor * rounds.column(f"{group}.{name}"))
    if not spread:
        return mean
    return (*mean, *_line("worst client", 1, x, factor * rounds.column(f"{group}.worst")))


def _line(label: str, style: int, x: FloatArray, y: FloatArray) -> tuple[Line, ...]:
    """Return a line through what was measured, none where nothing was."""
    kept = np.flatnonzero((np.abs(x) < LARGEST) & (np.abs(y) < LARGEST))  # NaN is not
    kept = kept[thinned(len(kept))]
    return (Line(label, style, x[kept], y[kept]),) if len(kept) else ()


def _panel(
    x_label: str,
    y_label: str,
    lines: tuple[Line, ...],
    title: str = "",
    bounds: tuple[float, float] = POSITIVE,
) -> Iterator[Panel]:
    if lines:
        yield Panel(title, x_label, y_label, lines, bounds=bounds)
