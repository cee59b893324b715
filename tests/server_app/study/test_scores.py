"""Test what a study reads from the records of its runs."""

import math
from pathlib import Path

import numpy as np
import pytest

from server_app.study.result import SeedRun
from server_app.study.scores import (
    compute_changed_fractions,
    read_record_scores,
    read_seed_run,
)
from tests.builders_runs import read_rows, run_here


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run of three clients that predicts numbers."""
    folder = tmp_path_factory.mktemp("numbers")
    rng = np.random.default_rng(0)
    age = rng.normal(50, 10, 90)
    price = 3 * age + rng.normal(0, 5, 90)
    np.savez(folder / "x.npz", x_train=age[:, None].astype(np.float32), y_train=price)
    words = f"data=npz data.path={folder}/x.npz data.regression=true data.partition=iid"
    more = "data.num_clients=3 data.priority=[0] strategy=fedavg rounds=2 client.local_epochs=1"
    run_here(folder / "run", "experiment=custom", *words.split(), *more.split())
    return folder / "run"


@pytest.mark.parametrize("included", [None, {1, 2}])
@pytest.mark.parametrize("group", ["all", "priority"])
def test_r2_is_of_the_clients_of_the_score(
    run: Path, group: str, included: set[int] | None
) -> None:
    """Its mean is weighted as the metric's, over the clients that count."""
    if group == "priority" and included is not None:
        included = {0, 1}
    result = read_seed_run(run, run.parent, f"{group}.rmse", "rmse", "", included_clients=included)
    last = [row for row in read_rows(run, "evaluations") if row["round"] == 2]
    counted = {0} if group == "priority" else (included or {0, 1, 2})
    values = [row["test_r2"] for row in last if row["client"] in counted]
    assert len(values) == len(counted)
    assert not math.isnan(result.measures["r2"])
    assert result.measures["r2"] == pytest.approx(np.mean(values))  # equally many rows each


def make_seed_run(values: list[float]) -> SeedRun:
    """Return a run with these metrics of the clients."""
    return SeedRun(1, "", "", 0.0, {}, dict(enumerate(values)), (), 0.0, 0.0)


def test_clients_are_worse_off_within_a_seed() -> None:
    """By hand: 1 of 3 and 2 of 3 are worse by more than the margin, one each is better."""
    baseline = [make_seed_run([0.5, 0.5, 0.5]), make_seed_run([0.7, 0.7, 0.7])]
    method = [make_seed_run([0.4, 0.495, 0.6]), make_seed_run([0.8, 0.6, 0.6])]
    found = compute_changed_fractions(method, baseline, 1.0, 0.01)
    assert found == pytest.approx((0.5, 1 / 3))
    assert compute_changed_fractions(method, baseline, -1.0, 0.01) == found[::-1]
    assert math.isnan(compute_changed_fractions([], [], 1.0, 0.01)[0])


def test_the_clients_worse_off_do_not_vanish_with_more_seeds() -> None:
    """Where each seed divides the data anew, the share is that within a seed."""
    rng = np.random.default_rng(0)
    pairs = [rng.normal(0.8, 0.05, 50) for _ in range(100)]
    gains = [rng.normal(0.005, 0.02, 50) for _ in pairs]
    baseline = [make_seed_run(one.tolist()) for one in pairs]
    method = [make_seed_run((one + gain).tolist()) for one, gain in zip(pairs, gains, strict=True)]
    worse, _ = compute_changed_fractions(method, baseline, 1.0, 0.0)
    assert worse == pytest.approx(np.mean([(gain < 0).mean() for gain in gains]))
    assert worse > 0.35


@pytest.mark.parametrize(("score", "expected"), [("all.worst10", 0.1), ("held_out.accuracy", 0.3)])
def test_the_calibration_error_is_of_the_group_of_the_score(score: str, expected: float) -> None:
    """It is a number of a run beside its score."""
    numbers = {"accuracy": 0.5, "worst10": 0.2}
    record = {"test": {"all": {**numbers, "ece": 0.1}, "held_out": {**numbers, "ece": 0.3}}}
    _, measures = read_record_scores(record, score, "accuracy")
    assert measures["ece"] == expected
