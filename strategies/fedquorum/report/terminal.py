"""Fit tables and durations to a terminal."""

from datetime import timedelta

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

PLAIN_WIDTH = 200


def create_console() -> Console:
    """Create a console for standard output; a file or a pipe is ``PLAIN_WIDTH`` columns wide."""
    console = Console()
    return console if console.is_terminal else Console(width=PLAIN_WIDTH)


def format_time_left(seconds: float, fraction: float) -> str:
    """Estimate the time left after ``seconds`` for a fraction of the work; "" if unknown."""
    if not 0.0 < fraction < 1.0:
        return ""
    return f"{timedelta(seconds=round(seconds * (1.0 - fraction) / fraction))} left"


def fit_to_console(table: Table, console: Console, keep: int) -> str:
    """Drop the last columns of a table that is wider than the console, and return their names.

    Parameters
    ----------
    table : Table
        The table to print. It loses its last columns until every row fits on one line.
    console : Console
        The output.
    keep : int
        Number of columns that stay, whatever their width.

    Returns
    -------
    str
        The headings of the dropped columns, separated by commas; empty for none.
    """
    unlimited = console.options.update(max_width=10_000)
    dropped: list[str] = []
    while len(table.columns) > keep and (
        Measurement.get(console, unlimited, table).maximum > console.width
    ):
        dropped.insert(0, " ".join(str(table.columns.pop().header).split()))
    return ", ".join(dropped)
