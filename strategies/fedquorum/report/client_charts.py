"""Build charts of the clients: metrics, participation, mixing coefficients and omega."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ..metrics.calibration import Calibration, add_bins
from ..metrics.fairness import compute_dispersion, exact_sum
from ..records.reader import Run
from ..records.tables import get_metric_column
from ..rules.metrics import get_metric
from ..rules.types import FloatArray, IntArray
from .chart_helpers import (
    PlottedMethod,
    build_round_panel,
    find_published,
    format_group_label,
    format_metric_label,
    format_sources,
    get_metric_bounds,
    read_participation_rates,
    read_run_columns,
    select_tested_groups,
)
from .chart_spec import (
    MAX_POINTS,
    PERCENT_BOUNDS,
    ColumnArray,
    GridChart,
    GridLayer,
    Line,
    LineChart,
    Panel,
    ReferenceLine,
    Ticks,
    sample_indices,
)
from .methods import has_known_rates

# Distinct in any color vision, and by lightness in print.
STATUS_COLORS = (
    ("not selected", "#FFFFFF"),
    ("trained", "#0072B2"),
    ("declined", "#F0E442"),
    ("unavailable", "#C8C8C8"),
    ("rejected", "#D55E00"),
    ("failed", "#000000"),
    ("late", "#CC79A7"),
    ("busy", "#56B4E9"),
)
TENTH_TICKS = Ticks((0.0, 10.0, 50.0, 90.0, 100.0), ("0", "10", "50", "90", "100"))
MAX_ROWS = 300
MAX_STATUS_CELLS = 400_000
MAX_MIXING_CELLS = 100_000
MIN_ROUNDS_DRAWN = 10
MAX_LABEL_LENGTH = 80


# --- metrics ----------------------------------------------------------------------------------


def build_distribution_chart(methods: Sequence[PlottedMethod]) -> LineChart | None:
    """Build the chart of sorted client test metrics, with the worst and best tenth shaded."""
    metrics = {method.group.metric for method in methods}
    bounds = get_metric_bounds(metrics)
    label = format_metric_label(metrics.pop()) if len(metrics) == 1 else "test metric as configured"
    panels = []
    for clients in select_tested_groups(methods):
        lines = [line for m in methods if (line := _build_ranked_line(m, clients)) is not None]
        if lines:
            panels.append(
                Panel(
                    format_group_label(clients),
                    "clients, from the lowest value, %",
                    label,
                    tuple(lines),
                    _build_published_lines(methods) if clients in ("priority", "all") else (),
                    x_ticks=TENTH_TICKS,
                    shaded_ranges=((0.0, 10.0), (90.0, 100.0)),
                    bounds=bounds,
                    has_line_names=False,  # all methods end near the same value
                )
            )
    if not panels:
        return None
    note = (
        "Each client's test split, after the last evaluation, clients in ascending order; mean "
        "and standard deviation over seeds of the value at each rank. Shaded: the lowest and the "
        "highest tenth. Worst and best 10 % and Gini coefficients are shown on hovering, and in "
        "the table." + format_sources(methods, "worst and best")
    )
    return LineChart("distribution", "The clients' test metrics", note, tuple(panels))


def _build_ranked_line(method: PlottedMethod, clients: str) -> Line | None:
    metric = method.group.metric
    values = [_read_final_metrics(run, clients, metric) for run in method.group.counted_runs]
    found = [client_values for client_values in values if len(client_values)]
    if not found:
        return None
    grid = np.linspace(
        0.0, 100.0, min(MAX_POINTS, max(len(client_values) for client_values in found)) + 1
    )
    curves = np.stack(
        [_interpolate_ranks(client_values, grid) for client_values in found]
    ) * _get_factor(metric)
    return Line(
        method.label,
        method.style,
        grid,
        curves.mean(axis=0),
        curves.std(axis=0, ddof=1) if len(curves) > 1 else None,
        hover_texts=[_describe_dispersion(found, metric)] * len(grid),
    )


def _get_factor(metric: str) -> float:
    return get_metric(metric).scale


def _interpolate_ranks(values: FloatArray, grid: FloatArray) -> FloatArray:
    """Interpolate the sorted values at each percentage of the clients."""
    percentages = (np.arange(len(values)) + 0.5) / len(values) * 100.0
    return np.interp(grid, percentages, np.sort(values))


def _describe_dispersion(values_by_seed: Sequence[FloatArray], metric: str) -> str:
    spec = get_metric(metric)
    factor, digits = spec.scale, 1 if spec.is_fraction else 3
    spreads = [
        compute_dispersion(client_values.tolist(), higher_is_better=spec.higher_is_better)
        for client_values in values_by_seed
    ]
    low, high, gini = (
        exact_sum(one[name] for one in spreads) / len(spreads)
        for name in ("worst10", "best10", "gini")
    )
    return f"worst 10 % {factor * low:.{digits}f}, best 10 % {factor * high:.{digits}f}, Gini " + (
        "is not defined" if math.isnan(gini) else f"{100 * gini:.2f} %"
    )


def _build_published_lines(methods: Sequence[PlottedMethod]) -> tuple[ReferenceLine, ...]:
    return tuple(
        ReferenceLine(
            method.label,
            method.style,
            100 * value,
            f"{method.label}, published {key}: {100 * value:.2f}",
        )
        for method, one in find_published(methods)
        for key, value in one.values.items()
        if key in ("worst", "worst10", "best", "best10")
    )


def _read_final_metrics(run: Run, clients: str, metric: str) -> FloatArray:
    """Return each client's metric from the last test evaluation, without NaN."""
    values: FloatArray = _read_last_evaluation(run, clients, get_metric_column("test", metric))
    return values[~np.isnan(values)]


