"""Show the clients as a table in the terminal, and as a heat map of clients and classes."""

from collections.abc import Sequence

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from rich.table import Table

from server_app.clients_table.rows import ClientRow

MAX_CLASS_COLUMNS = 12
MAX_CLIENT_ROWS = 100
NUM_TRUNCATED_ROWS = 50
FIGURE_SIZE = (6.0, 5.0)
MAX_CLASS_TICKS = 25


def build_clients_table(rows: Sequence[ClientRow], title: str) -> Table:
    """Return a table with one line for each client; with over 100 clients, for the first 50.

    It has a column for each class if there are at most 12 classes.
    """
    counts = rows[0].train_counts
    per_class = counts is not None and len(counts) <= MAX_CLASS_COLUMNS
    shown = rows[: _count_shown_rows(rows)]
    varies = any(row.availability != 1 for row in rows)
    table = Table(title=title, title_justify="left")
    table.add_column("client", justify="right", no_wrap=True)
    table.add_column("priority", justify="center", no_wrap=True)
    names = ["training", "test"]
    names += ["classes"] if counts is not None else []
    names += ["available"] if varies else []
    names += [f"class {c}" for c in range(len(counts))] if counts is not None and per_class else []
    has_held_out = any(row.held_out for row in rows)
    if has_held_out:
        table.add_column("held out", justify="center", no_wrap=True)
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    for row in shown:
        cells = [str(row.client), "yes" if row.priority else ""]
        cells += ["yes" if row.held_out else ""] if has_held_out else []
        cells += [str(row.train), str(row.test)]
        if row.train_counts is not None:
            cells.append(str(row.classes))
        if varies:
            cells.append("" if row.availability is None else f"{row.availability:.3f}")
        if row.train_counts is not None and per_class:
            cells += [str(count) if count else "" for count in row.train_counts.tolist()]
        table.add_row(*cells)
    return table


def _count_shown_rows(rows: Sequence[ClientRow]) -> int:
    return len(rows) if len(rows) <= MAX_CLIENT_ROWS else NUM_TRUNCATED_ROWS


def format_totals(rows: Sequence[ClientRow]) -> str:
    """Summarize all clients in one sentence, to follow the table."""
    train = np.array([row.train for row in rows])
    tests = sum(row.test for row in rows)
    text = (
        f"{len(rows)} clients, {sum(row.priority for row in rows)} with priority"
        f"{_format_held_out(rows)}; "
        f"{train.sum()} training and {tests} test samples; a client has {train.min()} to "
        f"{train.max()} training samples, median {np.median(train):g}"
    )
    shown = _count_shown_rows(rows)
    return text + (f"; the first {shown} are shown" if shown < len(rows) else "")


def _format_held_out(rows: Sequence[ClientRow]) -> str:
    held_out = sum(row.held_out for row in rows)
    return f", {held_out} never train" if held_out else ""


def draw_clients_figure(rows: Sequence[ClientRow], title: str) -> Figure:
    """Return a heat map of training samples, clients x classes; without classes, a bar chart.

    A triangle on the right marks the clients with priority, unless all clients have it.
    """
    figure = Figure(figsize=FIGURE_SIZE, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.set(title=title, ylabel="client")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    counts = [row.train_counts for row in rows if row.train_counts is not None]
    right = 1.0
    if counts:
        matrix = np.stack(counts)
        image = axes.imshow(
            np.ma.masked_equal(matrix, 0),
            aspect="auto",
            cmap="viridis_r",
            vmin=0,
            interpolation="nearest",
        )
        figure.colorbar(image, ax=axes, label="training samples (white: none)")
        axes.set_xlabel("class")
        right = matrix.shape[1] - 0.5
        if matrix.shape[1] <= MAX_CLASS_TICKS:
            axes.set_xticks(range(matrix.shape[1]))
    else:
        sizes = [row.train for row in rows]
        axes.barh(range(len(rows)), sizes, color="#0072B2")
        axes.set_xlabel("training samples")
        axes.invert_yaxis()
        right = max(sizes)
    priority = [row.client for row in rows if row.priority]
    if len(priority) < len(rows):
        axes.plot(
            [right] * len(priority), priority, "<", color="#D55E00", clip_on=False, label="priority"
        )
        figure.legend(loc="outside lower center", frameon=False)
    return figure
