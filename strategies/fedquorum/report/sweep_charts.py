"""Build charts over swept settings: curves over one, a heat map over two."""

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..rules.metrics import get_metric
from .chart_helpers import PlottedMethod, format_group_label, format_metric_label, get_metric_bounds
from .chart_spec import (
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
from .names import (
    MIN_DIGITS,
    choose_digits,
    format_setting,
    format_value,
    get_setting_name,
    method_title,
    to_slug,
)
from .seed_groups import (
    Group,
    Statistic,
    abbreviate_name,
    find_distinguishing_keys,
    format_setting_value,
    get_value_sort_key,
    select_result_settings,
)
from .tables import Row

PAIR = 2
FINAL_METRICS = {
    "test": "mean of the clients, by data",
    "worst10": "worst 10 % of the clients",
    "gini": "evenness over clients",
}
MAX_TICK_LETTERS = 16
MAX_LINE_GAP, MAX_TOTAL_GAP = 0.06, 0.4
"""Horizontal offset between neighboring curves, and over all curves, if values are 1 apart."""


@dataclass(frozen=True)
class StrategySweep:
    """The groups of one strategy by the values of the settings that distinguish them.

    Parameters
    ----------
    strategy : str
    keys : tuple of str
        The swept settings.
    groups : tuple
        For each group, its values of ``keys`` and the group.
    """

    strategy: str
    keys: tuple[str, ...]
    groups: tuple[tuple[tuple[str, ...], Group], ...]

    def list_values(self, key: str) -> list[str]:
        """List the values of one key, ascending, words last."""
        index = self.keys.index(key)
        return sorted({values[index] for values, _ in self.groups}, key=get_value_sort_key)


def build_sweep_charts(methods: Sequence[PlottedMethod], rows: Sequence[Row]) -> Iterator[Chart]:
    """Yield curves over each swept setting, and a heat map for each strategy with two.

    Parameters
    ----------
    methods : sequence of PlottedMethod
        The methods of one experiment.
    rows : sequence of Row
        The result of ``summarize_groups`` for these methods.
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
    values = [tuple(text.get(key, "-") for key in keys) for text in texts]
    return StrategySweep(groups[0].strategy, keys, tuple(zip(values, groups, strict=True)))


def _select_main_row(group: Group, rows: Sequence[Row]) -> Row | None:
    """Return the row of the priority clients, or else of all clients."""
    counted = [row for row in rows if row.group is group and row.by_seed]
    return min(counted, key=lambda row: row.clients != "priority", default=None)


def _list_final_metrics(rows: Sequence[Row]) -> Iterator[tuple[str, str]]:
    """Yield the metrics of the charts, each with its title."""
    for name, title in FINAL_METRICS.items():
        is_once = name == "test" and any(row.counts_clients_once for row in rows)
        yield name, title.removesuffix(", by data") if is_once else title


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
    """Build the chart of final metrics over one key, with a line per remaining settings."""
    values = sorted({v for sweep in sweeps for v in sweep.list_values(key)}, key=get_value_sort_key)
    series = dict(_group_series(key, sweeps))
    if all(len(points) < PAIR for points in series.values()):
        return None
    swept = {sweep.strategy for sweep in sweeps}
    constant = [m.group for m in methods if m.group.strategy not in swept]
    metric = methods[0].group.metric
    settings = methods[0].first_run.settings
    tick_texts = [
        textwrap.fill(text, MAX_TICK_LETTERS) for text in _format_values(key, values, settings)
    ]
    ticks = Ticks(tuple(map(float, range(len(values)))), tuple(tick_texts))
    is_numeric = all(get_value_sort_key(value)[0] == 0 for value in values)
    panels = []
    for name, title in _list_final_metrics(rows):
        points = _SweepPoints(values, is_numeric, rows, name)
        lines = [
            line
            for index, (label, groups) in enumerate(series.items())
            if (line := points.build_line(label, index, groups, len(series))) is not None
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
    if is_numeric:
        note += " The values stand at equal distances."
    if constant:
        note += " Dotted: methods without this setting."
    return LineChart(f"sweep-{to_slug(key)}", f"Over {get_setting_name(key)}", note, tuple(panels))


def _group_series(
    key: str, sweeps: Sequence[StrategySweep]
) -> Iterator[tuple[str, dict[str, Group]]]:
    """Yield series of groups by their value of ``key``, named by their other settings."""
    for sweep in sweeps:
        index = sweep.keys.index(key)
        series: dict[str, dict[str, Group]] = {}
        for values, group in sweep.groups:
            settings = [
                format_setting(f"{k}={v}", digits=group.digits.get(k, MIN_DIGITS))
                for k, v in zip(sweep.keys, values, strict=True)
            ]
            settings.pop(index)
            label = ", ".join((method_title(sweep.strategy), *settings))
            series.setdefault(label, {})[values[index]] = group
        yield from series.items()


def _format_values(
    key: str, values: Sequence[str], settings: Mapping[str, object]
) -> Iterator[str]:
    """Yield the texts of a setting's values, with enough digits that they differ."""
    digits = choose_digits(values)
    return (format_value(key, value, settings, digits) for value in values)


@dataclass(frozen=True)
class _SweepPoints:
    """A final metric of groups over the values of a setting.

    Parameters
    ----------
    values : sequence of str
        All values, in order.
    is_numeric : bool
        Whether all values are numbers, which a line may connect.
    rows : sequence of Row
        The groups' results.
    name : str
        The metric.
    """

    values: Sequence[str]
    is_numeric: bool
    rows: Sequence[Row]
    name: str

    def build_line(
        self, label: str, index: int, groups: Mapping[str, Group], num_lines: int
    ) -> Line | None:
        """Build the curve ``index`` of ``num_lines``, shifted so that bars do not overlap."""
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
        offset = (index - (num_lines - 1) / 2) * min(MAX_LINE_GAP, MAX_TOTAL_GAP / num_lines)
        return Line(
            label,
            index,
            np.array([x for x, _ in found]) + offset,
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
        tuple(_format_values(key, values, settings))
        for key, values in ((first, columns), (second, lines))
    )
    layers = []
    for name, title in _list_final_metrics(rows):
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
        f"{method_title(sweep.strategy)} over {get_setting_name(first)} and "
        f"{get_setting_name(second)}",
        "After the last evaluation, mean over seeds.",
        get_setting_name(first),
        get_setting_name(second),
        "",
        tuple(layers),
        annotate=True,
    )