def _read_last_evaluation(run: Run, clients: str, column: str) -> ColumnArray:
    """Return a column of the clients' last test evaluation."""
    required = ["round", "priority", "test_num_examples", column]
    table = read_run_columns(run, "evaluations", [*required, "held_out"])
    none = np.empty(0)
    if not all(name in table for name in required):
        return none
    tested = ~np.isnan(table["test_num_examples"])
    if not tested.any():
        return none
    last = table["round"] == table["round"][tested].max()
    held_out = table.get("held_out", np.zeros(len(tested))) == 1
    masks = {
        "priority": table["priority"] == 1,
        "non_priority": (table["priority"] == 0) & ~held_out,
        "all": ~held_out,
        "free": ~held_out,
        "held_out": held_out,
    }
    values: ColumnArray = table[column][last & tested & masks[clients]]
    return values


def build_calibration_chart(methods: Sequence[PlottedMethod]) -> LineChart | None:
    """Build the reliability diagram: the accuracy in each bin over its mean confidence."""
    panels = []
    for clients in select_tested_groups(methods):
        lines = [line for m in methods if (line := _build_reliability_line(m, clients)) is not None]
        if lines:
            panels.append(
                Panel(
                    format_group_label(clients),
                    "mean confidence, %",
                    "correct predictions, %",
                    tuple(lines),
                    has_diagonal=True,
                    bounds=PERCENT_BOUNDS,
                    has_line_names=False,  # all methods end near 100 %
                )
            )
    if not panels:
        return None
    note = (
        "The clients' test splits after the last evaluation, over all seeds: predictions in 15 "
        "bins by the probability of the predicted class. On the diagonal a model is as often right "
        "as it says; below it, it is too sure."
    )
    return LineChart("calibration", "Confidence and accuracy", note, tuple(panels))


def _build_reliability_line(method: PlottedMethod, clients: str) -> Line | None:
    found = [
        one
        for run in method.group.counted_runs
        for one in _read_last_evaluation(run, clients, "test_calibration")
        if one
    ]
    if not found:
        return None
    total: Calibration = add_bins(found)
    is_filled = total.count > 0
    return Line(
        method.label,
        method.style,
        100 * total.mean_confidence[is_filled],
        100 * total.accuracy[is_filled],
        hover_texts=[f"{count:,} predictions" for count in total.count[is_filled].tolist()],
    )


# --- participation and mixing -----------------------------------------------------------------


def build_participation_chart(
    methods: Sequence[PlottedMethod], cell_fraction: float
) -> GridChart | None:
    """Build the grid of clients by rounds, colored by each selected client's status.

    ``cell_fraction``, in (0, 1], is the fraction of the maximum number of cells to use.
    """
    names = [name for name, _ in STATUS_COLORS]
    cells = int(MAX_STATUS_CELLS * cell_fraction / len(methods))
    layers = []
    for method in methods:
        table = read_run_columns(
            method.first_run, "clients", ["round", "client", "priority", "status"]
        )
        if "status" in table and len(table["status"]):
            codes = np.array([names.index(s) if s in names else 0 for s in table["status"]])
            empty = np.int8(0)
            layers.append(_build_client_layer(method, table, codes.astype(np.int8), cells, empty))
    if not layers:
        return None
    layers = _merge_layers(layers)
    note = "Of the first seed of each method."
    if any(layer.divider for layer in layers):
        note += " Priority clients are above the line."
    return GridChart(
        "participation",
        "Who took part when",
        note + _describe_subsampling(layers),
        "round",
        "client",
        "status",
        tuple(layers),
        STATUS_COLORS,
    )


def build_mixing_chart(methods: Sequence[PlottedMethod], cell_fraction: float) -> GridChart | None:
    """Build the grid of mixing coefficients over rounds, or None if no rule mixes."""
    names = ["round", "client", "priority", "mixing_coefficient"]
    tables = [(method, read_run_columns(method.first_run, "clients", names)) for method in methods]
    mixed = [
        (m, t)
        for m, t in tables
        if "mixing_coefficient" in t and (~np.isnan(t["mixing_coefficient"])).any()
    ]
    if not mixed:
        return None
    cells = int(MAX_MIXING_CELLS * cell_fraction / len(mixed))
    layers = [
        _build_client_layer(
            m, t, t["mixing_coefficient"].astype(np.float32), cells, np.float32(math.nan)
        )
        for m, t in mixed
    ]
    note = (
        "p_k after each round's decision, of the first seed of each method; blank where a client "
        "was not selected."
    )
    return GridChart(
        "mixing",
        "Mixing coefficients",
        note + _describe_subsampling(layers),
        "round",
        "client",
        "p",
        tuple(layers),
    )


