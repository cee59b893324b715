"""Build the chart of runs in which late updates count: staleness, and how much each client counted.

Shapes: r is the number of rows of ``clients/`` that are used.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from ..records.reader import Run
from ..rules.types import FloatArray
from .chart_helpers import PlottedMethod, read_run_columns
from .chart_spec import MAX_POINTS, POSITIVE_BOUNDS, ColumnArray, Line, LineChart, Panel

LATE_NOTE = (
    "Of the first seed of each method. Staleness is the number of rounds between the model from "
    "which an update started and the round in which it counts. On the right, each point is a "
    "client: its median response time, and the sum of its weights over all rounds, where 1 is the "
    "mean of all clients. A level cloud means that slow clients count as much as fast ones. With a "
    "memory (FedVarp, MIFA) these are the weights of arriving updates; stored ones count as well."
)


def build_staleness_chart(methods: Sequence[PlottedMethod]) -> LineChart | None:
    """Build the chart, or None if late updates count in no run."""
    tables = {method.label: table for method in methods if (table := _read_table(method.first_run))}
    staleness = [
        (method, rounds, values)
        for method in methods
        if (found := _find_staleness(tables.get(method.label, {}))) is not None
        for rounds, values in [found]
    ]
    if not staleness:
        return None
    panels = [
        Panel(
            "",
            "round",
            label,
            tuple(
                Line(method.label, method.style, *_reduce_by_round(rounds, values, quantile))
                for method, rounds, values in staleness
            ),
            bounds=POSITIVE_BOUNDS,
        )
        for label, quantile in {"median staleness": 0.5, "largest staleness": 1.0}.items()
    ]
    # Methods that discard late updates belong here as well: they show what counting changes.
    clouds = [
        line
        for method in methods
        if (line := _build_client_line(method, tables.get(method.label, {}))) is not None
    ]
    if clouds:
        panels.append(
            Panel(
                "",
                "median response time, s",
                "summed weight, relative to the mean",
                tuple(clouds),
                log_axes="x",
                bounds=POSITIVE_BOUNDS,
                has_line_names=False,
            )
        )
    return LineChart("staleness", "Late updates", LATE_NOTE, tuple(panels))


def _read_table(run: Run) -> Mapping[str, ColumnArray]:
    """Return the columns of ``clients/``; none unless response times decided something."""
    names = ["round", "client", "status", "weight", "reply_seconds", "start_round", "staleness"]
    table = read_run_columns(run, "clients", names)
    if "reply_seconds" not in table or np.isnan(table["reply_seconds"]).all():
        return {}
    return table


def _find_staleness(table: Mapping[str, ColumnArray]) -> tuple[FloatArray, FloatArray] | None:
    """Return round and staleness of each update that counts, shapes (r,)."""
    if "staleness" not in table:
        return None
    counted = ~np.isnan(table["staleness"])
    return (table["round"][counted], table["staleness"][counted]) if counted.any() else None


def _reduce_by_round(
    rounds: FloatArray, values: FloatArray, quantile: float
) -> tuple[FloatArray, FloatArray]:
    """Return rounds, and a quantile of the values in each; of long runs, of rounds in a row."""
    step = max(1, -(-int(rounds.max()) // MAX_POINTS))
    groups = (rounds.astype(np.int64) - 1) // step
    order = np.argsort(groups, kind="stable")
    found, starts = np.unique(groups[order], return_index=True)
    parts = np.split(values[order], starts[1:])
    ends = np.minimum((found + 1) * step, int(rounds.max()))
    return ends.astype(np.float64), np.array([np.quantile(part, quantile) for part in parts])


def _build_client_line(method: PlottedMethod, table: Mapping[str, ColumnArray]) -> Line | None:
    """Return each client's median response time and its relative summed weight."""
    if not table:
        return None
    clients, index = np.unique(table["client"].astype(np.int64), return_inverse=True)
    weights = np.bincount(index, np.nan_to_num(table["weight"]), minlength=len(clients))
    # A client that was late has a second row for the same message.
    asked = table.get("start_round", table["round"])
    asked = np.where(np.isnan(asked), table["round"], asked)
    replied = np.flatnonzero(~np.isnan(table["reply_seconds"]))
    _, first = np.unique(np.stack([index[replied], asked[replied]]), axis=1, return_index=True)
    rows = replied[first]
    order = np.lexsort((table["reply_seconds"][rows], index[rows]))
    found, starts = np.unique(index[rows][order], return_index=True)
    parts = np.split(table["reply_seconds"][rows][order], starts[1:])
    if weights.sum() <= 0.0:
        return None
    names = method.first_run.client_names
    return Line(
        method.label,
        method.style,
        np.array([np.median(part) for part in parts]),
        weights[found] / weights.mean(),
        markers_only=True,
        hover_texts=[f"client {names.format_label(k)}" for k in clients[found].tolist()],
    )
