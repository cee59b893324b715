"""The chapter on the time of one decision."""

import statistics
from collections.abc import Mapping

from benchmarks.book.results import Cell, ResultTable, SeedStatistic
from benchmarks.decision_time import CASES, measure_decisions


def build_decision_tables(rounds: int, max_clients: int) -> Mapping[str, ResultTable]:
    """Build the table of benchmarks/decision_time.py, with at most ``max_clients`` clients."""
    rows: list[tuple[Cell, ...]] = []
    for name, rule, size, fraction in CASES:
        if size <= max_clients:
            times, peak = measure_decisions(rule(), size, fraction, rounds)
            values = (statistics.median(times), max(times), peak / 1e6)
            cells = (SeedStatistic(round(value, 2)) for value in values)
            rows.append((name, f"{size:,}", f"{round(fraction * size):,}", *cells))
    headings = ("rule", "K", "reporting", "median, ms", "longest, ms", "memory, MB")
    return {"decisions": ResultTable(headings, tuple(rows))}
