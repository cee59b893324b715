"""Scores on other test rows, by weights of the rows that all seeds test."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fedquorum.rules.types import FloatArray
from numpy.typing import NDArray
from safetensors.numpy import load_file

from client_app.data import load_data
from client_app.data.partitioned import PartitionedData
from conf.schema.data import NpzSettings
from server_app.cli.study import start_study
from server_app.study.candidates import MethodComparison, build_comparison
from server_app.study.paired_statistics import GUESSING, NUM_WEIGHT_SETS
from server_app.study.row_weights import draw_row_weights, resample_scores
from server_app.study.scores import read_seed_run
from server_app.study.settings import StudySettings
from tests.server_app.study.test_run import read_result

CLIENTS, TRAIN, TEST, FEATURES, SEEDS = 4, 120, 60, 3, 5
METHODS = ("fedavg", "fedavg client.lr=0.02")

FIXED = (
    *("data=npz", f"data.num_clients={CLIENTS}", "data.partition=iid", "data.num_priority=1"),
    *("model=logistic_regression", "client.lr=0.5", "rounds=1", "data.validation_fraction=0.2"),
)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write rows with a separate test set, which each seed divides among the clients."""
    path = tmp_path_factory.mktemp("data") / "rows.npz"
    rng = np.random.default_rng(0)
    x = rng.normal(size=(TRAIN + TEST, FEATURES)).astype(np.float32)
    y = (x.sum(axis=1) + rng.normal(size=len(x)) > 0.3).astype(np.int64)
    np.savez(path, x_train=x[:TRAIN], y_train=y[:TRAIN], x_test=x[TRAIN:], y_test=y[TRAIN:])
    return path


