"""Tests of the score of guessing, against scikit-learn's dummies and by hand."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from client_app.data import FederatedData, load_data
from client_app.data.base import Targets
from client_app.data.partitioned import PartitionedData
from client_app.evaluation.row_terms import weigh_rows
from conf.compose import compose_overrides
from server_app.runs.job import run_overrides
from server_app.study.guessing import can_guess, guess_rows, score_guessing

SETTINGS = (
    *("experiment=fedalign/synth_low", "strategy=fedavg", "strategy.warmup_fraction=0", "rounds=1"),
    *("seed=3", "data.num_clients=6", "data.num_priority=6", "client.local_epochs=1"),
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run one round on generated clients."""
    directory = tmp_path_factory.mktemp("guess") / "run"
    run_overrides(SETTINGS, directory)
    return directory


@pytest.fixture(scope="module")
def data() -> FederatedData:
    """Load the data of that run."""
    return load_data(compose_overrides(SETTINGS).settings.data, 3)


def get_targets(data: FederatedData) -> tuple[NDArray[Any], list[Targets]]:
    """Return the training labels of all clients, and each client's test labels."""
    pairs = [data.get_targets(client) for client in range(data.num_clients)]
    return np.concatenate([train for train, _ in pairs]), [test for _, test in pairs]


def test_accuracy_is_that_of_the_most_frequent_class(run: Path, data: FederatedData) -> None:
    """Of all training rows, on each client's test rows; the worst tenth is the worst client."""
    train, test = get_targets(data)
    sizes = [len(data.get_targets(client)[0]) for client in range(data.num_clients)]
    frequent = np.bincount(train).argmax()
    accuracies = [float((labels == frequent).mean()) for labels in test]
    found = {
        score: score_guessing(run, data, score, "accuracy", 3)
        for score in ("all.worst10", "all.average", "all.accuracy")
    }
    assert found["all.worst10"] == pytest.approx(min(accuracies))
    assert found["all.average"] == pytest.approx(np.mean(accuracies))
    assert found["all.accuracy"] == pytest.approx(np.average(accuracies, weights=sizes))


def test_the_loss_is_that_of_the_frequencies(run: Path, data: FederatedData) -> None:
    """With one more row of each class."""
    train, test = get_targets(data)
    frequencies = np.bincount(train, minlength=10) + 1.0
    losses = -np.log(frequencies / frequencies.sum())
    expected = np.mean([losses[labels].mean() for labels in test])
    assert score_guessing(run, data, "all.average", "loss", 3) == pytest.approx(expected)


def test_auroc_has_random_orders_within_each_client(run: Path, data: FederatedData) -> None:
    """So the worst client's is below a half, and the mean near it; the same seed repeats it."""
    worst, mean = (
        score_guessing(run, data, score, "auroc", 3) for score in ("all.worst10", "all.average")
    )
    assert worst < 0.45 < mean < 0.55
    assert score_guessing(run, data, "all.worst10", "auroc", 3) == worst
    assert score_guessing(run, data, "all.worst10", "auroc", 4) != worst


def test_f1_is_that_of_a_constant_answer(run: Path, data: FederatedData) -> None:
    """One class has 2 n_k / (n + n_k), and every other class of the labels has 0."""
    train, test = get_targets(data)
    answer = np.bincount(train).argmax()
    expected = [
        2 * (y == answer).sum() / (len(y) + (y == answer).sum()) / len({answer, *y.tolist()})
        for y in test
    ]
    found = score_guessing(run, data, "all.average", "f1", 3)
    assert found == pytest.approx(np.mean(expected))


def test_a_loss_of_numbers_has_no_guess(data: FederatedData) -> None:
    """Its unit is that of the model's scaled numbers."""
    assert can_guess(data, "loss")


def test_numbers_are_guessed_by_their_mean(tmp_path: Path) -> None:
    """R2 of the mean of all training rows is 0 or less, and its RMSE is in the target's unit."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=80)
    rows = [f"{'AB'[n % 2]},{value:.4f},{1000 + 100 * value:.2f}" for n, value in enumerate(x)]
    (tmp_path / "t.csv").write_text("\n".join(["site,x,price", *rows]) + "\n")
    overrides = (
        *("experiment=custom", "strategy=fedavg", "data=csv", f"data.path={tmp_path / 't.csv'}"),
        *("data.client_column=site", "data.target=price", "data.regression=true", "rounds=1"),
    )
    run_overrides(overrides, tmp_path / "run")
    settings = compose_overrides(overrides).settings
    numbers = load_data(settings.data, settings.seed)
    assert not can_guess(numbers, "loss")
    rmse = score_guessing(tmp_path / "run", numbers, "all.average", "rmse", settings.seed)
    assert 50 < rmse < 200
    assert isinstance(numbers, PartitionedData)
    by_row = guess_rows(numbers, [0, 1], "rmse")
    found = [weigh_rows(terms, np.ones((1, len(terms))), "rmse")[0] for terms in by_row.values()]
    assert np.mean(found) == pytest.approx(rmse)
    r2 = score_guessing(tmp_path / "run", numbers, "all.average", "r2", settings.seed)
    assert -0.5 < r2 <= 0
