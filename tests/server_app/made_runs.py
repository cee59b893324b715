"""Make runs for the report: short real runs, or records written by hand."""

from pathlib import Path

from fedquorum.records.reader import Run, load_run

from tests.builders_runs import make_client_overrides, run_here
from tests.fedquorum.records.made import (
    change_round,
    change_table,
    load_all,
    make_accuracy,
    make_round_line,
    make_run,
    write_population,
    write_table,
)

__all__ = [
    "change_round",
    "change_table",
    "load_all",
    "make_accuracy",
    "make_real_run",
    "make_round_line",
    "make_run",
    "write_population",
    "write_table",
]

SMALL = ("rounds=5", *make_client_overrides(8, 4))


def make_real_run(directory: Path, *overrides: str) -> Run:
    """Run a short training in this process."""
    return load_run(run_here(directory, *SMALL, *overrides))
