"""Tests that the audit finds one changed value in every column that it covers."""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fedquorum.audit.check import audit_run
from fedquorum.errors import RunError
from fedquorum.records.round_record import RoundRecord
from fedquorum.records.tables import CLIENTS_SCHEMA, EVALUATIONS_SCHEMA, POPULATION_SCHEMA

from tests.builders_calibration import copy_bins
from tests.fedquorum.records.made import change_round, write_table

ROUND = 3

CLIENTS = {
    "round": "fedalign",
    "client": "fedalign",
    "priority": "fedalign",
    "status": "fedalign",
    "num_examples": "fedalign",
    "loss": "aaggff_s",
    "accuracy": "accuracy",
    "response": "aaggff_s",
    "mixing_coefficient": "aaggff_s",
    "participation_correction": "fedau",
    "num_draws": "draws",
    "update_norm": "fedmgda",
    "weight": "fedalign",
    "reply_seconds": "slow",
    "test_loss": "fedalign",
    "test_accuracy": "fedalign",
    "data_weight": "fedalign",
}
EVALUATIONS = {
    "round": "fedalign",
    "client": "fedalign",
    "priority": "fedalign",
    "held_out": "unseen",
    "num_examples": "fedalign",
    "loss": "fedalign",
    "accuracy": "fedalign",
    "test_num_examples": "fedalign",
    "test_loss": "fedalign",
    "test_accuracy": "fedalign",
    "test_metric": "lipschitz",
    "test_r2": "fedalign",
    "test_calibration": "fedalign",
    "validation_num_examples": "validated",
    "validation_loss": "validated",
    "validation_accuracy": "validated",
    "validation_metric": "validated",
    "validation_r2": "validated",
    "validation_calibration": "validated",
}
POPULATION = {
    "client": "fedalign",
    "priority": "fedalign",
    "priority_weight": "weighted",
    "base_rate": "known_statistics",
    "held_out": "unseen",
    "requirement": "maxfl",
}
ROUNDS = {
    "round": "fedalign",
    "epsilon": "fedalign",
    "global_loss": "fedalign",
    "global_accuracy": "fedalign",
    "selected": "fedalign",
    "trained": "fedalign",
    "declined": "fedalign",
    "unavailable": "fedau",
    "rejected": "fedalign",
    "failed": "fedalign",
    "late": "slow",
    "busy": "slow",
    "admitted": "fedalign",
    "weight_error": "fedau",
    "decision_loss": "aaggff_s",
    "decision_loss_sum": "aaggff_s",
    "kl_to_data": "aaggff_s",
    "inclusion_mass": "fedalign",
    "theta": "fedalign",
    "priority_data": "draws",
    "unregistered": "fedau",
    "stale_clients": "fedalign",
    "late_replies": "slow",
    "simulated_seconds": "slow",
    "test": "fedalign",
    "validation": "validated",
    "unmeasured": "fedalign",
    "refused": "fedalign",
    "update_norm": "fedmgda",
}
"""The columns that the audit covers, each with a run whose rule uses it."""

NOT_COVERED = {
    "clients": {
        # Only runs in which late updates count have these: tests/server_app/test_late_updates.py.
        *("start_round", "staleness", "discount"),
        "reason",
    },
    "evaluations": set[str](),
    "population": {
        *("name", "participation_rate", "joined_round", "local_accuracy"),
        *("node", "node_key"),
    },
    "rounds": {"bytes_down", "bytes_up", "duration_seconds", "state_bytes", "disconnected"},
}
"""The columns that no other record determines, at least not in these runs."""

UNUSED = {("clients", "accuracy"): True, ("clients", "update_norm"): False}
"""Columns that no rule uses for clients with priority (True): the gate is for the others; or for
clients without it (False), whose weight is 0 here."""

UNDECIDABLE = ("theta", "kl_to_data", "weight_error", "decision_loss", "decision_loss_sum")
"""Numbers that follow from other records even if the records do not determine the weights."""


def list_other_values(value: Any, kind: pa.DataType | None = None) -> Iterator[Any]:
    """Yield other values of the same kind; a null becomes a number."""
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (value + 1, value + 90)
    elif isinstance(value, float):
        yield value * 100.0 + 0.01 if math.isfinite(value) else 1.0
    elif isinstance(value, str):
        yield "failed" if value != "failed" else "trained"
    elif isinstance(value, bytes):
        sums, index = copy_bins(value)
        sums["confidence"][index] += 1
        yield sums.tobytes()
        sums[index] = 0
        yield sums.tobytes()
    elif isinstance(value, list):
        yield [] if value else [0]
    elif isinstance(value, Mapping):
        yield from list_other_summaries(value)
    elif kind is not None and pa.types.is_boolean(kind):
        yield True
    else:
        yield 7 if kind is not None and pa.types.is_integer(kind) else 0.75
    if isinstance(value, bool | int | float | bytes | Mapping):
        yield None


