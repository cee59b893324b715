"""Records of which one value was changed: the audit finds it, in every column that it covers."""

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
    "validation_num_examples": "validated",
    "validation_loss": "validated",
    "validation_accuracy": "validated",
    "validation_metric": "validated",
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
    "clients": {"reason"},
    "evaluations": set[str](),
    "population": {"participation_rate", "joined_round", "local_accuracy"},
    "rounds": {"bytes_down", "bytes_up", "duration_seconds", "state_bytes", "disconnected"},
}
"""What no other record decides, or decides only in runs that these are not."""

UNUSED = {("clients", "accuracy"): True, ("clients", "update_norm"): False}
"""What no rule uses of a client with priority: the gate is for the others. And of one without it:
its weight is 0 here, whatever the norm of its update is."""

UNDECIDABLE = ("theta", "kl_to_data", "weight_error", "decision_loss", "decision_loss_sum")
"""Numbers of a round whose weights the records do not decide, which other numbers tell."""


def others(value: Any, kind: pa.DataType | None = None) -> Iterator[Any]:
    """Yield values other than one, of the same kind; a null becomes a number."""
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (value + 1, value + 90)
    elif isinstance(value, float):
        yield value * 100.0 + 0.01 if math.isfinite(value) else 1.0
    elif isinstance(value, str):
        yield "failed" if value != "failed" else "trained"
    elif isinstance(value, list):
        yield [] if value else [0]
    elif isinstance(value, Mapping):
        yield from other_summaries(value)
    elif kind is not None and pa.types.is_boolean(kind):
        yield True
    else:
        yield 7 if kind is not None and pa.types.is_integer(kind) else 0.75
    if isinstance(value, bool | int | float | Mapping):
        yield None


def other_summaries(part: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a part's summary with one number changed, a group left out, and one group more."""
    for group, numbers in part.items():
        for name, number in (numbers or {}).items():
            yield {**part, group: {**numbers, name: next(others(number))}}
        yield {**part, group: None if numbers else {"loss": 1.0, "accuracy": 0.5}}
    for group in {"held_out", "all", "non_priority"} - {name for name in part if part[name]}:
        yield {**part, group: {"loss": 1.0, "accuracy": 0.5}}


def found(run: Path) -> bool:
    """Say whether the audit finds a mismatch, or the reader refuses the records."""
    try:
        return audit_run(run).mismatches != ()
    except RunError:
        return True


def find_undetected(
    run: Path, path: Path, changes: Iterable[tuple[Any, Callable[[], object]]]
) -> list[Any]:
    """Return the changes that nothing finds; after each, the file is what it was."""
    assert not found(run)
    before, unfound = path.read_bytes(), []
    for told, change in changes:
        change()
        if not found(run):
            unfound.append(told)
        path.write_bytes(before)
    return unfound


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
    """Of one client with priority and one without it, in the middle of the run."""
    schema, names = (
        (CLIENTS_SCHEMA, CLIENTS) if folder == "clients" else (EVALUATIONS_SCHEMA, EVALUATIONS)
    )
    run, field = run_copy(names[column]), schema.field(column)
    rows = pq.read_table(run / folder).to_pylist()
    write_table(run, folder, rows)  # in one part, to which it is restored

    def changes() -> Iterator[tuple[Any, Callable[[], object]]]:
        for place in chosen(rows, folder):
            if rows[place]["priority"] is UNUSED.get((folder, column)):
                continue
            for value in others(rows[place][column], field.type):
                if value is not None or field.nullable:
                    new = [{**row} for row in rows]
                    new[place][column] = value
                    told = (rows[place]["client"], rows[place][column], value)
                    yield told, partial(write_table, run, folder, new)

    assert find_undetected(run, run / folder / "part-00000.parquet", changes()) == []


def chosen(rows: list[dict[str, Any]], folder: str) -> list[int]:
    """Return the places of a round's first rows with and without priority, of trained clients."""
    places = [
        place
        for place, row in enumerate(rows)
        if row["round"] == ROUND and (folder != "clients" or row["status"] == "trained")
    ]
    each = {rows[place]["priority"]: place for place in reversed(places)}
    return sorted(each.values())


@pytest.mark.parametrize("column", POPULATION)
def test_a_changed_client_is_found(run_copy: Callable[[str], Path], column: str) -> None:
    """What is said of the clients decides about them, and is said of them elsewhere."""
    run, field = run_copy(POPULATION[column]), POPULATION_SCHEMA.field(column)
    path = run / "population.parquet"
    rows = pq.read_table(path).to_pylist()

    def changes() -> Iterator[tuple[Any, Callable[[], object]]]:
        for place in (0, len(rows) - 1):
            for value in others(rows[place][column], field.type):
                if value is not None or field.nullable:
                    new = [{**row} for row in rows]
                    new[place][column] = value
                    table = pa.Table.from_pylist(new, schema=POPULATION_SCHEMA)
                    yield (place, rows[place][column], value), partial(pq.write_table, table, path)

    assert find_undetected(run, path, changes()) == []


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
    """With rules whose weights the records do not decide, what the others tell of them is."""
    run = run_copy(name)
    path = run / "rounds.jsonl"
    value = json.loads(path.read_text().splitlines()[ROUND - 1])[column]
    changes = ((new, partial(change_round, run, ROUND, **{column: new})) for new in others(value))
    assert find_undetected(run, path, changes) == []


def test_every_column_is_covered_or_has_its_reason() -> None:
    """A new column needs its row here."""
    columns = {
        "clients": ({*CLIENTS}, {*CLIENTS_SCHEMA.names}),
        "evaluations": ({*EVALUATIONS}, {*EVALUATIONS_SCHEMA.names}),
        "population": ({*POPULATION}, {*POPULATION_SCHEMA.names}),
        "rounds": ({*ROUNDS}, {field.name for field in fields(RoundRecord)}),
    }
    for name, (covered, every) in columns.items():
        assert covered | NOT_COVERED[name] == every, name
        assert not covered & NOT_COVERED[name], name
