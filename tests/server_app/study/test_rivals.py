"""Test the comparison of methods with models of each client's own."""

import csv
import json
import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from scipy.special import stdtrit

from conf.compose import compose_overrides
from server_app.cli.study import start_study
from server_app.study import rivals
from server_app.study.candidates import Candidate, MethodComparison
from server_app.study.methods import StudyMethod
from server_app.study.paired_statistics import decide_best_method
from server_app.study.result import SeedRun
from server_app.study.rivals import (
    build_rival_overrides,
    can_have_rivals,
    compare_rivals,
    describe_epochs,
)
from tests.builders_study import make_curve, seed_run

CLIENTS, ROWS = 6, 240
COMMON = (
    *("data=csv", "data.client_column=site", "data.target=ill", "rounds=3"),
    *("model=logistic_regression", "client.lr=1.0", "client.local_epochs=4"),
    *("goal=fairness", "methods=[qfedavg]", "trials=0", "budget=11runs"),
)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write clients of which half have the other half's labels exchanged."""
    path = tmp_path_factory.mktemp("data") / "sites.csv"
    rng = np.random.default_rng(0)
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["site", "a", "b", "ill"])
        for site in range(CLIENTS):
            for x in rng.normal(size=(ROWS, 2)).round(3).tolist():
                rows.writerow([site, *x, int((x[0] > 0) ^ (site % 2))])
    return path


def run_study(folder: Path, table: Path, *overrides: str) -> dict[str, Any]:
    """Run a study and return ``study.json``."""
    start_study((*COMMON, f"data.path={table}", *overrides, f"output={folder}"))
    result: dict[str, Any] = json.loads((folder / "study.json").read_text())
    return result


