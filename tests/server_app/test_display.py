"""What a person sees of a run."""

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import reduce
from io import StringIO

import pytest
from fedquorum.decisions import ClientEvaluation
from fedquorum.records.round_record import RoundRecord
from fedquorum.rule import Goal
from rich.console import Console
from rich.table import Table

from server_app.display import (
    Display,
    DisplaySpec,
    RunTotals,
    build_final_table,
    fit_to_console,
    format_round,
    format_time_left,
)
from tests.fedquorum.records.made import make_round_record, report

NAN = math.nan
PLAIN = DisplaySpec("accuracy", Goal.AVERAGE, 4)


def record_of(
    number: int, evaluations: list[ClientEvaluation], metric: str = "accuracy"
) -> RoundRecord:
    return make_round_record(report(number), None, evaluations, metric=metric)


def shown(
    evaluations: list[ClientEvaluation],
    metric: str,
    question: Goal = Goal.AVERAGE,
    counted: Mapping[int, int] | None = None,
) -> tuple[str, dict[str, list[str]]]:
    """Return the words of a round, and the cells of the final table by the name of their row.

    The cells of the row "" are the headings.
    """
    record = record_of(1, evaluations, metric)
    about, text = DisplaySpec(metric, question, 4), StringIO()
    totals = RunTotals().add_round(record)
    Console(file=text, width=120).print(
        build_final_table(totals, "title", about, admission_counts=counted)
    )
    lines = [re.split("[│┃]", line) for line in text.getvalue().splitlines()]
    rows = {
        cells[1].strip(): [cell.strip() for cell in cells[2:-1]] for cells in lines if cells[1:]
    }
    return format_round(vars(record), about), rows


def client(
    k: int, loss: float, accuracy: float, metric: float = NAN, priority: float = 1.0
) -> ClientEvaluation:
    return ClientEvaluation(k, priority, 10, 1.0, 0.5, 4, loss, accuracy, metric)


@pytest.mark.parametrize(
    ("metric", "name", "mean", "worst", "best"),
    [
        ("accuracy", "accuracy", "50.0%", "25.0%", "75.0%"),
        ("auroc", "AUROC", "70.0%", "60.0%", "80.0%"),
        ("loss", "loss", "1.5000", "2.0000", "1.0000"),
        ("mae", "MAE", "0.7000", "0.8000", "0.6000"),
        ("r2", "R2", "0.7000", "0.6000", "0.8000"),
    ],
)
def test_the_table_is_of_the_metric(
    metric: str, name: str, mean: str, worst: str, best: str
) -> None:
    """So is the line of a round; a loss and an error of numbers are no shares."""
    words, rows = shown([client(0, 1.0, 0.25, 0.6), client(1, 2.0, 0.75, 0.8)], metric)
    assert f"test {name} {mean}" in words
    assert rows[""] == ["all"]
    assert rows[f"test {name}, by data"] == [mean]
    assert rows["worst client"] == [worst]
    assert rows["best client"] == [best]


def test_what_is_not_defined_is_a_dash() -> None:
    """Accuracy of numbers, and a metric that no client has, are shown as missing."""
    words, rows = shown([client(0, 1.0, NAN)], "loss")
    assert "test loss 1.0000" in words
    assert rows["test loss, by data"][0] == "1.0000"
    _, rows = shown([client(0, 1.0, 0.5, NAN)], "auroc")
    assert rows["test AUROC, by data"] == rows["average over clients"] == ["-"]


TWO_GROUPS = [client(0, 1.0, 0.25), client(1, 1.0, 0.5), client(2, 1.0, 1.0, priority=0.0)]


@pytest.mark.parametrize(
    ("question", "headings", "first"),
    [
        (Goal.PRIORITY, ["priority", "non-priority", "all"], "37.5%"),
        (Goal.AVERAGE, ["priority", "non-priority", "all"], "37.5%"),
        (Goal.FAIRNESS, ["all"], "58.3%"),
        (Goal.PARTICIPATION, ["all"], "58.3%"),
    ],
)
def test_the_groups_are_those_that_the_method_is_about(
    question: Goal, headings: list[str], first: str
) -> None:
    """A round's line has the number that the table begins with."""
    words, rows = shown(TWO_GROUPS, "accuracy", question)
    assert rows[""] == headings
    assert rows["test accuracy, by data"][0] == first
    assert f"test accuracy {first}" in words
    assert ("standard deviation" in rows) == (question is Goal.FAIRNESS)
    assert ("clients whose updates counted" in rows) == (question is Goal.PARTICIPATION)


