"""Charts over the settings that were swept: curves over one, a heat map over two."""

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from fedquorum.metrics import get_metric

from server_app.names import format_setting, format_value, get_setting_name, method_title, to_slug
from server_app.report.chart_helpers import (
    PlottedMethod,
    format_group_label,
    format_metric_label,
    get_metric_bounds,
)
from server_app.report.chart_spec import (
    PERCENT_BOUNDS,
    Chart,
    GridChart,
    GridLayer,
    Line,
    LineChart,
    Panel,
    ReferenceLine,
    Ticks,
)
from server_app.report.seed_groups import (
    Group,
    Statistic,
    abbreviate_name,
    find_distinguishing_keys,
    format_setting_value,
    get_value_sort_key,
    select_result_settings,
)
from server_app.report.tables import Row

PAIR = 2
FINAL_METRICS = {
    "test": "mean of the clients, by data",
    "worst10": "worst 10 % of the clients",
    "gini": "evenness over clients",
}
MAX_TICK_LETTERS = 16
APART, ALL_APART = 0.06, 0.4
"""Between the bars of neighbours and of all curves, where values are 1 apart."""


@dataclass(frozen=True)
class StrategySweep:
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

    def list_values(self, key: str) -> list[str]:
        """Return the values of one key, ascending, words last."""
        place = self.keys.index(key)
        return sorted({at[place] for at, _ in self.groups}, key=get_value_sort_key)


def build_sweep_charts(methods: Sequence[PlottedMethod], rows: Sequence[Row]) -> Iterator[Chart]:
    """Yield curves over each swept setting, and a heat map for two of one strategy.

    Parameters
    ----------
    methods : sequence of Method
        Those of one experiment.
    rows : sequence of Row
        What ``summarize_groups`` makes of its groups.
    """
    by_strategy: dict[str, list[Group]] = {}
    for method in methods:
        by_strategy.setdefault(method.group.strategy, []).append(method.group)
    sweeps = [
        sweep for groups in by_strategy.values() if (sweep := _build_sweep(groups)) is not None
    ]
    for key in dict.fromkeys(key for sweep in sweeps for key in sweep.keys):
        swept = [sweep for sweep in sweeps if key in sweep.keys]
        chart = _build_curve_chart(key, swept, methods, rows)
        if chart is not None:
            yield chart
    for sweep in sweeps:
        if len(sweep.keys) == PAIR and all(
            len(sweep.list_values(key)) >= PAIR for key in sweep.keys
        ):
            yield _build_heat_map(sweep, rows)


def _build_sweep(groups: Sequence[Group]) -> StrategySweep | None:
    settings = [select_result_settings(group.runs[0]) for group in groups]
    texts = [
        {abbreviate_name(k): abbreviate_name(format_setting_value(v)) for k, v in one.items()}
        for one in settings
    ]
    keys = tuple(find_distinguishing_keys(texts))
    if not keys:
        return None
    places = [tuple(text.get(key, "-") for key in keys) for text in texts]
    return StrategySweep(groups[0].strategy, keys, tuple(zip(places, groups, strict=True)))


def _select_main_row(group: Group, rows: Sequence[Row]) -> Row | None:
    """Return the row of the clients that an experiment is about: priority, or all."""
    counted = [row for row in rows if row.group is group and row.by_seed]
    return min(counted, key=lambda row: row.clients != "priority", default=None)


def _compute_final_statistic(group: Group, rows: Sequence[Row], name: str) -> Statistic | None:
    row = _select_main_row(group, rows)
    found = None if row is None else row.compute_statistic(name)
    if found is None:
        return None
    factor = 100.0 if name == "gini" else get_metric(group.metric).scale
    return Statistic(factor * found.mean, None if found.sd is None else factor * found.sd)


