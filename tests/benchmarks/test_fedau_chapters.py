"""Tests of FedAU's chapters: the order of rows, and the pairs of differences."""

from functools import cache

import pytest

from benchmarks.book import cutoff
from benchmarks.book.fedau import build_fedau_tables
from benchmarks.book.results import SeedStatistic
from benchmarks.book.runs_log import LoggedRun
from client_app.data import load_data
from conf import compose_settings


def make_run(strategy: str, seed: int, accuracy: float, **settings: str) -> LoggedRun:
    """Make a logged run of 20 rounds under Bernoulli participation."""
    composed = {"experiment": "fedau/fmnist", "strategy": strategy, "seed": str(seed)} | settings
    numbers = {
        "process": "bernoulli",
        "cutoff": settings.get("strategy.cutoff"),
        "test": dict.fromkeys(map(str, range(1, 21)), accuracy),
        "training": accuracy,
        "weight_error": 0.1,
        "state_bytes": 8000,
    }
    overrides = tuple(f"{key}={value}" for key, value in composed.items())
    return LoggedRun(overrides, strategy, seed, 20, "2026-01-02T00:00", "abc1234", 1.0, {}, numbers)


def make_fedau_run(cutoff: str, seed: int, accuracy: float) -> LoggedRun:
    return make_run("fedau", seed, accuracy, **{"strategy.cutoff": cutoff})


def test_rows_are_sorted_by_cutoff() -> None:
    """FedAU's rows come first, in numeric order with inf last."""
    runs = [make_fedau_run(cutoff, 1, 0.5) for cutoff in ("10", "inf", "1000", "2")]
    tables = build_fedau_tables([make_run("average_all", 1, 0.5), *runs])
    assert [row[0] for row in tables["test"].rows] == [
        "fedau, K = 2",
        "fedau, K = 10",
        "fedau, K = 1000",
        "fedau, K = inf",
        "average_all",
    ]


def test_cutoffs_are_compared_with_both_ends_seed_by_seed() -> None:
    """K = 10 is compared with K = 1, K = inf and the other method; K = inf with the latter only."""
    runs = [
        *(make_fedau_run("1", 1, 0.1), make_fedau_run("1", 2, 0.1)),
        *(make_fedau_run("10", 1, 0.5), make_fedau_run("10", 2, 0.7)),
        *(make_fedau_run("inf", 1, 0.4), make_fedau_run("inf", 2, 0.8)),
        *(make_run("average_all", 1, 0.3), make_run("average_all", 2, 0.3)),
    ]
    rows = {row[0]: row[1] for row in build_fedau_tables(runs)["differences"].rows}
    means = {
        name: (round(cell.mean, 9), cell.above)
        for name, cell in rows.items()
        if isinstance(cell, SeedStatistic)
    }
    assert means == {
        "fedau, K = 1 - average_all": (-20, 0),
        "fedau, K = 1 - fedau, K = inf": (-50, 0),
        "fedau, K = 10 - average_all": (30, 2),
        "fedau, K = 10 - fedau, K = 1": (50, 2),
        "fedau, K = 10 - fedau, K = inf": (0, 1),
        "fedau, K = inf - average_all": (30, 2),
    }


def test_differences_need_equal_participation() -> None:
    runs = [
        make_run("fedau", 1, 0.5, **{"strategy.cutoff": cutoff, "availability.minimum": minimum})
        for cutoff in ("10", "inf")
        for minimum in ("0.02", "0.2")
    ]
    other = make_run("average_all", 1, 0.3, **{"availability.minimum": "0.2"})
    assert {row[0] for row in build_fedau_tables([*runs, other])["differences"].rows} == {
        "fedau, K = 10, p_min = 0.02 - fedau, K = inf, p_min = 0.02",
        "fedau, K = 10, p_min = 0.2 - fedau, K = inf, p_min = 0.2",
        "fedau, K = 10, p_min = 0.2 - average_all, p_min = 0.2",
        "fedau, K = inf, p_min = 0.2 - average_all, p_min = 0.2",
    }


def test_cutoffs_with_different_rates_are_not_compared() -> None:
    """Cutoffs need equal learning rates; other methods may have different ones."""
    cutoff = {"strategy.cutoff": "10", "client.lr": "0.1"}
    runs = [
        make_fedau_run("inf", 1, 0.4),
        make_run("fedau", 1, 0.5, **cutoff),
        make_run("average_all", 1, 0.3),
    ]
    assert {row[0] for row in build_fedau_tables(runs)["differences"].rows} == {
        "fedau, K = 10, lr = 0.1 - average_all",
        "fedau, K = inf - average_all",
    }


@pytest.mark.slow
def test_weight_errors_are_compared_with_no_cutoff_seed_by_seed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The mean difference equals the difference of means; K = inf is always included.

    The rates come from the labels of 20 clients with synthetic data; the quick book has the
    chapter's own.
    """
    data = compose_settings("fedalign/synth_low").settings.data
    monkeypatch.setattr(cutoff, "load_data", lambda _, seed: load_data(data, seed))
    monkeypatch.setattr(cutoff, "get_probabilities", cache(cutoff.get_probabilities.__wrapped__))
    tables = cutoff.build_cutoff_tables((1, 2), (30, 60), (1,))
    means = {
        row[0]: [cell.mean for cell in row[1:3] if isinstance(cell, SeedStatistic)]
        for row in tables["weight_error"].rows
    }
    (name, *gaps), *_ = tables["over_none"].rows
    assert name == "1 - inf"
    statistics = [gap for gap in gaps if isinstance(gap, SeedStatistic)]
    expected = [a - b for a, b in zip(means["1"], means["inf"], strict=True)]
    assert [gap.mean for gap in statistics] == pytest.approx(expected, abs=1e-5)
    assert [gap.seeds for gap in statistics] == [2, 2]