def test_fairness_is_shown_as_the_spread() -> None:
    """Worst and best 10 %, standard deviation and Gini: of 0.25, 0.5 and 1, 0.286."""
    _, rows = shown(TWO_GROUPS, "accuracy", Goal.FAIRNESS)
    names = ("worst 10 %", "best 10 %", "standard deviation", "Gini")
    assert [rows[name] for name in names] == [["25.0%"], ["100.0%"], ["31.2%"], ["28.6%"]]


def test_participation_is_shown_as_rounds_per_client() -> None:
    """Of 4 clients one never counted; the median is the lower of two."""
    _, rows = shown(TWO_GROUPS, "accuracy", Goal.PARTICIPATION, {0: 3, 1: 1, 2: 1})
    assert rows["clients whose updates counted"] == ["3 of 4"]
    often = [
        rows[f"rounds of the {which} client"] for which in ("rarest", "median", "most frequent")
    ]
    assert often == [["0 of 1"], ["1 of 1"], ["3 of 1"]]


def test_the_table_is_of_all_rounds() -> None:
    """Means over the rounds, sums, and the last that was measured of losses and test parts."""
    tested = record_of(1, [client(0, 1.0, 0.25)])
    first = replace(tested, admitted=3, duration_seconds=1.0, theta=0.25, bytes_up=10**6)
    second = replace(
        first, admitted=0, duration_seconds=2.0, theta=0.75, global_loss=0.5, state_bytes=10**6
    )
    third = replace(
        second, theta=None, global_loss=NAN, test=None, duration_seconds=6.0, bytes_down=10**6
    )
    totals = reduce(RunTotals.add_round, (first, second, third), RunTotals())
    text = StringIO()
    about = DisplaySpec("accuracy", Goal.PRIORITY)
    Console(file=text, width=120).print(build_final_table(totals, "title", about))
    cells = [line.split("│") for line in text.getvalue().splitlines() if "│" in line]
    assert {row[1].strip(): row[2].strip() for row in cells} == {
        "test accuracy, by data": "25.0%",
        "average over clients": "25.0%",
        "worst client": "25.0%",
        "best client": "25.0%",
        "training loss F(w), last measured": "0.5000",
        "updates admitted per round": "1.0",
        "theta_T, mean of 1 / (1 + A)": "0.500",
        "server state beside the model": "1.0 MB",
        "rounds without any update": "2",
        "rounds": "3",
        "seconds per round": "3.000",
        "data sent, both ways": "4.0 MB",
    }


def test_a_round_in_a_few_words() -> None:
    """What was not measured is left out, whether it is NaN in memory or null in a file."""
    measured = vars(record_of(1, [client(0, 1.0, 0.875)]))
    assert (
        format_round(measured, PLAIN)
        == "loss 1.2500  test accuracy 87.5%  admitted 1 of 3 selected"
    )
    for nothing in (NAN, None):
        unknown = {**measured, "global_loss": nothing, "test": None}
        assert format_round(unknown, PLAIN) == "admitted 1 of 3 selected"
    unknown = {**measured, "test": {"priority": {"accuracy": None}}}
    assert format_round(unknown, PLAIN) == "loss 1.2500  test accuracy -  admitted 1 of 3 selected"


def test_updates_are_shown_by_priority_where_that_is_compared() -> None:
    """Of 4 updates in 2 rounds, client 2's one is that of a client without priority."""
    first = replace(record_of(1, TWO_GROUPS), admitted=3)
    totals = reduce(RunTotals.add_round, (first, replace(first, round=2, admitted=1)), RunTotals())
    about = DisplaySpec("accuracy", Goal.PRIORITY, 3, frozenset({0, 1}))
    table = build_final_table(totals, "title", about, admission_counts={0: 2, 1: 1, 2: 1})
    names, *groups = (list(column.cells) for column in table.columns)
    row = names.index("updates admitted per round")
    assert [group[row] for group in groups] == ["1.5", "0.5", "2.0"]