def _build_curve_chart(
    key: str, sweeps: Sequence[StrategySweep], methods: Sequence[PlottedMethod], rows: Sequence[Row]
) -> Chart | None:
    """Return the final metrics over the values of one key, a line for each other setting."""
    values = sorted({v for sweep in sweeps for v in sweep.list_values(key)}, key=get_value_sort_key)
    series = dict(_group_series(key, sweeps))
    if all(len(points) < PAIR for points in series.values()):
        return None
    swept = {sweep.strategy for sweep in sweeps}
    constant = [m.group for m in methods if m.group.strategy not in swept]
    metric = methods[0].group.metric
    settings = methods[0].first_run.settings
    words = [
        textwrap.fill(format_value(key, value, settings), MAX_TICK_LETTERS) for value in values
    ]
    ticks = Ticks(tuple(map(float, range(len(values)))), tuple(words))
    numbers = all(get_value_sort_key(value)[0] == 0 for value in values)
    panels = []
    for name, title in FINAL_METRICS.items():
        points = _SweepPoints(values, numbers, rows, name)
        lines = [
            line
            for place, (label, groups) in enumerate(series.items())
            if (line := points.build_line(label, place, groups, len(series))) is not None
        ]
        levels = [
            ReferenceLine(g.title, len(series) + i, found.mean, f"{g.title}: {found.mean:.2f}")
            for i, g in enumerate(constant)
            if (found := _compute_final_statistic(g, rows, name)) is not None
        ]
        if lines:
            panels.append(
                Panel(
                    title,
                    get_setting_name(key),
                    "Gini coefficient, %" if name == "gini" else format_metric_label(metric),
                    tuple(lines),
                    tuple(levels),
                    x_ticks=ticks,
                    bounds=PERCENT_BOUNDS if name == "gini" else get_metric_bounds({metric}),
                    has_bars=True,
                )
            )
    if not panels:
        return None
    row = next((r for m in methods if (r := _select_main_row(m.group, rows)) is not None), None)
    clients = "" if row is None else f" of {format_group_label(row.clients)}"
    note = (
        f"Test metrics{clients} after the last evaluation, mean over seeds; bars one standard "
        "deviation to either side."
    )
    if numbers:
        note += " The values stand at equal distances."
    if constant:
        note += " Dotted: methods without this setting."
    return LineChart(f"sweep-{to_slug(key)}", f"Over {get_setting_name(key)}", note, tuple(panels))


def _group_series(
    key: str, sweeps: Sequence[StrategySweep]
) -> Iterator[tuple[str, dict[str, Group]]]:
    """Yield the groups by the value of ``key``, under a name for all that they share else."""
    for sweep in sweeps:
        place = sweep.keys.index(key)
        series: dict[str, dict[str, Group]] = {}
        for at, group in sweep.groups:
            words = [format_setting(f"{k}={v}") for k, v in zip(sweep.keys, at, strict=True)]
            words.pop(place)
            label = ", ".join((method_title(sweep.strategy), *words))
            series.setdefault(label, {})[at[place]] = group
        yield from series.items()


@dataclass(frozen=True)
class _SweepPoints:
    """One measure of groups, over the values of a setting.

    Parameters
    ----------
    values : sequence of str
        All values, in order.
    is_numeric : bool
        Whether they are numbers, so that a line between them says something.
    rows : sequence of Row
        What the groups come to.
    name : str
        The measure.
    """

    values: Sequence[str]
    is_numeric: bool
    rows: Sequence[Row]
    name: str

    def build_line(
        self, label: str, index: int, groups: Mapping[str, Group], num_lines: int
    ) -> Line | None:
        """Return the curve at one place among others, whose bars stand beside each other."""
        found = [
            (float(i), statistic)
            for i, value in enumerate(self.values)
            if value in groups
            and (statistic := _compute_final_statistic(groups[value], self.rows, self.name))
            is not None
        ]
        if not found:
            return None
        sd = np.array([statistic.sd or 0.0 for _, statistic in found])
        aside = (index - (num_lines - 1) / 2) * min(APART, ALL_APART / num_lines)
        return Line(
            label,
            index,
            np.array([x for x, _ in found]) + aside,
            np.array([statistic.mean for _, statistic in found]),
            sd if sd.any() else None,
            markers_only=not self.is_numeric,
        )


def _build_heat_map(sweep: StrategySweep, rows: Sequence[Row]) -> Chart:
    first, second = sweep.keys
    columns, lines = sweep.list_values(first), sweep.list_values(second)
    metric = format_metric_label(sweep.groups[0][1].metric)
    settings = sweep.groups[0][1].runs[0].settings
    x_words, y_words = (
        tuple(format_value(key, value, settings) for value in values)
        for key, values in ((first, columns), (second, lines))
    )
    layers = []
    for name, title in FINAL_METRICS.items():
        grid = np.full((len(lines), len(columns)), math.nan, dtype=np.float32)
        for (x, y), group in sweep.groups:
            found = _compute_final_statistic(group, rows, name)
            if found is not None:
                grid[lines.index(y), columns.index(x)] = found.mean
        if not np.isnan(grid).all():
            label = "Gini coefficient, %" if name == "gini" else f"{metric}, {title}"
            layers.append(GridLayer(label, x_words, y_words, grid))
    return GridChart(
        f"heat-{to_slug(sweep.strategy)}",
        f"{method_title(sweep.strategy)} over {get_setting_name(first)} and {get_setting_name(second)}",
        "After the last evaluation, mean over seeds.",
        get_setting_name(first),
        get_setting_name(second),
        "",
        tuple(layers),
        annotate=True,
    )
