"""Tests of the smallest change of a score that one test row can cause, by hand."""

import math
from pathlib import Path

import numpy as np
import pytest
from fedquorum.audit.replay import read_audit_input
from fedquorum.rules.decisions import ClientEvaluation

from client_app.data import load_data
from conf.compose import compose_overrides
from server_app.runs.job import run_overrides
from server_app.study.score_steps import compute_score_step

SETTINGS = (
    *("experiment=fedalign/synth_low", "strategy=fedavg", "strategy.warmup_fraction=0", "rounds=1"),
    *("seed=3", "data.num_clients=6", "data.num_priority=6", "client.local_epochs=1"),
)


def make_run(folder: Path, *settings: str) -> tuple[Path, list[ClientEvaluation]]:
    """Run one round on generated clients; return its folder and evaluations."""
    run_overrides((*SETTINGS, *settings), folder)
    return folder, [*read_audit_input(folder).get_evaluations(1)]


def test_a_row_of_an_accuracy(tmp_path: Path) -> None:
    """It changes a client's accuracy by 1 / n, and a score by that times the client's weight."""
    folder, clients = make_run(tmp_path / "run")
    rows = np.array([one.test_num_examples for one in clients])
    weights = np.array([one.num_examples for one in clients])
    found = {
        score: compute_score_step(folder, f"all.{score}", "accuracy")
        for score in ("average", "accuracy", "worst10")
    }
    worst = min(clients, key=lambda one: one.test_accuracy)
    assert found["average"] == pytest.approx(1 / (6 * rows.max()))
    assert found["accuracy"] == pytest.approx((weights / weights.sum() / rows).min())
    assert found["worst10"] == pytest.approx(1 / worst.test_num_examples)
    assert compute_score_step(folder, "all.average", "loss") == 0.0


def test_a_pair_of_rows_of_an_auroc(tmp_path: Path) -> None:
    """The AUROC is the mean over the classes; on devices their counts are unknown."""
    settings = ("evaluation.metric=auroc",)
    folder, clients = make_run(tmp_path / "run", *settings)
    data = load_data(compose_overrides((*SETTINGS, *settings)).settings.data, 3)
    steps = []
    for one in clients:
        _, counts = np.unique(data.get_targets(one.client)[1], return_counts=True)
        if len(counts) > 1:
            classes = 1 if len(counts) == 2 else len(counts)
            steps.append(1 / (classes * max(counts * (counts.sum() - counts))))
    defined = sum(not math.isnan(one.test_metric) for one in clients)
    assert len(steps) == defined > 2
    step = compute_score_step(folder, "all.average", "auroc", data)
    assert step == pytest.approx(min(steps) / defined)
    assert compute_score_step(folder, "all.average", "auroc") == 0.0


def test_two_classes_have_the_same_pairs(tmp_path: Path) -> None:
    """One pair in another order changes the AUROC of both classes by 1 / (n_0 n_1)."""
    rng = np.random.default_rng(0)
    lines = ["site,x,ill", *(f"{i % 3},{rng.normal():.3f},{int(i % 4 == 0)}" for i in range(90))]
    (tmp_path / "table.csv").write_text("\n".join(lines))
    settings = (
        *("data=csv", f"data.path={tmp_path / 'table.csv'}", "data.client_column=site"),
        *("data.target=ill", "rounds=1", "evaluation.metric=auroc", "seed=3"),
    )
    run_overrides(settings, tmp_path / "run")
    data = load_data(compose_overrides(settings).settings.data, 3)
    most = max(
        int((labels == 0).sum() * (labels == 1).sum())
        for labels in (data.get_targets(k)[1] for k in range(3))
    )
    step = compute_score_step(tmp_path / "run", "all.average", "auroc", data)
    assert step == pytest.approx(1 / (3 * most))


def test_a_sample_of_many_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Evenly spaced by their metric, the worst client included."""
    folder, clients = make_run(tmp_path / "run")
    monkeypatch.setattr("server_app.study.score_steps.MAX_CLIENTS", 2)
    worst = min(clients, key=lambda one: one.test_accuracy)
    step = compute_score_step(folder, "all.worst10", "accuracy")
    assert step == pytest.approx(1 / worst.test_num_examples)