@pytest.fixture(scope="module")
def study(table: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Return a study in which no common model can be right for all clients."""
    folder = tmp_path_factory.mktemp("study") / "study"
    return folder, run_study(folder, table)


@pytest.mark.slow
def test_clients_that_contradict_each_other_need_models_of_their_own(
    study: tuple[Path, dict[str, Any]],
) -> None:
    """The rivals beat every method, and the page's verdict says so."""
    folder, result = study
    assert set(result["rivals"]["beats_all"]) == {"alone", "fine-tuned"}
    assert [one["name"] for one in result["rivals"]["methods"]] == ["alone", "fine-tuned"]
    assert result["methods"] == ["fedavg", "qfedavg"]
    page = (folder / "study.html").read_text()
    assert "But personal models beat every method" in page
    assert "fine-tuned" in page


@pytest.mark.slow
def test_scores_are_those_of_the_baselines_runs(study: tuple[Path, dict[str, Any]]) -> None:
    """The worst tenth of six clients is the worst one; a seed's clients are those of its run."""
    folder, result = study
    baseline, other = result["results"]
    for name, column in (("alone", "alone"), ("fine-tuned", "finetuned")):
        rival = next(one for one in result["rivals"]["methods"] if one["name"] == name)
        for run, of_baseline in zip(rival["runs"], baseline["runs"], strict=True):
            assert (run["seed"], run["folder"]) == (of_baseline["seed"], of_baseline["folder"])
            rows = pq.read_table(folder / run["folder"] / "evaluations").to_pylist()
            last = [row for row in rows if row["round"] == 3]
            accuracies = {row["client"]: row[f"{column}_test_accuracy"] for row in last}
            assert run["score"] == min(accuracies.values())
            assert {int(k): value for k, value in run["clients"].items()} == accuracies
            assert run["measures"]["epochs"] == last[0][f"{column}_epochs"]
    for run in other["runs"]:
        assert (
            "alone_epochs" not in pq.read_table(folder / run["folder"] / "evaluations").schema.names
        )


@pytest.mark.slow
def test_the_methods_and_the_budget_are_those_without_rivals(
    study: tuple[Path, dict[str, Any]], table: Path, tmp_path: Path
) -> None:
    """Rivals widen no interval, cost no run, and change no number of a method but its seconds."""
    _, result = study
    plain = run_study(tmp_path / "plain", table, "personal=false")
    assert plain["rivals"] is None
    for key in ("comparisons", "seeds", "verdict", "spent"):
        assert plain[key] == result[key], key
    for one, other in zip(plain["results"], result["results"], strict=True):
        for run, with_rivals in zip(one["runs"], other["runs"], strict=True):
            for key in ("score", "clients", "curve"):
                assert run[key] == with_rivals[key]
            assert run["measures"].items() <= with_rivals["measures"].items()
            assert run["megabytes"] == pytest.approx(with_rivals["megabytes"], rel=0.01)


def make_candidate(name: str, scores: Sequence[float]) -> Candidate:
    runs = [
        seed_run(seed, np.full(4, score), score, make_curve(score, 0.1), "accuracy")
        for seed, score in enumerate(scores, 1)
    ]
    tuning: Any = None
    return Candidate(StudyMethod(name, (), ""), (), SETTINGS, tuning, runs)


SETTINGS = compose_overrides(("data=synth", "rounds=20", "client.local_epochs=2")).settings
SEEDS = (0.0, 0.02, -0.01, 0.03, 0.01, 0.0)
DECIDE = partial(decide_best_method, min_effect=0.01, confidence=0.95)


def compare(
    monkeypatch: pytest.MonkeyPatch,
    methods: Mapping[str, float],
    alone: Sequence[float],
    finetuned: Sequence[float],
) -> Any:
    """Compare methods, by their scores beside the seeds', with rivals of these scores."""
    candidates = tuple(
        make_candidate(name, [score + seed for seed in SEEDS]) for name, score in methods.items()
    )
    scores = {"alone": alone, "finetuned": finetuned}

    def read(_: Any, __: Any, run: SeedRun, model: str) -> SeedRun:
        score = scores[model][run.seed - 1]
        return seed_run(run.seed, np.full(4, score), score, (), "accuracy")

    monkeypatch.setattr(rivals, "_read_rival_run", read)
    comparison = MethodComparison(candidates, {}, "accuracy", "all.accuracy")
    found, _ = compare_rivals(comparison, Path(), DECIDE, has_seeds=True)
    return found


def test_each_rival_has_half_of_the_level(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interval is Student's with a quarter of 5 % beyond each end."""
    noise = np.array([0.03, -0.02, 0.05, 0.01, 0.02, 0.04])
    alone = (0.7 + np.array(SEEDS) + noise).tolist()
    found = compare(monkeypatch, {"fedavg": 0.7, "term": 0.7}, alone, [0.5] * 6)
    one = next(d for d in found.decision.differences if d.method == "alone")
    half = stdtrit(5, 1 - 0.05 / 4) * noise.std(ddof=1) / math.sqrt(6)
    assert (one.low, one.high) == pytest.approx((noise.mean() - half, noise.mean() + half))


def test_a_rival_must_beat_every_method(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that beats the baseline alone is not named."""
    alone = [0.85 + seed + extra for seed, extra in zip(SEEDS, (0.0, 0.01) * 3, strict=True)]
    low = [0.2 + extra for extra in (0.0, 0.01) * 3]
    assert compare(monkeypatch, {"fedavg": 0.7, "term": 0.8}, alone, low).beats_all == ("alone",)
    assert compare(monkeypatch, {"fedavg": 0.7, "term": 0.9}, alone, low).beats_all == ()


def test_the_epochs_to_try() -> None:
    """A whole run has rounds times local epochs; what the user set stays."""
    assert build_rival_overrides(SETTINGS) == (
        "evaluation.finetune_epochs=[0,1,3,10]",
        "evaluation.alone_epochs=[2,10,40]",
    )
    own = compose_overrides(
        ("data=synth", "rounds=2", "client.local_steps=5", "evaluation.alone_epochs=7")
    ).settings
    assert build_rival_overrides(own) == ("evaluation.finetune_epochs=[0,1]",)


@pytest.mark.parametrize(
    ("score", "expected"),
    [("all.worst10", True), ("held_out.accuracy", False), ("finetuned.accuracy", False)],
)
def test_where_there_is_no_rival(score: str, expected: bool) -> None:
    """Held-out clients train nothing, and fine-tuned models have no further rival."""
    settings = compose_overrides(("data=synth", "strategy=fedavg")).settings
    tuning: Any = None
    baseline = Candidate(StudyMethod("fedavg", (), ""), (), settings, tuning)
    assert can_have_rivals(MethodComparison((baseline,), {}, "accuracy", score)) is expected


def test_the_epochs_that_runs_chose() -> None:
    """One number, or the range over seeds."""
    runs = [seed_run(1, np.ones(2), 1.0, (), "accuracy") for _ in range(2)]
    for epochs, text in (((3, 3), "epochs=3"), ((10, 1), "epochs=1 to 10")):
        for run, number in zip(runs, epochs, strict=True):
            assert isinstance(run.measures, dict)
            run.measures["epochs"] = number
        assert describe_epochs(runs) == text
