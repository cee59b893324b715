"""Runs as the report reads them: by short real runs, or written by hand."""

from pathlib import Path

from fedquorum.records.reader import Run, load_run

from conf.compose import compose_words
from server_app.job import run_in_process
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

SMALL = (
    "rounds=5",
    "data.num_clients=8",
    "data.num_priority=4",
    "data.samples_per_client=30",
    "data.sizes=equal",
    "client.local_epochs=1",
)


def real_run(directory: Path, *words: str) -> Run:
    """Train for a moment, in this process."""
    run_in_process(compose_words((*SMALL, *words)), str(directory))
    return load_run(directory)
