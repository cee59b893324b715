"""Charts over the settings that were swept: curves over one, a heat map over two."""

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from fedquorum.metrics import metric_called

from server_app.naming import method_title, setting_name, setting_words, slug, value_words
from server_app.report.chart_parts import Method, bounds_of, metric_label, whose
from server_app.report.charts import (
    PERCENT,
    Chart,
    GridChart,
    Layer,
    Level,
    Line,
    LineChart,
    Panel,
    Ticks,
)
from server_app.report.groups import (
    Group,
    Statistic,
    ascending,
    brief,
    influential,
    telling_keys,
    word,
)
from server_app.report.tables import Row

TWO = 2
FINAL = {
    "test": "mean of the clients, by data",
    "worst10": "worst 10 % of the clients",
    "gini": "evenness over clients",
}
TICK_LETTERS = 16
APART, ALL_APART = 0.06, 0.4
"""Between the bars of neighbours and of all curves, where values are 1 apart."""


@dataclass(frozen=True)
class Sweep:
    """The groups of one strategy, by the values of the settings that tell them apart.

    Parameters
    ----------
    strategy : str
        The strategy.
    keys : tuple of str
        The settings.
    groups : tuple
        For each group its value of each key, and the group.
    """

    strategy: str
    keys: tuple[str, ...]
    groups: tuple[tuple[tuple[str, ...], Group], ...]

    def values(self, key: str) -> list[str]:
        """Return the values of one key, ascending, words last."""
        place = self.keys.index(key)
        return sorted({at[place] for at, _ in self.groups}, key=ascending)


def sweep_charts(methods: Sequence[Method], rows: Sequence[Row]) -> Iterator[Chart]:
    """Yield curves over each swept setting, and a heat map for two of one strategy.

    Parameters
    ----------
    methods : sequence of Method
        Those of one experiment.
    rows : sequence of Row
        What ``summarize`` makes of its groups.
    """
    by_strategy: dict[str, list[Group]] = {}
    for method in methods:
        by_strategy.setdefault(method.group.strategy, []).append(method.group)
    sweeps = [sweep for groups in by_strategy.values() if (sweep := _sweep(groups)) is not None]
    for key in dict.fromkeys(key for sweep in sweeps for key in sweep.keys):
        swept = [sweep for sweep in sweeps if key in sweep.keys]
        chart = _curves(key, swept, methods, rows)
        if chart is not None:
            yield chart
    for sweep in sweeps:
        if len(sweep.keys) == TWO and all(len(sweep.values(key)) >= TWO for key in sweep.keys):
            yield _heat_map(sweep, rows)


def _sweep(groups: Sequence[Group]) -> Sweep | None:
    settings = [influential(group.runs[0]) for group in groups]
    texts = [{brief(k): brief(word(v)) for k, v in one.items()} for one in settings]
    keys = tuple(telling_keys(texts))
    if not keys:
        return None
    places = [tuple(text.get(key, "-") for key in keys) for text in texts]
    return Sweep(groups[0].strategy, keys, tuple(zip(places, groups, strict=True)))


def _main_row(group: Group, rows: Sequence[Row]) -> Row | None:
    """Return the row of the clients that an experiment is about: priority, or all."""
    counted = [row for row in rows if row.group is group and row.by_seed]
    return min(counted, key=lambda row: row.clients != "priority", default=None)


def _final(group: Group, rows: Sequence[Row], name: str) -> Statistic | None:
    row = _main_row(group, rows)
    found = None if row is None else row.statistic(name)
    if found is None:
        return None
    factor = 100.0 if name == "gini" else metric_called(group.metric).factor
    return Statistic(factor * found.mean, None if found.sd is None else factor * found.sd)