@pytest.fixture(scope="module")
def study(rows: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a study of two methods over five seeds."""
    output = tmp_path_factory.mktemp("study") / "here"
    words = ("goal=average", f"methods=['{METHODS[1]}']", "trials=0", "personal=false")
    budget = f"budget={len(METHODS) * SEEDS + 1}runs"
    return start_study((*FIXED, f"data.path={rows}", *words, budget, f"output={output}"))


def read_comparison(study: Path, rows: Path, score: str, *others: str) -> MethodComparison:
    """Return the study's methods with their runs, compared by this score."""
    settings = StudySettings("average", "1h", [METHODS[1]], trials=0, metric_key=score)
    words = ("experiment=custom", *FIXED, f"data.path={rows}", *others)
    comparison = build_comparison(words, settings)
    for candidate, method in zip(comparison.candidates, read_result(study)["results"], strict=True):
        candidate.runs.extend(
            read_seed_run(study / run["folder"], study, score, comparison.metric, "")
            for run in method["runs"]
        )
    return comparison


def load_rows(rows: Path, seed: int) -> tuple[PartitionedData, dict[str, NDArray[Any]]]:
    settings = NpzSettings(
        path=str(rows),
        num_clients=CLIENTS,
        partition="iid",
        num_priority=1,
        validation_fraction=0.2,
    )
    data = load_data(settings, seed)
    assert isinstance(data, PartitionedData)
    return data, dict(np.load(rows))


def compute_resampled(study: Path, rows: Path, method: int, score: str) -> FloatArray:
    """Compute a method's score with each set of weights in NumPy, mean over seeds."""
    by_seed = []
    for run in read_result(study)["results"][method]["runs"]:
        data, arrays = load_rows(rows, run["seed"])
        weight, bias = load_file(study / run["folder"] / "model.safetensors").values()
        if weight.ndim == 1:
            weight, bias = bias, weight
        predicted = (arrays["x_test"] @ weight.T + bias).argmax(axis=1)
        correct = (predicted == arrays["y_test"]).astype(float)
        by_seed.append(weigh_clients(data, correct, score))
    mean: FloatArray = np.mean(by_seed, axis=0)
    return mean


def weigh_clients(data: PartitionedData, correct: FloatArray, score: str) -> FloatArray:
    """Return the score (B,) of a model that is right on these rows of the test set."""
    weights = draw_row_weights(TEST).astype(float)
    (_, train), _, (_, test) = data.list_targets()
    accuracies = np.stack(
        [correct[r] @ weights[r] / weights[r].sum(axis=0) for r in test.values()], axis=1
    )
    found: FloatArray = (
        accuracies.min(axis=1)  # of four clients, a tenth is one
        if score == "all.worst10"
        else accuracies @ train.counts / train.counts.sum()
    )
    return found


@pytest.mark.slow
@pytest.mark.parametrize("score", ["all.accuracy", "all.worst10"])
def test_scores_with_weights_are_those_of_numpy(study: Path, rows: Path, score: str) -> None:
    """Of the last models, for each set, with weights that follow rows from client to client."""
    comparison = read_comparison(study, rows, score)
    found = resample_scores(comparison, study, has_guessing=True)
    assert found.problem == ""
    assert list(found.scores) == ["fedavg", GUESSING, METHODS[1]]
    for number, method in enumerate(METHODS):
        expected = compute_resampled(study, rows, number, score)
        assert expected.std() > 0.005
        np.testing.assert_allclose(found.scores[method], expected, atol=1e-12)
    guessed = []
    for run in comparison.baseline.runs:
        data, arrays = load_rows(rows, run.seed)
        (y_train, train), _, _ = data.list_targets()
        most_frequent = np.bincount(y_train[train.flat]).argmax()
        correct = (arrays["y_test"] == most_frequent).astype(float)
        guessed.append(weigh_clients(data, correct, score))
    np.testing.assert_allclose(found.scores[GUESSING], np.mean(guessed, axis=0), atol=1e-12)


@pytest.mark.slow
def test_a_study_with_a_test_set_claims_something_about_new_rows(study: Path, rows: Path) -> None:
    """Its interval has the variance of the rows, computed in NumPy and SciPy."""
    from scipy import stats

    result = read_result(study)
    assert result["row_weights"] == NUM_WEIGHT_SETS
    assert not result["seed_draws"]["test_rows"]
    assert result["seed_draws"]["division"]
    scores = [np.array([run["score"] for run in one["runs"]]) for one in result["results"]]
    difference = scores[1] - scores[0]
    resampled = [compute_resampled(study, rows, number, "all.accuracy") for number in (0, 1)]
    of_seeds, of_rows = difference.var(ddof=1) / SEEDS, np.var(resampled[1] - resampled[0], ddof=1)
    freedom = (of_seeds + of_rows) ** 2 / (
        of_seeds**2 / (SEEDS - 1) + of_rows**2 / (NUM_WEIGHT_SETS - 1)
    )
    tail = (1 - result["confidence"]) / 2
    half = stats.t.isf(tail, freedom) * np.sqrt(of_seeds + of_rows)
    half = max(half, stats.t.isf(tail, SEEDS - 1) * np.sqrt(of_seeds))
    (found,) = result["comparisons"]
    assert found["high"] - found["low"] == pytest.approx(2 * half)
    assert found["row_variance"] == pytest.approx(of_rows)
    page = (study / "study.html").read_text()
    assert "with the variance of the test rows, which all seeds share" in page
    assert "on new rows of these clients" in page
    assert "on these test rows" not in page


@pytest.mark.slow
def test_why_new_rows_are_unknown(study: Path, rows: Path) -> None:
    """Metrics of a ranking, personal models, and runs of other models."""
    comparison = read_comparison(study, rows, "all.accuracy")

    def explain(**changes: Any) -> str:
        found = resample_scores(replace(comparison, **changes), study, has_guessing=False)
        assert not found.scores
        return found.problem

    assert explain(metric="auroc") == "auroc is no mean over rows"
    assert explain(score="finetuned.accuracy") == "runs keep no personal models"
    run = comparison.baseline.runs[0]
    model = study / run.folder / "model.safetensors"
    content = model.read_bytes()
    other = study / comparison.candidates[1].runs[1].folder / "model.safetensors"
    model.write_bytes(other.read_bytes())
    try:
        assert explain() == (
            f"the records lack the models that the clients of run {run.folder} tested"
        )
    finally:
        model.write_bytes(content)


def test_a_row_keeps_its_weights_whatever_else_there_is() -> None:
    """So they are the same for all methods and seeds, and of a Poisson distribution."""
    many = draw_row_weights(25_000)
    assert many.shape == (25_000, NUM_WEIGHT_SETS)
    assert np.array_equal(draw_row_weights(11_000), many[:11_000])
    assert many.mean() == pytest.approx(1.0, abs=0.005)
    assert many.var() == pytest.approx(1.0, abs=0.01)
    assert abs(np.corrcoef(many[:-1].ravel(), many[1:].ravel())[0, 1]) < 0.005
