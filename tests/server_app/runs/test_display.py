"""Test the display of a run."""

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import reduce
from io import StringIO

import pytest
from fedquorum.records.round_record import RoundRecord
from fedquorum.report.terminal import fit_to_console, format_time_left
from fedquorum.rules.decisions import ClientEvaluation
from fedquorum.rules.description import Goal
from rich.console import Console
from rich.table import Table

from server_app.runs.display import (
    Display,
    DisplaySpec,
    RunTotals,
    build_final_table,
    format_round,
)
from tests.fedquorum.records.made import make_round_record, report

NAN = math.nan
PLAIN = DisplaySpec("accuracy", Goal.AVERAGE, 4)


def make_record(
    number: int, evaluations: list[ClientEvaluation], metric: str = "accuracy"
) -> RoundRecord:
    return make_round_record(report(number), None, evaluations, metric=metric)


def display_round(
    evaluations: list[ClientEvaluation],
    metric: str,
    goal: Goal = Goal.AVERAGE,
    admission_counts: Mapping[int, int] | None = None,
) -> tuple[str, dict[str, list[str]]]:
    """Return the line of a round, and the cells of the final table by the name of their row.

    The cells of the row "" are the headings.
    """
    record = make_record(1, evaluations, metric)
    spec, text = DisplaySpec(metric, goal, 4), StringIO()
    totals = RunTotals().add_round(record)
    Console(file=text, width=120).print(
        build_final_table(totals, "title", spec, admission_counts=admission_counts)
    )
    lines = [re.split("[│┃]", line) for line in text.getvalue().splitlines()]
    rows = {
        cells[1].strip(): [cell.strip() for cell in cells[2:-1]] for cells in lines if cells[1:]
    }
    return format_round(vars(record), spec), rows


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (5e-12, "5e-12"),
        (-2.34e-5, "-2.3e-05"),
        (0.0, "0.0000"),
        (0.25, "0.2500"),
        (6616.7, "6,616.7"),
    ],
)
def test_errors_of_any_scale(value: float, text: str) -> None:
    """The error of a tiny target is no 0."""
    assert DisplaySpec("rmse", Goal.AVERAGE, 4).format_metric("rmse", value) == text


