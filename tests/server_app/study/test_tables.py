"""Tests of a study's tables."""

import io
import math
from dataclasses import replace

import pytest
from fedquorum.report.tables import TextTable
from rich.console import Console

from server_app.study.page import render_study_page
from server_app.study.result import SeedRun, StudyResult
from server_app.study.tables import (
    build_exclusion_table,
    build_result_table,
    build_seed_runs_table,
    print_result,
    rank_methods,
    split_table,
)
from server_app.study.text import MINUS, format_verdict
from tests.builders_study import BASE, add_to_baseline, make_study_answer
from tests.snapshot import Snapshot

SCORES = {
    "fedavg": BASE,
    "mifa": add_to_baseline(-1, 0, -1, -1.5, -1),
    "fedau": add_to_baseline(2.0, 3.0, 1.8, 2.2, 2.4),
}


def read_columns(result: StudyResult) -> dict[str, list[str]]:
    """Return the cells of each column."""
    table = build_result_table(result)
    cells = map(list, zip(*table.rows, strict=True))
    return dict(zip(table.headings, cells, strict=True))


def add_facts(result: StudyResult) -> StudyResult:
    """Add facts about the methods that only a real study has."""
    facts = {"fedau": (12.4, 0.25), "mifa": (None, 0.8)}
    methods = (
        replace(
            method,
            rounds_to_baseline=rounds,
            worse_off=worse_off,
            better_off=worse_off / 5,
            tuned=("client.lr=0.1",) if method.name == "mifa" else (),
        )
        for method in result.methods
        for rounds, worse_off in [facts.get(method.name, (None, math.nan))]
    )
    return replace(result, methods=tuple(methods))


def test_the_best_comes_first_and_the_baseline_last() -> None:
    """Differences are in points, with the number of seeds ahead."""
    cells = read_columns(add_facts(make_study_answer(SCORES)))
    assert cells["method"] == ["FedAU", "MIFA", "FedAvg"]
    assert cells["accuracy of all clients, %"][2] == "70.4 ± 7.3"
    differences = cells["better than FedAvg by, points (95 % interval)"]
    assert differences[0].startswith("+2.3 (+1.6 to +")
    assert differences[1].startswith(f"{MINUS}0.9 (")
    assert differences[2] == "-"
    assert cells["seeds ahead"] == ["5 of 5", "0 of 5", "-"]
    assert cells["rounds to FedAvg's score"] == ["12", "rarely", "-"]
    assert cells["clients worse off"] == ["25 %", "80 %", "-"]
    assert cells["clients better off"] == ["5 %", "16 %", "-"]
    assert cells["values tuned"] == ["-", "client rate 0.1", "-"]


def test_a_positive_difference_is_better_where_lower_is() -> None:
    """A loss that falls is a gain."""
    falls = [score - 0.02 for score in BASE]
    cells = read_columns(make_study_answer({"fedavg": BASE, "fedau": falls}, metric="loss"))
    assert cells["better than FedAvg by, nats (95 % interval)"][0].startswith("+0.020 (")


def add_measure(result: StudyResult, name: str, *values: float) -> StudyResult:
    """Add a number to each method, the same in every seed; none for NaN."""

    def add(run: SeedRun, value: float) -> SeedRun:
        added = {} if math.isnan(value) else {name: value}
        return replace(run, measures={**run.measures, **added})

    methods = (
        replace(method, runs=tuple(add(run, value) for run in method.runs))
        for method, value in zip(result.methods, values, strict=True)
    )
    return replace(result, methods=tuple(methods))


@pytest.mark.parametrize("metric", ["rmse", "mae"])
def test_r2_stands_beside_the_error_of_numbers(metric: str) -> None:
    """It may be negative, and a study without it has no such column."""
    falls = [score - 0.02 for score in BASE]
    plain = make_study_answer({"fedavg": BASE, "fedau": falls, "mifa": BASE}, metric=metric)
    result = add_measure(plain, "r2", 0.5, -1.25, math.nan)
    cells = read_columns(result)
    assert [*cells][2] == "R2 of all clients"
    by_method = dict(zip(cells["method"], cells["R2 of all clients"], strict=True))
    assert by_method == {"FedAvg": "0.500", "FedAU": f"{MINUS}1.250", "MIFA": "-"}
    assert "R2 of all clients" in render_study_page(result)
    assert not [heading for heading in read_columns(plain) if "R2" in heading]