def live(width: int, title: str = "FedALIGN on synth") -> str:
    """Return the last live line of a run on a terminal so wide."""
    out = StringIO()
    terminal = Console(file=out, width=width, force_terminal=True, color_system=None)
    with Display(terminal, 12345, title, PLAIN) as display:
        display.show(replace(record_of(12345, [client(0, 1.0, 0.875)]), admitted=20, selected=20))
    lines = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", out.getvalue()).splitlines()
    return [line.rpartition("\r")[2] for line in lines if "12345" in line][-1]


@pytest.mark.parametrize("width", [40, 60, 80, 100, 130, 200])
def test_the_live_line_is_one_line_with_the_round(width: int) -> None:
    """On a narrow terminal the title and the bar go first, then the end of the numbers."""
    line = live(width)
    assert len(line.rstrip()) <= width
    assert "12345/12345 0:00:00 loss 1.2500" in line
    assert ("FedALIGN on synth" in line) == (width >= 100)
    assert ("━" in line) == (width >= 130)
    assert line.rstrip().endswith("admitted 20 of 20 selected") == (width >= 80)


def test_a_dumb_terminal_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot change its last line, so that a live one would be a line for every change."""
    monkeypatch.setenv("TERM", "dumb")
    out = StringIO()
    terminal = Console(file=out, width=80, force_terminal=True)
    with Display(terminal, 3, "run", PLAIN) as display:
        for server_round in (1, 2, 3):
            display.show(record_of(server_round, []))
    told = format_round(vars(record_of(1, [])), PLAIN)
    assert out.getvalue().splitlines() == [f"run  round {t}/3  {told}" for t in (1, 3)]


@pytest.mark.parametrize(
    ("width", "left_out"),
    [(40, ""), (39, "third"), (27, "third"), (26, "second one, third"), (1, "second one, third")],
)
def test_a_narrow_table_loses_its_last_columns(width: int, left_out: str) -> None:
    """They are named, and what stays is on one line each."""
    table = Table()
    for heading in ("first", "second\none", "third"):
        table.add_column(heading)
    table.add_row("a" * 10, "b" * 10, "c" * 10)
    out = StringIO()
    console = Console(file=out, width=width)
    assert fit_to_console(table, console, keep=1) == left_out
    assert len(table.columns) == 3 - (left_out.count(",") + 1 if left_out else 0)
    console.print(table)
    cells = [cell for column in table.columns for cell in column.cells]
    assert all(str(cell) in out.getvalue() for cell in cells) == (width > 1)


@pytest.mark.parametrize(
    ("seconds", "fraction", "left"),
    [
        (60.0, 0.25, "0:03:00 left"),
        (3600.0, 1 / 49, "2 days, 0:00:00 left"),
        (5.0, 0.0, ""),
        (5.0, 1.0, ""),
    ],
)
def test_the_time_left(seconds: float, fraction: float, left: str) -> None:
    """As the time so far; nothing is said where nothing tells."""
    assert format_time_left(seconds, fraction) == left


def test_plain_lines_have_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that goes on after round 5 of 10 judges by its own rounds, but for the first.

    The first one makes the data and the model, and may take as long as all others.
    """
    clock = iter((100.0, 108.0, 116.0, 124.0, 132.0))
    monkeypatch.setattr("server_app.display.time.monotonic", lambda: next(clock))
    monkeypatch.setattr("server_app.display.PLAIN_SECONDS", 5.0)
    out = StringIO()
    with Display(Console(file=out), 10, "run", PLAIN) as display:
        for server_round in (6, 7, 8, 9, 10):
            display.show(record_of(server_round, []))
    line = f"run  round {{}}/10  {format_round(vars(record_of(6, [])), PLAIN)}"
    assert out.getvalue().splitlines() == [
        line.format(6),
        f"{line.format(7)}  0:00:24 left",
        f"{line.format(8)}  0:00:16 left",
        f"{line.format(9)}  0:00:08 left",
        line.format(10),
    ]