def make_evaluation(
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
def test_line_and_table_show_the_metric(
    metric: str, name: str, mean: str, worst: str, best: str
) -> None:
    """Accuracy and AUROC are percentages; losses and regression metrics are numbers."""
    line, rows = display_round(
        [make_evaluation(0, 1.0, 0.25, 0.6), make_evaluation(1, 2.0, 0.75, 0.8)], metric
    )
    assert f"test {name} {mean}" in line
    assert rows[""] == ["all"]
    assert rows[f"test {name}, by data"] == [mean]
    assert rows["worst client"] == [worst]
    assert rows["best client"] == [best]


def test_an_undefined_metric_is_a_dash() -> None:
    """A regression has no accuracy, and a metric may be undefined for all clients."""
    line, rows = display_round([make_evaluation(0, 1.0, NAN)], "loss")
    assert "test loss 1.0000" in line
    assert rows["test loss, by data"][0] == "1.0000"
    _, rows = display_round([make_evaluation(0, 1.0, 0.5, NAN)], "auroc")
    assert rows["test AUROC, by data"] == rows["average over clients"] == ["-"]


TWO_GROUPS = [
    make_evaluation(0, 1.0, 0.25),
    make_evaluation(1, 1.0, 0.5),
    make_evaluation(2, 1.0, 1.0, priority=0.0),
]


@pytest.mark.parametrize(
    ("goal", "headings", "first"),
    [
        (Goal.PRIORITY, ["priority", "non-priority", "all"], "37.5%"),
        (Goal.AVERAGE, ["priority", "non-priority", "all"], "37.5%"),
        (Goal.FAIRNESS, ["all"], "58.3%"),
        (Goal.PARTICIPATION, ["all"], "58.3%"),
    ],
)
def test_the_table_has_the_groups_of_the_methods_goal(
    goal: Goal, headings: list[str], first: str
) -> None:
    """The line of a round has the first number of the table."""
    line, rows = display_round(TWO_GROUPS, "accuracy", goal)
    assert rows[""] == headings
    assert rows["test accuracy, by data"][0] == first
    assert f"test accuracy {first}" in line
    assert ("standard deviation" in rows) == (goal is Goal.FAIRNESS)
    assert ("clients whose updates counted" in rows) == (goal is Goal.PARTICIPATION)


def test_fairness_is_shown_as_spread() -> None:
    """The table has the worst and best 10 %, the standard deviation, and Gini (here 0.286)."""
    _, rows = display_round(TWO_GROUPS, "accuracy", Goal.FAIRNESS)
    names = ("worst 10 %", "best 10 %", "standard deviation", "Gini")
    assert [rows[name] for name in names] == [["25.0%"], ["100.0%"], ["31.2%"], ["28.6%"]]


def test_participation_is_shown_as_rounds_per_client() -> None:
    """One of 4 clients never counted; the median is the lower of two values."""
    _, rows = display_round(TWO_GROUPS, "accuracy", Goal.PARTICIPATION, {0: 3, 1: 1, 2: 1})
    assert rows["clients whose updates counted"] == ["3 of 4"]
    cells = [
        rows[f"rounds of the {which} client"] for which in ("rarest", "median", "most frequent")
    ]
    assert cells == [["0 of 1"], ["1 of 1"], ["3 of 1"]]


def test_the_table_summarizes_all_rounds() -> None:
    """It has means over the rounds, sums, and the last loss and test metrics."""
    evaluated = make_record(1, [make_evaluation(0, 1.0, 0.25)])
    first = replace(evaluated, admitted=3, duration_seconds=1.0, theta=0.25, bytes_up=10**6)
    second = replace(
        first, admitted=0, duration_seconds=2.0, theta=0.75, global_loss=0.5, state_bytes=10**6
    )
    third = replace(
        second, theta=None, global_loss=NAN, test=None, duration_seconds=6.0, bytes_down=10**6
    )
    totals = reduce(RunTotals.add_round, (first, second, third), RunTotals())
    text = StringIO()
    spec = DisplaySpec("accuracy", Goal.PRIORITY)
    Console(file=text, width=120).print(build_final_table(totals, "title", spec))
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


def test_the_line_of_a_round_leaves_out_missing_values() -> None:
    """A missing value is NaN in memory and null in a file."""
    complete = vars(make_record(1, [make_evaluation(0, 1.0, 0.875)]))
    assert (
        format_round(complete, PLAIN)
        == "loss 1.2500  test accuracy 87.5%  admitted 1 of 3 selected"
    )
    for missing in (NAN, None):
        incomplete = {**complete, "global_loss": missing, "test": None}
        assert format_round(incomplete, PLAIN) == "admitted 1 of 3 selected"
    undefined = {**complete, "test": {"priority": {"accuracy": None}}}
    line = format_round(undefined, PLAIN)
    assert line == "loss 1.2500  test accuracy -  admitted 1 of 3 selected"


def test_updates_are_shown_by_priority_for_that_goal() -> None:
    """In 2 rounds with 4 updates, one update is from client 2, which has no priority."""
    first = replace(make_record(1, TWO_GROUPS), admitted=3)
    totals = reduce(RunTotals.add_round, (first, replace(first, round=2, admitted=1)), RunTotals())
    spec = DisplaySpec("accuracy", Goal.PRIORITY, 3, frozenset({0, 1}))
    table = build_final_table(totals, "title", spec, admission_counts={0: 2, 1: 1, 2: 1})
    names, *groups = (list(column.cells) for column in table.columns)
    row = names.index("updates admitted per round")
    assert [group[row] for group in groups] == ["1.5", "0.5", "2.0"]


def draw_live_line(width: int, title: str = "FedALIGN on synth") -> str:
    """Return the last live line of a run on a terminal of this width."""
    out = StringIO()
    terminal = Console(file=out, width=width, force_terminal=True, color_system=None)
    with Display(terminal, 12345, title, PLAIN) as display:
        display.show(
            replace(make_record(12345, [make_evaluation(0, 1.0, 0.875)]), admitted=20, selected=20)
        )
    lines = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", out.getvalue()).splitlines()
    return [line.rpartition("\r")[2] for line in lines if "12345" in line][-1]


@pytest.mark.parametrize("width", [40, 60, 80, 100, 130, 200])
def test_the_live_line_is_one_line_with_the_round(width: int) -> None:
    """On a narrow terminal the bar and the title are dropped, then the numbers are truncated."""
    line = draw_live_line(width)
    assert len(line.rstrip()) <= width
    assert "12345/12345 0:00:00 loss 1.2500" in line
    assert ("FedALIGN on synth" in line) == (width >= 100)
    assert ("━" in line) == (width >= 130)
    assert line.rstrip().endswith("admitted 20 of 20 selected") == (width >= 80)


def test_a_dumb_terminal_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot rewrite its last line, so a live line would print one line for every change."""
    monkeypatch.setenv("TERM", "dumb")
    out = StringIO()
    terminal = Console(file=out, width=80, force_terminal=True)
    with Display(terminal, 3, "run", PLAIN) as display:
        for server_round in (1, 2, 3):
            display.show(make_record(server_round, []))
    state = format_round(vars(make_record(1, [])), PLAIN)
    assert out.getvalue().splitlines() == [f"run  round {t}/3  {state}" for t in (1, 3)]


@pytest.mark.parametrize(
    ("width", "dropped"),
    [(40, ""), (39, "third"), (27, "third"), (26, "second one, third"), (1, "second one, third")],
)
def test_a_narrow_table_loses_its_last_columns(width: int, dropped: str) -> None:
    """Their names are returned, and the remaining rows fit on one line each."""
    table = Table()
    for heading in ("first", "second\none", "third"):
        table.add_column(heading)
    table.add_row("a" * 10, "b" * 10, "c" * 10)
    out = StringIO()
    console = Console(file=out, width=width)
    assert fit_to_console(table, console, keep=1) == dropped
    assert len(table.columns) == 3 - (dropped.count(",") + 1 if dropped else 0)
    console.print(table)
    cells = [cell for column in table.columns for cell in column.cells]
    assert all(str(cell) in out.getvalue() for cell in cells) == (width > 1)


@pytest.mark.parametrize(
    ("seconds", "fraction", "expected"),
    [
        (60.0, 0.25, "0:03:00 left"),
        (3600.0, 1 / 49, "2 days, 0:00:00 left"),
        (5.0, 0.0, ""),
        (5.0, 1.0, ""),
    ],
)
def test_the_time_left_is_proportional(seconds: float, fraction: float, expected: str) -> None:
    """It follows from the time so far; it is empty if the fraction is 0 or 1."""
    assert format_time_left(seconds, fraction) == expected


def test_plain_lines_have_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run resumed after round 5 of 10 estimates it from its own rounds, without the first one.

    The first round sets up data and model, and may take as long as all others.
    """
    clock = iter((100.0, 108.0, 116.0, 124.0, 132.0))
    monkeypatch.setattr("server_app.runs.display.time.monotonic", lambda: next(clock))
    monkeypatch.setattr("server_app.runs.display.PLAIN_SECONDS", 5.0)
    out = StringIO()
    with Display(Console(file=out), 10, "run", PLAIN) as display:
        for server_round in (6, 7, 8, 9, 10):
            display.show(make_record(server_round, []))
    line = f"run  round {{}}/10  {format_round(vars(make_record(6, [])), PLAIN)}"
    assert out.getvalue().splitlines() == [
        line.format(6),
        f"{line.format(7)}  0:00:24 left",
        f"{line.format(8)}  0:00:16 left",
        f"{line.format(9)}  0:00:08 left",
        line.format(10),
    ]


def test_a_run_that_ends_by_its_clock_shows_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time left follows from the simulated seconds: the number of rounds is a bound."""
    clock = iter((100.0, 108.0, 116.0))
    monkeypatch.setattr("server_app.runs.display.time.monotonic", lambda: next(clock))
    monkeypatch.setattr("server_app.runs.display.PLAIN_SECONDS", 5.0)
    out, spec = StringIO(), replace(PLAIN, end_seconds=300.0)
    with Display(Console(file=out), 100_000, "run", spec) as display:
        for server_round, seconds in ((1, 50.0), (2, 150.0), (3, 299.0)):
            record = replace(make_record(server_round, []), simulated_seconds=seconds)
            display.show(record)
    state = format_round(vars(make_record(1, [])), PLAIN)
    assert out.getvalue().splitlines() == [
        f"run  round 1, 50/300 simulated s  {state}",
        # One round in 8 s; at 75 simulated seconds a round two more are missing.
        f"run  round 2, 150/300 simulated s  {state}  0:00:16 left",
        f"run  round 3, 299/300 simulated s  {state}  0:00:00 left",
    ]


def test_masks_leave_no_result_of_a_single_client() -> None:
    """The table says so once, in the place of the statistics over clients."""
    summed = {"loss": 0.5, "accuracy": 0.75, "evaluated": 3, "left_out": 0}
    record = replace(make_record(1, []), test={"all": summed})
    text = StringIO()
    spec = replace(PLAIN, goal=Goal.FAIRNESS, has_masks=True)
    table = build_final_table(RunTotals().add_round(record), "title", spec)
    Console(file=text, width=120).print(table)
    assert "75.0%" in text.getvalue()
    assert text.getvalue().count("not with masks") == 1
    assert "worst client" not in text.getvalue()