def _merge_layers(layers: Sequence[GridLayer]) -> list[GridLayer]:
    """Merge equal layers into one, labeled with all their names."""
    merged: dict[tuple[tuple[str, ...], tuple[str, ...], bytes], list[GridLayer]] = {}
    for layer in layers:
        merged.setdefault((layer.columns, layer.rows, layer.values.tobytes()), []).append(layer)
    return [replace(same[0], label=_join_labels(same)) for same in merged.values()]


def _join_labels(layers: Sequence[GridLayer]) -> str:
    label = "; ".join(layer.label for layer in layers)
    return (
        label if len(label) <= MAX_LABEL_LENGTH else f"{layers[0].label}; {len(layers) - 1} others"
    )


def _describe_subsampling(layers: Sequence[GridLayer]) -> str:
    if not any(layer.is_subsampled for layer in layers):
        return ""
    return " Not every round or client is drawn: they are evenly picked."


def _build_client_layer(
    method: PlottedMethod,
    table: Mapping[str, ColumnArray],
    values: ColumnArray,
    max_cells: int,
    empty: np.generic,
) -> GridLayer:
    """Build clients by rounds, subsampled to about ``max_cells``, priority clients first."""
    ids, rounds = table["client"].astype(int), table["round"].astype(int)
    has_priority = dict(zip(ids.tolist(), table["priority"].tolist(), strict=True))
    clients = sorted(has_priority, key=lambda k: (not has_priority[k], k))
    shown_clients = [clients[i] for i in sample_indices(len(clients), MAX_ROWS)]
    total = int(rounds.max())
    max_rounds = max(MIN_ROUNDS_DRAWN, min(2 * MAX_POINTS, max_cells // len(shown_clients)))
    drawn_rounds = sample_indices(total, max_rounds) + 1
    row, column = _find_indices(np.array(shown_clients), ids), _find_indices(drawn_rounds, rounds)
    drawn = (row >= 0) & (column >= 0)
    grid = np.full((len(shown_clients), len(drawn_rounds)), empty)
    grid[row[drawn], column[drawn]] = values[drawn]
    divider = sum(bool(has_priority[k]) for k in shown_clients)
    return GridLayer(
        f"{method.label}, seed {method.first_run.seed}",
        tuple(map(str, drawn_rounds.tolist())),
        tuple(map(method.first_run.client_names.format_label, shown_clients)),
        grid,
        divider if divider < len(shown_clients) else 0,
        is_subsampled=len(shown_clients) < len(clients) or len(drawn_rounds) < total,
    )


def _find_indices(selected: IntArray, values: IntArray) -> IntArray:
    """Return each value's index in ``selected``, -1 if absent, with memory O(len(selected))."""
    order = np.argsort(selected)
    found = order[np.searchsorted(selected, values, sorter=order).clip(max=len(selected) - 1)]
    return np.where(selected[found] == values, found, -1)


# --- omega ------------------------------------------------------------------------------------


def build_omega_chart(methods: Sequence[PlottedMethod]) -> LineChart | None:
    """Build the chart of estimated omega over the simulated 1 / p_n, and of its error."""
    found = [
        (method, line)
        for method in methods
        if not has_known_rates(method.group.strategy)
        and (line := _build_omega_line(method)) is not None
    ]
    estimating, lines = [method for method, _ in found], [line for _, line in found]
    if not lines:
        return None
    estimates = Panel(
        "after the last round, first seed",
        "1 / p_n, simulated, rounds",
        "omega_n, estimated, rounds",
        tuple(lines),
        log_axes="xy",
        has_diagonal=True,
        has_line_names=False,
    )
    error = build_round_panel(
        estimating,
        "mean of (p_n omega_n - 1)^2",
        lambda record: record.weight_error,
        title="weight error (Theorem 3)",
    )
    note = "On the line omega is exact. The server does not know p_n: only the simulation does."
    panels = (estimates,) if error is None else (estimates, error)
    return LineChart("omega", "Participation, as estimated", note, panels)


def _build_omega_line(method: PlottedMethod) -> Line | None:
    rates = read_participation_rates(method.first_run)
    table = read_run_columns(
        method.first_run, "clients", ["round", "client", "participation_correction"]
    )
    if "participation_correction" not in table:
        return None
    has_value = ~np.isnan(table["participation_correction"])
    order = np.argsort(table["round"][has_value], kind="stable")
    clients = table["client"][has_value][order].astype(int).tolist()
    last = dict(
        zip(clients, table["participation_correction"][has_value][order].tolist(), strict=True)
    )
    drawn = {k: rate for k in sorted(last) if (rate := rates.get(k))}  # 0: it is never available
    if not drawn or all(rate == 1.0 for rate in drawn.values()):
        return None
    names = method.first_run.client_names
    return Line(
        method.label,
        method.style,
        1.0 / np.array(list(drawn.values())),
        np.array([last[k] for k in drawn]),
        markers_only=True,
        hover_texts=[f"client {names.format_label(k)}" for k in drawn],
    )
