"""A study's tables."""

import io
import math
from dataclasses import replace

from rich.console import Console

from server_app.report.tables import TextTable
from server_app.study.result import StudyResult
from server_app.study.tables import (
    build_exclusion_table,
    build_result_table,
    build_seed_runs_table,
    print_result,
    rank_methods,
    split_table,
)
from server_app.study.text import MINUS
from tests.builders_study import BASE, add_to_baseline, make_study_answer
from tests.snapshot import Snapshot

SCORES = {
    "fedavg": BASE,
    "mifa": add_to_baseline(-1, 0, -1, -1.5, -1),
    "fedau": add_to_baseline(2.0, 3.0, 1.8, 2.2, 2.4),
}


def columns(said: StudyResult) -> dict[str, list[str]]:
    """Return the cells of each column."""
    table = build_result_table(said)
    cells = map(list, zip(*table.rows, strict=True))
    return dict(zip(table.headings, cells, strict=True))


def with_facts(said: StudyResult) -> StudyResult:
    """Return the answer with what only a real study knows of the methods."""
    facts = {"fedau": (12.4, 0.25), "mifa": (None, 0.8)}
    methods = (
        replace(
            method,
            rounds_to_baseline=rounds,
            worse_off=share,
            tuned=("client.lr=0.1",) if method.name == "mifa" else (),
        )
        for method in said.methods
        for rounds, share in [facts.get(method.name, (None, math.nan))]
    )
    return replace(said, methods=tuple(methods))


def test_the_best_comes_first_and_the_baseline_last() -> None:
    """With the differences in points and how often it is ahead."""
    cells = columns(with_facts(make_study_answer(SCORES)))
    assert cells["method"] == ["FedAU", "MIFA", "FedAvg"]
    assert cells["accuracy of all clients, %"][2] == "70.4 ± 7.3"
    differences = cells["add_to_baseline than FedAvg by, points (95 % interval)"]
    assert differences[0].startswith("+2.3 (+1.6 to +")
    assert differences[1].startswith(f"{MINUS}0.9 (")
    assert differences[2] == "-"
    assert cells["seeds ahead"] == ["5 of 5", "0 of 5", "-"]
    assert cells["rounds to FedAvg's score"] == ["12", "rarely", "-"]
    assert cells["clients worse off"] == ["25 %", "80 %", "-"]
    assert cells["values tuned"] == ["-", "client rate 0.1", "-"]


def test_a_positive_difference_is_better_where_lower_is() -> None:
    """A loss that falls is a gain."""
    falls = [score - 0.02 for score in BASE]
    cells = columns(make_study_answer({"fedavg": BASE, "fedau": falls}, metric="loss"))
    assert cells["add_to_baseline than FedAvg by, nats (95 % interval)"][0].startswith("+0.020 (")


def test_columns_without_a_number_and_repetitions_are_left_out() -> None:
    """Nobody was unseen, and the worst clients are the score."""
    assert not [heading for heading in columns(make_study_answer(SCORES)) if "held-out" in heading]
    headings = list(columns(make_study_answer(SCORES, metric_key="test.all.worst10")))
    assert headings.count("worst 10 % of clients, %") == 0
    assert "all clients, %" in headings


def test_without_a_decision_the_order_is_that_of_the_methods() -> None:
    """Too few seeds to rank anybody."""
    few = make_study_answer({name: values[:3] for name, values in SCORES.items()})
    assert [method.name for method in rank_methods(few)] == ["fedavg", "mifa", "fedau"]
    assert not [heading for heading in columns(few) if "better" in heading]


def test_methods_left_out_and_commands() -> None:
    """Each with its reason, each run with what repeats it."""
    said = make_study_answer(SCORES, left_out={"maxfl": "it needs\na requirement"})
    assert build_exclusion_table(said).rows == (("MaxFL", "it needs a requirement"),)
    runs = build_seed_runs_table(said)
    assert len(runs.rows) == 15
    assert runs.rows[0][-1] == "fedquorum strategy=fedavg seed=1"


def test_a_wide_table_is_divided() -> None:
    """Every part begins with the methods and fits; nothing is lost."""
    table = TextTable(
        "title", ("method", "a long heading", "b", "c"), (("x", "1", "22", "333333"),)
    )
    parts = split_table(table, 30)
    assert [part.headings for part in parts] == [("method", "a long heading", "b"), ("method", "c")]
    assert [part.title for part in parts] == ["title", ""]
    assert split_table(table, 200) == (table,)
    assert len(split_table(table, 1)) == 3


def test_a_terminal_gets_verdict_tables_and_caveats(snapshot: Snapshot) -> None:
    """Names with brackets stay as they are, and no line is longer than the terminal."""
    said = make_study_answer(
        SCORES, left_out={"[red]": "why [not]"}, caveats=("3 of 4 clients [1, 2, 3].",)
    )
    out = io.StringIO()
    print_result(with_facts(said), Console(file=out, width=60))
    text = "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())
    snapshot("study/terminal.txt", text)
    assert all(word in text for word in ("[red]", "why [not]", "- 3 of 4 clients [1, 2, 3]."))
    assert max(map(len, text.splitlines())) <= 60
