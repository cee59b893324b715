"""Runs as the report reads them: by short real runs, or written by hand."""

from pathlib import Path

from fedquorum.records.reader import Run, load_run

from tests.builders_runs import few_clients, run_here
from tests.fedquorum.records.made import (
    accuracy,
    change_round,
    change_table,
    line,
    load_all,
    make_run,
    write_population,
    write_table,
)

__all__ = [
    "accuracy",
    "change_round",
    "change_table",
    "line",
    "load_all",
    "make_run",
    "real_run",
    "write_population",
    "write_table",
]

SMALL = ("rounds=5", *few_clients(8, 4))


def real_run(directory: Path, *words: str) -> Run:
    """Train for a moment, in this process."""
    return load_run(run_here(directory, *SMALL, *words))