def test_r2_is_of_the_group_of_the_score() -> None:
    """The worst clients are of a group; and R2 as the metric has no second column."""
    scores = {"fedavg": BASE, "fedau": BASE}
    result = make_study_answer(scores, metric="rmse", metric_key="test.priority.worst10")
    assert "R2 of the priority clients" in read_columns(add_measure(result, "r2", 0.5, 0.6))
    for metric in ("r2", "accuracy"):
        result = add_measure(make_study_answer(scores, metric=metric), "r2", 0.5, 0.6)
        assert not [heading for heading in read_columns(result) if heading.startswith("R2 of")][1:]


@pytest.mark.parametrize("metric", ["accuracy", "auroc", "loss"])
def test_the_calibration_error_stands_beside_any_metric_of_classes(metric: str) -> None:
    """It is in percent, after average precision, and changes neither the order nor the verdict."""
    plain = make_study_answer(SCORES, metric=metric, metric_key="test.all.worst10")
    assert not [heading for heading in read_columns(plain) if "calibration" in heading]
    precise = add_measure(plain, "average_precision", 0.5, 0.5, 0.5)
    result = add_measure(precise, "ece", 0.01, math.nan, 0.3)
    cells = read_columns(result)
    heading = "calibration error of all clients, %"
    assert [*cells].index(heading) == 2 + (metric == "auroc")
    by_method = dict(zip(cells["method"], cells[heading], strict=True))
    assert by_method == {"FedAvg": "1.0", "MIFA": "-", "FedAU": "30.0"}
    assert cells["method"] == read_columns(plain)["method"]
    assert format_verdict(result) == format_verdict(plain)


def test_columns_without_a_number_and_repetitions_are_left_out() -> None:
    """No client is held out, and the score already is the worst clients' mean."""
    assert not [
        heading for heading in read_columns(make_study_answer(SCORES)) if "held-out" in heading
    ]
    headings = list(read_columns(make_study_answer(SCORES, metric_key="test.all.worst10")))
    assert headings.count("worst 10 % of clients, %") == 0
    assert "all clients, %" in headings


def test_without_a_decision_the_order_is_that_of_the_methods() -> None:
    """Too few seeds give no ranking."""
    few = make_study_answer({name: values[:3] for name, values in SCORES.items()})
    assert [method.name for method in rank_methods(few)] == ["fedavg", "mifa", "fedau"]
    assert not [heading for heading in read_columns(few) if "better" in heading]


def test_methods_left_out_and_commands() -> None:
    """Each excluded method has its reason, each run its command."""
    result = make_study_answer(SCORES, left_out={"maxfl": "it needs\na requirement"})
    assert build_exclusion_table(result).rows == (("MaxFL", "it needs a requirement"),)
    runs = build_seed_runs_table(result)
    assert len(runs.rows) == 15
    assert runs.rows[0][-1] == "fedquorum strategy=fedavg seed=1"


def test_a_wide_table_is_split() -> None:
    """Every part starts with the methods and fits; no column is lost."""
    table = TextTable(
        "title", ("method", "a long heading", "b", "c"), (("x", "1", "22", "333333"),)
    )
    parts = split_table(table, 30)
    assert [part.headings for part in parts] == [("method", "a long heading", "b"), ("method", "c")]
    assert [part.title for part in parts] == ["title", ""]
    assert split_table(table, 200) == (table,)
    assert len(split_table(table, 1)) == 3


def test_a_terminal_gets_verdict_tables_and_caveats(snapshot: Snapshot) -> None:
    """Brackets in names are kept, and no line is longer than the terminal."""
    result = make_study_answer(
        SCORES, left_out={"[red]": "why [not]"}, caveats=("3 of 4 clients [1, 2, 3].",)
    )
    out = io.StringIO()
    print_result(add_facts(result), Console(file=out, width=60))
    text = "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())
    snapshot("study/terminal.txt", text)
    assert all(word in text for word in ("[red]", "why [not]", "- 3 of 4 clients [1, 2, 3]."))
    assert max(map(len, text.splitlines())) <= 60
