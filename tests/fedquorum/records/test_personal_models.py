"""Test the summaries and the records of models that clients train for themselves."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from fedquorum.records.personal_models import build_personal_evaluations, select_epochs
from fedquorum.records.reader import read_table
from fedquorum.records.round_record import list_groups, summarize_evaluations
from fedquorum.records.tables import (
    EVALUATIONS_COLUMNS,
    TableWriter,
    build_evaluations_table,
    list_evaluation_columns,
)
from fedquorum.rules.decisions import ALONE, FINETUNED, ClientEvaluation, PersonalEvaluation

from tests.builders_calibration import make_full_bin

NAN = math.nan
COMMON = (
    ClientEvaluation(0, 1.0, 10, 1.0, 0.5, 4, 2.0, 0.75),
    ClientEvaluation(1, 0.0, 30, NAN, NAN, 2, 4.0, 0.25),
    ClientEvaluation(2, 0.0, 60, NAN, NAN, 8, 1.0, 0.5),
)


def make_evaluations(
    losses: tuple[float, ...], weights: tuple[int, ...] = (1, 3)
) -> list[ClientEvaluation]:
    """Return evaluations of the clients' own models, by their validation losses."""
    return [
        ClientEvaluation(
            k, 0.0, data, NAN, NAN, 4, 1.0, 0.5, validation_num_examples=2, validation_loss=loss
        )
        for k, (data, loss) in enumerate(zip(weights, losses, strict=True))
    ]


def test_the_best_mean_by_data_on_validation_splits_decides() -> None:
    """Client 1 has three times the data, so 0.5 and 2 beat 2 and 1.4 nowhere but by count."""
    by_epochs = {5: make_evaluations((0.5, 2.0)), 1: make_evaluations((2.0, 1.4))}
    assert select_epochs(by_epochs, "loss") == 1
    equal = {
        epochs: make_evaluations(one, (1, 1)) for epochs, one in ((5, (0.5, 2.0)), (1, (2.0, 1.4)))
    }
    assert select_epochs(equal, "loss") == 5


def test_a_metric_of_which_more_is_better() -> None:
    """The highest accuracy wins."""
    by_epochs = {
        epochs: [replace(e, validation_accuracy=accuracy) for e in make_evaluations((1.0, 1.0))]
        for epochs, accuracy in ((0, 0.4), (2, 0.7), (8, 0.6))
    }
    assert select_epochs(by_epochs, "accuracy") == 2


def test_the_fewest_epochs_of_equals() -> None:
    """Without any validation metric, as if it is withheld, all are equal."""
    silent = [replace(e, validation_num_examples=NAN) for e in make_evaluations((1.0, 1.0))]
    assert select_epochs({9: silent, 3: silent, 4: silent}, "loss") == 3
    diverged = {3: make_evaluations((NAN, NAN)), 9: make_evaluations((1.0, 1.0))}
    assert select_epochs(diverged, "loss") == 9


def add_finetuned(accuracies: tuple[float, ...], epochs: int = 3) -> list[ClientEvaluation]:
    return [
        replace(e, personal=(PersonalEvaluation(FINETUNED, epochs, 0.5, 1.0, accuracy),))
        for e, accuracy in zip(COMMON, accuracies, strict=False)
    ]


def test_the_group_is_over_all_clients_that_train() -> None:
    """The means are by training data, priority or not; the spread counts each client once."""
    accuracies = (0.9, 0.3, 0.6)
    evaluations = add_finetuned(accuracies)
    groups = summarize_evaluations(evaluations, "accuracy", True)
    assert groups is not None
    assert list_groups(groups) == ("priority", "non_priority", "all", "finetuned")
    found = groups[FINETUNED]
    assert found is not None
    assert found["accuracy"] == pytest.approx((9 + 9 + 36) / 100)
    assert found["average"] == pytest.approx(np.mean(accuracies))
    assert (found["worst"], found["epochs"], found["evaluated"]) == (0.3, 3, 3)
    common = summarize_evaluations(COMMON, "accuracy", True)
    assert {name: one for name, one in groups.items() if name != FINETUNED} == common


