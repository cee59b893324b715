"""Tests of the chapter that compares common models with models of each client's own."""

import pytest
from fedquorum.rules.decisions import ALONE, FINETUNED

from benchmarks.book.personal import build_personal_tables
from benchmarks.book.results import SeedStatistic
from benchmarks.book.runs_log import LoggedRun


def make_run(strategy: str, seed: int, experiment: str, *worst: float) -> LoggedRun:
    """Make a logged run whose worst tenths are those of the common, fine-tuned and own models."""
    numbers = {
        group: {"average": 0.9, "worst10": value, "gini": 0.1}
        for group, value in zip(("all", FINETUNED, ALONE), worst, strict=True)
    }
    overrides = (f"experiment={experiment}", f"strategy={strategy}", f"seed={seed}")
    return LoggedRun(overrides, strategy, seed, 5, "2026-01-02T00:00", "abc1234", 1.0, {}, numbers)


def test_rows_are_methods_with_and_without_fine_tuning() -> None:
    """FedAvg is first, its clients also train alone, and a column is a data set."""
    runs = [
        make_run("qfedavg", 1, "aaggff/heart", 0.5, 0.6, 0.7),
        make_run("fedavg", 1, "aaggff/heart", 0.4, 0.8, 0.75),
        make_run("fedavg", 2, "aaggff/heart", 0.4, 0.7, 0.75),
        make_run("fedavg", 1, "aaggff/berka", 0.3, 0.3, 0.2),
    ]
    tables = build_personal_tables(runs)
    worst = tables["worst10"]
    assert worst.headings[1:] == ("Berka, AUROC", "heart, AUROC")
    rows = {str(row[0]): row[1:] for row in worst.rows}
    assert [*rows] == ["fedavg", "fedavg, fine-tuned", "alone", "qfedavg", "qfedavg, fine-tuned"]
    heart = rows["fedavg, fine-tuned"][1]
    assert isinstance(heart, SeedStatistic)
    assert heart.mean == pytest.approx(75)
    assert rows["qfedavg"][0] is None


def test_differences_are_paired_with_fedavgs_model() -> None:
    """Over the seeds that both have, in points."""
    runs = [
        make_run("fedavg", 1, "aaggff/heart", 0.4, 0.5, 0.3),
        make_run("fedavg", 2, "aaggff/heart", 0.5, 0.7, 0.3),
        make_run("qfedavg", 2, "aaggff/heart", 0.6, 0.6, 0.3),
    ]
    rows = {str(row[0]): row[1] for row in build_personal_tables(runs)["worst10_differences"].rows}
    assert "fedavg" not in rows
    tuned, other = rows["fedavg, fine-tuned"], rows["qfedavg"]
    assert isinstance(tuned, SeedStatistic)
    assert isinstance(other, SeedStatistic)
    assert tuned.mean == pytest.approx(15)
    assert (tuned.above, tuned.seeds) == (2, 2)
    assert other.mean == pytest.approx(10)
    assert (other.above, other.seeds) == (1, 1)
