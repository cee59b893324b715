"""The chapter on how long one decision takes."""

import statistics
from collections.abc import Mapping

from benchmarks.book.measured import Cell, Number, Table
from benchmarks.decisions import CASES, measure


def decision_tables(rounds: int, most: int) -> Mapping[str, Table]:
    """Return the table of benchmarks/decisions.py, of the cases with at most ``most`` clients."""
    rows: list[tuple[Cell, ...]] = []
    for name, rule, size, fraction in CASES:
        if size <= most:
            times, peak = measure(rule(), size, fraction, rounds)
            figures = (statistics.median(times), max(times), peak / 1e6)
            cells = (Number(round(value, 2)) for value in figures)
            rows.append((name, f"{size:,}", f"{round(fraction * size):,}", *cells))
    headings = ("rule", "K", "heard", "median, ms", "longest, ms", "memory, MB")
    return {"decisions": Table(headings, tuple(rows))}