def test_held_out_clients_and_clients_without_such_a_model_do_not_count() -> None:
    """They neither train nor reply."""
    held_out, missing, one = add_finetuned((0.9, 0.3, 0.6))
    groups = summarize_evaluations(
        [replace(held_out, held_out=True), replace(missing, personal=()), one], "accuracy", True
    )
    assert groups is not None
    found = groups[FINETUNED]
    assert found is not None
    assert (found["accuracy"], found["evaluated"]) == (0.6, 1)


BINS = make_full_bin(3, 2, 1)


def test_the_columns_of_a_run_with_such_models(tmp_path: Path) -> None:
    """Every file has them, null before the last round; the reader restores the bits."""
    finetuned = PersonalEvaluation(
        FINETUNED, 3, 0.7, 0.1 + 0.2, 0.5, test_calibration=BINS, validation_loss=math.inf
    )
    models = (FINETUNED,)
    table = TableWriter(
        tmp_path / "evaluations",
        list_evaluation_columns(models),
        build=lambda rows: build_evaluations_table(rows, models),
    )
    rows = [(1, COMMON[0]), (2, replace(COMMON[0], personal=(finetuned,))), (2, COMMON[1])]
    table.add_rows(rows)
    table.close()
    (file,) = (tmp_path / "evaluations").iterdir()
    names = pq.read_schema(file).names
    assert [name for name in names if name.startswith(FINETUNED)] == [
        "finetuned_epochs",
        "finetuned_loss",
        *(
            f"finetuned_{split}_{name}"
            for split in ("test", "validation")
            for name in ("loss", "accuracy", "metric", "r2", "calibration")
        ),
    ]
    assert not [name for name in names if name.startswith(ALONE)]
    read = read_table(tmp_path / "evaluations")
    assert read.column_names == names
    assert read["finetuned_epochs"].to_pylist() == [None, 3, None]
    assert read["finetuned_loss"].to_pylist() == [None, 0.7, None]
    assert read["finetuned_test_loss"].to_pylist() == [None, 0.1 + 0.2, None]
    assert read["finetuned_validation_loss"].to_pylist() == [None, math.inf, None]
    assert read["finetuned_test_metric"].null_count == 3
    assert read["finetuned_test_calibration"].to_pylist() == [None, BINS, None]
    assert read["test_calibration"].null_count == 3


def test_the_columns_of_any_other_run(tmp_path: Path) -> None:
    """A run without such models has the columns of before."""
    table = TableWriter(
        tmp_path / "evaluations", list_evaluation_columns(()), build=build_evaluations_table
    )
    table.add_rows([(1, COMMON[0])])
    table.close()
    assert read_table(tmp_path / "evaluations").column_names == [
        c.name for c in EVALUATIONS_COLUMNS
    ]


def test_average_precision_has_columns_only_beside_auroc(tmp_path: Path) -> None:
    """Of the common model and of the clients' own; the reader restores them."""
    finetuned = PersonalEvaluation(
        FINETUNED, 3, 0.4, 0.1, 0.5, 0.7, validation_average_precision=0.2
    )
    row = replace(COMMON[0], test_average_precision=0.1 + 0.2, personal=(finetuned,))
    with_columns = list_evaluation_columns((FINETUNED,), has_average_precision=True)
    without = list_evaluation_columns((FINETUNED,))
    added = {c.name for c in with_columns} - {c.name for c in without}
    assert added == {
        f"{model}{split}_average_precision"
        for model in ("", "finetuned_")
        for split in ("test", "validation")
    }
    table = TableWriter(
        tmp_path / "evaluations",
        with_columns,
        build=lambda rows: build_evaluations_table(rows, (FINETUNED,), has_average_precision=True),
    )
    table.add_rows([(1, row)])
    table.close()
    read = read_table(tmp_path / "evaluations")
    assert read.column_names == [c.name for c in with_columns]
    assert read["test_average_precision"].to_pylist() == [0.1 + 0.2]
    assert read["finetuned_validation_average_precision"].to_pylist() == [0.2]


def test_evaluations_by_client() -> None:
    """Each has the metrics of the client's reply, and the epochs."""
    found = build_personal_evaluations(ALONE, 7, COMMON[:2])
    assert found[1] == PersonalEvaluation(ALONE, 7, COMMON[1].loss, 4.0, 0.25)
    assert replace(COMMON[0], personal=(found[0],)).replace_by_personal(ALONE) == COMMON[0]
    assert COMMON[0].replace_by_personal(ALONE) is None