def list_other_summaries(summary: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a split's summary with a changed number, a missing group, or an additional group."""
    for group, numbers in summary.items():
        for name, number in (numbers or {}).items():
            yield {**summary, group: {**numbers, name: next(list_other_values(number))}}
        yield {**summary, group: None if numbers else {"loss": 1.0, "accuracy": 0.5}}
    for group in {"held_out", "all", "non_priority"} - {name for name in summary if summary[name]}:
        yield {**summary, group: {"loss": 1.0, "accuracy": 0.5}}


def finds_problem(run: Path) -> bool:
    """Say whether the audit finds a mismatch, or the reader refuses the records."""
    try:
        return audit_run(run).mismatches != ()
    except RunError:
        return True


def find_undetected(
    run: Path, path: Path, changes: Iterable[tuple[Any, Callable[[], object]]]
) -> list[Any]:
    """Return the changes that nothing finds; the file is restored after each."""
    assert not finds_problem(run)
    before, undetected = path.read_bytes(), []
    for description, change in changes:
        change()
        if not finds_problem(run):
            undetected.append(description)
        path.write_bytes(before)
    return undetected


@pytest.mark.parametrize(
    ("folder", "column"),
    [
        *(("clients", column) for column in CLIENTS),
        *(("evaluations", column) for column in EVALUATIONS),
    ],
)
def test_a_changed_value_of_a_table_is_found(
    run_copy: Callable[[str], Path], folder: str, column: str
) -> None:
    """It is a value of a client with and of one without priority, in the middle of the run."""
    schema, names = (
        (CLIENTS_SCHEMA, CLIENTS) if folder == "clients" else (EVALUATIONS_SCHEMA, EVALUATIONS)
    )
    run, field = run_copy(names[column]), schema.field(column)
    rows = pq.read_table(run / folder).to_pylist()
    write_table(run, folder, rows)  # as one file, which is restored after each change

    def list_changes() -> Iterator[tuple[Any, Callable[[], object]]]:
        for index in choose_rows(rows, folder):
            if rows[index]["priority"] is UNUSED.get((folder, column)):
                continue
            for value in list_other_values(rows[index][column], field.type):
                if value is not None or field.nullable:
                    new = [{**row} for row in rows]
                    new[index][column] = value
                    description = (rows[index]["client"], rows[index][column], value)
                    yield description, partial(write_table, run, folder, new)

    assert find_undetected(run, run / folder / "part-00000.parquet", list_changes()) == []


def choose_rows(rows: list[dict[str, Any]], folder: str) -> list[int]:
    """Return the indices of a round's first rows with and without priority, of trained clients."""
    indices = [
        index
        for index, row in enumerate(rows)
        if row["round"] == ROUND and (folder != "clients" or row["status"] == "trained")
    ]
    first = {rows[index]["priority"]: index for index in reversed(indices)}
    return sorted(first.values())


@pytest.mark.parametrize("column", POPULATION)
def test_a_changed_client_is_found(run_copy: Callable[[str], Path], column: str) -> None:
    """The facts about clients affect decisions, and other records repeat them."""
    run, field = run_copy(POPULATION[column]), POPULATION_SCHEMA.field(column)
    path = run / "population.parquet"
    rows = pq.read_table(path).to_pylist()

    def list_changes() -> Iterator[tuple[Any, Callable[[], object]]]:
        for index in (0, len(rows) - 1):
            for value in list_other_values(rows[index][column], field.type):
                if value is not None or field.nullable:
                    new = [{**row} for row in rows]
                    new[index][column] = value
                    table = pa.Table.from_pylist(new, schema=POPULATION_SCHEMA)
                    yield (index, rows[index][column], value), partial(pq.write_table, table, path)

    assert find_undetected(run, path, list_changes()) == []


@pytest.mark.parametrize(
    ("name", "column"),
    [
        *((name, column) for column, name in ROUNDS.items()),
        *((name, column) for name in ("fedmgda", "fedgp") for column in UNDECIDABLE),
    ],
)
def test_a_changed_value_of_a_round_is_found(
    run_copy: Callable[[str], Path], name: str, column: str
) -> None:
    """If the records do not determine the weights, other numbers still reveal the change."""
    run = run_copy(name)
    path = run / "rounds.jsonl"
    value = json.loads(path.read_text().splitlines()[ROUND - 1])[column]
    changes = (
        (new, partial(change_round, run, ROUND, **{column: new}))
        for new in list_other_values(value)
    )
    assert find_undetected(run, path, changes) == []


def test_every_column_is_covered_or_listed_as_not_covered() -> None:
    """A new column needs an entry here."""
    columns = {
        "clients": ({*CLIENTS}, {*CLIENTS_SCHEMA.names}),
        "evaluations": ({*EVALUATIONS}, {*EVALUATIONS_SCHEMA.names}),
        "population": ({*POPULATION}, {*POPULATION_SCHEMA.names}),
        "rounds": ({*ROUNDS}, {field.name for field in fields(RoundRecord)}),
    }
    for name, (covered, every) in columns.items():
        assert covered | NOT_COVERED[name] == every, name
        assert not covered & NOT_COVERED[name], name
