"""Tests of the audit of evaluations."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fedquorum.audit.check import audit_run
from fedquorum.errors import RunError
from fedquorum.metrics.calibration import UNITS_PER_BIN
from fedquorum.records.tables import POPULATION_SCHEMA

from tests.builders_calibration import copy_bins
from tests.fedquorum.records.made import change_table

Rows = list[dict[str, Any]]


def find_row(rows: Rows, number: int, client: int) -> dict[str, Any]:
    """Return a client's row of a round."""
    return next(row for row in rows if (row["round"], row["client"]) == (number, client))


def add_prediction(row: dict[str, Any], column: str) -> None:
    """Add a wrong prediction to the client's first bin."""
    sums, index = copy_bins(row[column])
    sums["confidence"][index] += sums["confidence"][index] // sums["count"][index]
    sums["count"][index] += 1
    row[column] = sums.tobytes()


def move_confidence(row: dict[str, Any], column: str) -> None:
    """Move the confidence of the client's first bin to the upper end of the bin."""
    sums, index = copy_bins(row[column])
    sums["confidence"][index] = (index + 1) * UNITS_PER_BIN * int(sums["count"][index])
    row[column] = sums.tobytes()


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (
            "fedalign",
            lambda rows: find_row(rows, 3, 7).update(client=77),
            "round 3, client 77: evaluations/: the population has no such client",
        ),
        (
            "fedalign",
            lambda rows: find_row(rows, 3, 7).update(priority=True),
            "round 3, client 7: evaluations/: priority is True, the population says False",
        ),
        (
            "unseen",
            lambda rows: find_row(rows, 3, 4).update(held_out=False),
            "round 3, client 4: evaluations/: held_out is False, the population says True",
        ),
        (
            "fedalign",
            lambda rows: rows.append({**find_row(rows, 3, 2)}),
            "round 3, client 2: 2 rows in evaluations/, not one",
        ),
        (
            "fedalign",
            lambda rows: find_row(rows, 5, 1).update(accuracy=1.02),
            "round 5, client 1: evaluations/: accuracy is 1.02, which none can be",
        ),
        (
            "fedalign",
            lambda rows: find_row(rows, 5, 1).update(loss=-0.1),
            "round 5, client 1: evaluations/: loss is -0.1, which none can be",
        ),
        (
            "fedalign",
            lambda rows: find_row(rows, 0, 1).update(validation_num_examples=3),
            "round 0, client 1: evaluations/: examples of a validation part of which nothing was",
        ),
        (
            "fedalign",
            lambda rows: find_row(rows, 5, 4).update(round=6),
            "round 6: evaluations/ has rows of a round that rounds.jsonl lacks",
        ),
        (
            "fedalign",
            lambda rows: find_row(rows, 3, 7).update(loss=0.1),
            "round 3, client 7: evaluations/: loss of a training part that counts in no objective",
        ),
        (
            "fedalign",
            lambda rows: find_row(rows, 0, 1).update(validation_accuracy=0.1),
            "round 0, client 1: evaluations/: accuracy of a validation part without any examples",
        ),
        (
            "fedalign",
            lambda rows: find_row(rows, 3, 1).update(test_metric=0.1),
            "round 3, client 1: evaluations/: test_metric, where the run measures accuracy alone",
        ),
        (
            "fedalign",
            lambda rows: find_row(rows, 3, 1).update(test_num_examples=7),
            "round 3, client 1: evaluations/: the test part has 7 examples, and had 6 in",
        ),
        (
            "fedalign",
            lambda rows: add_prediction(find_row(rows, 5, 1), "test_calibration"),
            "round 5, client 1: evaluations/: test_calibration has ",
        ),
        (
            "fedalign",
            lambda rows: move_confidence(find_row(rows, 5, 1), "test_calibration"),
            "round 5: test.priority.ece is ",
        ),
        (
            "fedalign",
            lambda rows: find_row(rows, 5, 1).update(test_calibration=None),
            "round 5: test.priority.ece is ",
        ),
        (
            "personal",
            lambda rows: add_prediction(find_row(rows, 5, 1), "finetuned_test_calibration"),
            "round 5, client 1: evaluations/: finetuned_test_calibration has ",
        ),
        (
            "personal",
            lambda rows: find_row(rows, 5, 1).update(finetuned_epochs=1),
            "round 5, client 1: evaluations/: finetuned_epochs is 1, which evaluation.finetune_epo",
        ),
        (
            "personal",
            lambda rows: find_row(rows, 2, 1).update(alone_epochs=3),
            "round 2, client 1: evaluations/: the model alone, where the run evaluates none",
        ),
        (
            "personal",
            lambda rows: find_row(rows, 5, 1).update(held_out=True),
            "round 5, client 1: evaluations/: the model finetuned of a client that never trains",
        ),
        (
            "personal",
            lambda rows: find_row(rows, 5, 1).update(alone_test_accuracy=1.5),
            "round 5, client 1: evaluations/: alone_test_accuracy is 1.5, which none can be",
        ),
        (
            "personal",
            lambda rows: find_row(rows, 5, 1).update(finetuned_test_loss=0.25),
            "round 5: test.finetuned.loss is ",
        ),
        (
            "personal",
            lambda rows: find_row(rows, 5, 1).update(alone_epochs=None),
            "round 5: test.alone.accuracy is ",
        ),
    ],
)
def test_contradictory_evaluations_are_named(
    run_copy: Callable[[str], Path], name: str, change: Callable[[Rows], None], message: str
) -> None:
    """The mismatch has the round and the client."""
    run = run_copy(name)
    change_table(run, "evaluations", change)
    assert any(str(problem).startswith(message) for problem in audit_run(run).mismatches)


def test_data_on_devices_may_change(run_copy: Callable[[str], Path]) -> None:
    """Only a simulation creates the data once for the whole run."""
    run = run_copy("fedalign")
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("name: in-process", "name: flower"))
    change_table(run, "evaluations", lambda rows: find_row(rows, 3, 1).update(test_num_examples=7))
    assert audit_run(run).mismatches == ()


def test_a_round_that_was_being_written_is_no_mismatch(run_copy: Callable[[str], Path]) -> None:
    """A killed process may have written the rows, but not the line."""
    run = run_copy("fedalign")
    path = run / "rounds.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:4]))
    manifest = json.loads((run / "manifest.json").read_text())
    del manifest["summary"]
    (run / "manifest.json").write_text(json.dumps(manifest | {"status": "running"}))
    assert audit_run(run).mismatches == ()
    (run / "manifest.json").write_text(json.dumps(manifest | {"status": "failed"}))
    assert [str(problem) for problem in audit_run(run).mismatches] == [
        "round 5: clients/ has rows of a round that rounds.jsonl lacks",
        "round 5: evaluations/ has rows of a round that rounds.jsonl lacks",
    ]


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("priority_weight", 0.5, "client 7 must have priority and a weight above 0, or neither"),
        ("joined_round", 1, "joined_round must be there for all clients or for none"),
    ],
)
def test_contradictory_clients_are_refused(
    run_copy: Callable[[str], Path], column: str, value: Any, message: str
) -> None:
    """The records do not show which fact is right."""
    run = run_copy("fedalign")
    path = run / "population.parquet"
    rows = pq.read_table(path).to_pylist()
    rows[7][column] = value
    pq.write_table(pa.Table.from_pylist(rows, schema=POPULATION_SCHEMA), path)
    with pytest.raises(RunError, match=message):
        audit_run(run)