def _curves(
    key: str, sweeps: Sequence[Sweep], methods: Sequence[Method], rows: Sequence[Row]
) -> Chart | None:
    """Return the final metrics over the values of one key, a line for each other setting."""
    values = sorted({v for sweep in sweeps for v in sweep.values(key)}, key=ascending)
    series = dict(_series(key, sweeps))
    if all(len(points) < TWO for points in series.values()):
        return None
    swept = {sweep.strategy for sweep in sweeps}
    constant = [m.group for m in methods if m.group.strategy not in swept]
    metric = methods[0].group.metric
    settings = methods[0].first.settings
    words = [textwrap.fill(value_words(key, value, settings), TICK_LETTERS) for value in values]
    ticks = Ticks(tuple(map(float, range(len(values)))), tuple(words))
    numbers = all(ascending(value)[0] == 0 for value in values)
    panels = []
    for name, title in FINAL.items():
        points = _Points(values, numbers, rows, name)
        lines = [
            line
            for place, (label, groups) in enumerate(series.items())
            if (line := points.line(label, place, groups, len(series))) is not None
        ]
        levels = [
            Level(g.title, len(series) + i, found.mean, f"{g.title}: {found.mean:.2f}")
            for i, g in enumerate(constant)
            if (found := _final(g, rows, name)) is not None
        ]
        if lines:
            panels.append(
                Panel(
                    title,
                    setting_name(key),
                    "Gini coefficient, %" if name == "gini" else metric_label(metric),
                    tuple(lines),
                    tuple(levels),
                    x_ticks=ticks,
                    bounds=PERCENT if name == "gini" else bounds_of({metric}),
                    bars=True,
                )
            )
    if not panels:
        return None
    row = next((r for m in methods if (r := _main_row(m.group, rows)) is not None), None)
    clients = "" if row is None else f" of {whose(row.clients)}"
    note = (
        f"Test metrics{clients} after the last evaluation, mean over seeds; bars one standard "
        "deviation to either side."
    )
    if numbers:
        note += " The values stand at equal distances."
    if constant:
        note += " Dotted: methods without this setting."
    return LineChart(f"sweep-{slug(key)}", f"Over {setting_name(key)}", note, tuple(panels))


def _series(key: str, sweeps: Sequence[Sweep]) -> Iterator[tuple[str, dict[str, Group]]]:
    """Yield the groups by the value of ``key``, under a name for all that they share else."""
    for sweep in sweeps:
        place = sweep.keys.index(key)
        series: dict[str, dict[str, Group]] = {}
        for at, group in sweep.groups:
            words = [setting_words(f"{k}={v}") for k, v in zip(sweep.keys, at, strict=True)]
            words.pop(place)
            label = ", ".join((method_title(sweep.strategy), *words))
            series.setdefault(label, {})[at[place]] = group
        yield from series.items()


@dataclass(frozen=True)
class _Points:
    """One measure of groups, over the values of a setting.

    Parameters
    ----------
    values : sequence of str
        All values, in order.
    numbers : bool
        Whether they are numbers, so that a line between them says something.
    rows : sequence of Row
        What the groups come to.
    name : str
        The measure.
    """

    values: Sequence[str]
    numbers: bool
    rows: Sequence[Row]
    name: str

    def line(self, label: str, place: int, groups: Mapping[str, Group], of: int) -> Line | None:
        """Return the curve at one place among others, whose bars stand beside each other."""
        found = [
            (float(i), statistic)
            for i, value in enumerate(self.values)
            if value in groups
            and (statistic := _final(groups[value], self.rows, self.name)) is not None
        ]
        if not found:
            return None
        sd = np.array([statistic.sd or 0.0 for _, statistic in found])
        aside = (place - (of - 1) / 2) * min(APART, ALL_APART / of)
        return Line(
            label,
            place,
            np.array([x for x, _ in found]) + aside,
            np.array([statistic.mean for _, statistic in found]),
            sd if sd.any() else None,
            points=not self.numbers,
        )


def _heat_map(sweep: Sweep, rows: Sequence[Row]) -> Chart:
    first, second = sweep.keys
    columns, lines = sweep.values(first), sweep.values(second)
    metric = metric_label(sweep.groups[0][1].metric)
    settings = sweep.groups[0][1].runs[0].settings
    x_words, y_words = (
        tuple(value_words(key, value, settings) for value in values)
        for key, values in ((first, columns), (second, lines))
    )
    layers = []
    for name, title in FINAL.items():
        grid = np.full((len(lines), len(columns)), math.nan, dtype=np.float32)
        for (x, y), group in sweep.groups:
            found = _final(group, rows, name)
            if found is not None:
                grid[lines.index(y), columns.index(x)] = found.mean
        if not np.isnan(grid).all():
            label = "Gini coefficient, %" if name == "gini" else f"{metric}, {title}"
            layers.append(Layer(label, x_words, y_words, grid))
    return GridChart(
        f"heat-{slug(sweep.strategy)}",
        f"{method_title(sweep.strategy)} over {setting_name(first)} and {setting_name(second)}",
        "After the last evaluation, mean over seeds.",
        setting_name(first),
        setting_name(second),
        "",
        tuple(layers),
        written=True,
    )
