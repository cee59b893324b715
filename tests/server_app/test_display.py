"""What a person sees of a run."""

import math
from io import StringIO

import pytest
from rich.console import Console

from server_app.display import describe, final_table
from server_app.records import round_record
from strategies.report import ClientEvaluation
from tests.server_app.test_records import report

NAN = math.nan


def shown(evaluations: list[ClientEvaluation], metric: str) -> tuple[str, dict[str, list[str]]]:
    """Return the words of a round, and the cells of the final table by the name of their row."""
    record = round_record(
        report(1),
        evaluations,
        bytes_down=0,
        bytes_up=0,
        seconds=0.0,
        state_bytes=0,
        rates=None,
        metric=metric,
        all_evaluated=True,
    )
    text = StringIO()
    Console(file=text, width=120).print(final_table([record], "title", metric))
    lines = [line.split("│") for line in text.getvalue().splitlines() if "│" in line]
    rows = {cells[1].strip(): [cell.strip() for cell in cells[2:5]] for cells in lines}
    return describe(record), rows


def client(k: int, loss: float, accuracy: float, metric: float = NAN) -> ClientEvaluation:
    return ClientEvaluation(k, 1.0, 10, 1.0, 0.5, 4, loss, accuracy, metric)


@pytest.mark.parametrize(
    ("metric", "mean", "worst", "best"),
    [
        ("accuracy", "50.0%", "25.0%", "75.0%"),
        ("auroc", "70.0%", "60.0%", "80.0%"),
        ("loss", "1.5000", "2.0000", "1.0000"),
    ],
)
def test_the_table_is_of_the_metric(metric: str, mean: str, worst: str, best: str) -> None:
    """Its rows name the metric that their numbers are of; a loss is no share."""
    words, rows = shown([client(0, 1.0, 0.25, 0.6), client(1, 2.0, 0.75, 0.8)], metric)
    assert "test 50.0%" in words
    assert rows[f"test {metric} (by data)"] == [mean, "-", mean]
    assert rows["worst client"] == [worst, "-", worst]
    assert rows["best client"] == [best, "-", best]


def test_what_is_not_defined_is_a_dash() -> None:
    """Accuracy of numbers, and a metric that no client has, are shown as missing."""
    words, rows = shown([client(0, 1.0, NAN)], "loss")
    assert "test -" in words
    assert rows["test loss (by data)"][0] == "1.0000"
    _, rows = shown([client(0, 1.0, 0.5, NAN)], "auroc")
    assert rows["test auroc (by data)"] == rows["average over clients"] == ["-", "-", "-"]
