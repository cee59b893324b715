"""Tests of FedALIGN's chapters: tables of logged runs, and the claims about them."""

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fedquorum.records.reader import load_run

from benchmarks.book.alone import build_alone_tables, collect_alone_numbers, train_alone
from benchmarks.book.bound import build_bound_tables, collect_bound_numbers
from benchmarks.book.chapters import CHAPTERS, SweepChapter
from benchmarks.book.claims_data import CLAIMS
from benchmarks.book.fedalign import (
    build_fedalign_tables,
    build_one_client_tables,
    build_synth_tables,
    collect_fedalign_numbers,
)
from benchmarks.book.job_queue import ChapterJob, list_jobs
from benchmarks.book.results import SeedStatistic
from benchmarks.book.runs_log import LoggedRun, build_log_entry
from benchmarks.bound import compute_bound_terms
from client_app.data.examples import Examples
from client_app.evaluation.passes import evaluate_clients
from server_app.runs.reload import reload_data
from tests.builders_runs import read_rows, run_here

SMALL = (
    *("rounds=4", "data.num_clients=5", "data.num_priority=2", "data.sizes=equal"),
    "data.samples_per_client=40",
)
FEDALIGN = [c for c in CHAPTERS if isinstance(c, SweepChapter) and c.name.startswith("fedalign-")]


def make_logged_run(
    overrides: tuple[str, ...], numbers: Mapping[str, Any], rounds: int = 8
) -> LoggedRun:
    """Make a logged run with these overrides and numbers."""
    settings = dict(override.split("=", 1) for override in overrides)
    strategy, seed = settings.get("strategy", "fedalign"), int(settings.get("seed", "1"))
    return LoggedRun(
        overrides, strategy, seed, rounds, "2026-01-02T00:00", "abc1234", 1.0, {}, numbers
    )


def map_moments(values: list[float]) -> dict[str, float]:
    """Map the moments of 8 rounds to values: end of warm-up, a quarter, half and end."""
    return dict(zip(("1", "2", "4", "8"), values, strict=True))


def make_fake_run(job: ChapterJob) -> LoggedRun:
    """Make a logged run with all numbers that FedALIGN's chapters read."""
    level = float(int(job.get_folder(Path()).name, 16) % 997) / 997
    by_client = ("tested", "whole", "weights", "losses")
    of_clients = {"0": level, "1": level}
    trains_alone = any(word.startswith("evaluation.alone_epochs=") for word in job.overrides)
    alone = {"alone": {"tested": of_clients, "whole": of_clients}, "lowest": of_clients}
    numbers = {
        **{key: map_moments([level] * 4) for key in ("priority", "non_priority", "objective")},
        **dict.fromkeys(("theta", "theta_of_iterations"), level),
        **dict.fromkeys(by_client, of_clients),
        **(alone if trains_alone else {}),
        "admitted": [1],
        "others": [0, 1],
    }
    return make_logged_run(job.overrides, numbers, 1 if "rounds=1" in job.overrides else 8)


@pytest.mark.parametrize("chapter", FEDALIGN, ids=lambda chapter: chapter.name)
def test_every_claim_finds_its_cell_in_a_complete_chapter(chapter: SweepChapter) -> None:
    """The rows and columns of claims exist even if the chapter is not measured yet."""
    tables = chapter.tables([make_fake_run(job) for job in list_jobs(chapter)])
    claims = [claim for claim in CLAIMS if claim.chapter == chapter.name]
    for claim in claims:
        assert claim.locator is not None
        cell = claim.locator.find(tables)
        assert isinstance(cell, SeedStatistic), claim.claim
        assert cell.seeds, claim.claim


def test_the_training_loss_of_logged_runs() -> None:
    """The tables have means and paired differences; runs logged without F leave cells empty."""
    shared = ("experiment=fedalign/synth_low",)
    accuracy = {"priority": map_moments([0.5] * 4)}
    runs = [
        make_logged_run(
            (*shared, f"strategy={name}", f"seed={seed}"),
            accuracy | ({"objective": map_moments([2, 1, loss, loss])} if loss else {}),
        )
        for name, losses in (("fedalign", (0.5, 0.25)), ("fedavg_priority", (0.75, None)))
        for seed, loss in enumerate(losses, 1)
    ]
    tables = build_synth_tables(runs)
    assert tables["objective"].rows == (
        (
            "fedalign",
            2,
            SeedStatistic(2, 0),
            SeedStatistic(1, 0),
            *[SeedStatistic(0.375, 0.176777)] * 2,
        ),
        ("fedavg_priority", 2, SeedStatistic(2), SeedStatistic(1), *[SeedStatistic(0.75)] * 2),
    )
    ((_, *gaps),) = tables["objective_differences"].rows
    assert gaps[-1] == SeedStatistic(-0.25, None, 0, 1)
    without = build_synth_tables(
        [make_logged_run((*shared, "strategy=fedalign", "seed=1"), accuracy)]
    )
    assert without.keys().isdisjoint({"objective", "objective_differences"})


def test_admissions_sum_over_runs_with_sharded_data() -> None:
    """Only one preset has shards; 3 + 1 admitted of 8 + 4 selected is a third."""
    accuracy = {"priority": map_moments([0.5] * 4)}
    counts = [{"inside": (3, 8), "others": (0, 0)}, {"inside": (1, 4), "others": (2, 2)}]
    sharded = [
        make_logged_run(
            ("experiment=fedalign/mnist", "strategy=fedalign", f"seed={seed}"),
            accuracy
            | {
                "admissions": {
                    group: {"admitted": admitted, "asked": selected}
                    for group, (admitted, selected) in groups.items()
                }
            },
        )
        for seed, groups in enumerate(counts, 1)
    ]
    whole = ("experiment=fedalign/mnist_writers", "strategy=fedalign", "seed=1")
    tables = build_fedalign_tables([*sharded, make_logged_run(whole, accuracy)])
    assert tables["admissions"].rows == (
        ("mnist, fedalign", 4, 12, SeedStatistic(33.33), 2, 2, SeedStatistic(100.0)),
    )


def test_the_percentage_of_clients_better_off() -> None:
    """A tie does not count; runs logged without accuracies on all classes leave cells empty."""
    accuracies = {
        "fedalign": {"2": 0.9, "3": 0.5, "4": 0.7, "5": 0.1},
        "fedavg_priority": {"2": 0.9, "3": 0.5, "4": 0.1, "5": 0.1},
    }
    runs = [
        make_logged_run(
            ("experiment=fedalign/alone", f"strategy={name}", "seed=1"),
            {
                "non_priority": map_moments([statistics.mean(values.values())] * 4),
                "tested": values,
                "admitted": [2, 3],
            },
        )
        for name, values in accuracies.items()
    ]
    alone = {"tested": {"2": 0.8, "3": 0.5, "4": 0.6, "5": 0.2}}
    words = ("rounds=1", "strategy=fedavg", "evaluation.alone_epochs=9", "seed=1")
    runs.append(make_logged_run(("experiment=fedalign/alone", *words), {"alone": alone}, 1))
    tables = build_alone_tables(runs)
    assert tables["non_priority"].rows[-1] == (
        *("alone", 1, None, None, None),
        SeedStatistic(pytest.approx(52.5)),  # type: ignore[arg-type]
    )
    assert tables["better_off"].rows == (
        ("fedalign", 1, SeedStatistic(50.0), None),
        ("fedavg_priority", 1, SeedStatistic(25.0), None),
    )
    assert tables["better_off_differences"].rows == (
        ("fedalign - priority only", SeedStatistic(25.0, None, 1, 1), None),
    )
    assert "whole" not in tables
    assert tables["over_alone"].rows == (
        ("fedalign - alone", SeedStatistic(2.5, None, 1, 1), None),
        ("fedavg_priority - alone", SeedStatistic(-12.5, None, 0, 1), None),
    )


def test_gates_are_compared_seed_by_seed() -> None:
    """The row has the gate on client 0 minus the gate on all priority clients."""
    runs = [
        make_logged_run(
            (
                *("experiment=fedalign/fmnist", "strategy=fedalign"),
                *(f"strategy.objective_client={client}", f"seed={seed}"),
            ),
            {"priority": map_moments([0.5] * 4), "tested": {"0": first, "1": second}},
        )
        for client, tested in {"0": [(0.5, 0.25), (0.75, 0.5)], "null": [(0.25, 0.5)] * 2}.items()
        for seed, (first, second) in enumerate(tested, 1)
    ]
    ((name, *gains),) = build_one_client_tables(runs)["gains"].rows
    assert name == "fedalign (objective_client=0) - fedalign (objective_client=null)"
    assert gains == [SeedStatistic(37.5, 17.6777, 2, 2), SeedStatistic(-12.5, 17.6777, 0, 2)]


def test_the_terms_of_the_bound() -> None:
    """w* belongs to the run with the lowest F; Gamma_k = F_k(w*) - F_k*, or 0 if F_k* is larger."""

    def make_run(epsilon: str, theta: float, loss: float, weights: dict[str, float]) -> LoggedRun:
        overrides = (*shared, "strategy=fedalign", f"strategy.epsilon={epsilon}", "seed=1")
        numbers = {
            "theta": theta,
            "theta_of_iterations": theta / 2,
            "weights": weights,
            "objective": map_moments([3, 2, 1, loss]),
            "others": [2, 3],
            "losses": {"1": loss, "2": 1 + loss, "3": 0.1},
        }
        return make_logged_run(overrides, numbers)

    shared = ("experiment=fedalign/synth_low", "data.noise=flip")
    lowest = {"lowest": {"1": 0.0, "2": 0.5, "3": 0.2}}
    words = ("rounds=1", "strategy=fedavg", "evaluation.alone_epochs=9", "seed=1")
    alone = make_logged_run((*shared, *words), lowest, 1)
    open_gate = make_run("inf", 0.5, 0.4, {"2": 6.0, "3": 2.0})
    tables = build_bound_tables([make_run("0.2", 0.8, 0.2, {"2": 2.0}), open_gate, alone])
    # Gamma_2 = 1.2 - 0.5, Gamma_3 = 0.1 - min(0.1, 0.2); 8 rounds.
    (_, *narrow), (_, *wide) = tables["terms"].rows
    means = [cell.mean for cell in (*narrow[1:], *wide[1:]) if isinstance(cell, SeedStatistic)]
    narrow_terms = [0.8, 0.4, 2 * 0.7 / 8, 0.35, 0.7, 2, 0.2]
    wide_terms = [0.5, 0.25, 6 * 0.7 / 8, 0.35, 0.7 * 6 / 8, 2, 0.4]
    assert means == pytest.approx([*narrow_terms, *wide_terms])
    ((name, theta, rho),) = tables["steps"].rows
    assert name == "fedalign (epsilon=inf) - 0.2"
    assert isinstance(theta, SeedStatistic)
    assert isinstance(rho, SeedStatistic)
    assert [theta.mean, rho.mean] == pytest.approx([-0.3, 0.35])
    without = build_bound_tables([open_gate])["terms"].rows[0]
    assert without[4:7] == (None, None, None)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run FedALIGN, and FedAvg on the priority clients with all clients also alone."""
    folder = tmp_path_factory.mktemp("runs")
    run_here(folder / "fedalign", "strategy=fedalign", *SMALL, "strategy.epsilon=2.0")
    alone = "evaluation.alone_epochs=12"
    run_here(folder / "fedavg_priority", "strategy=fedavg_priority", *SMALL, alone)
    return folder


def test_terms_of_the_book_equal_the_reports(runs: Path) -> None:
    """theta_T, rho_T and Gamma_k from logged numbers equal those from the runs' records."""
    loaded = [load_run(folder) for folder in sorted(runs.iterdir())]
    overrides = ("data.num_clients=5", "seed=1")
    ours = build_bound_tables(
        [
            build_log_entry(
                run, (*overrides, f"strategy={run.strategy}"), collect_bound_numbers(run)
            )
            for run in loaded
        ]
    )
    rows = {row[0]: row for row in ours["terms"].rows}
    theirs = compute_bound_terms(loaded)
    assert len(theirs) == len(rows) == 2
    for terms in theirs:
        mean_gap = np.mean(list(terms.gamma.values()))
        expected = [terms.theta, terms.theta_of_iterations, terms.rho, mean_gap]
        cells = rows[terms.run.strategy][2:6]
        means = [cell.mean for cell in cells if isinstance(cell, SeedStatistic)]
        assert means == pytest.approx(expected, rel=1e-5)
    assert max(terms.rho for terms in theirs) > 0


def test_collected_numbers_equal_the_records(runs: Path) -> None:
    """F after a round, and the accuracies of models alone, equal those of the run's records."""
    run = load_run(runs / "fedavg_priority")
    data, settings = reload_data(run)
    everyone = range(data.num_clients)
    examples = Examples(data.get_pooled_split("test", everyone), torch.device("cpu"))
    accuracies = {
        k: evaluate_clients(model, *examples.select_clients([k]), [examples.count(k)])[0].accuracy
        for k, model in train_alone(settings, data, everyone)
    }
    last = [row for row in read_rows(run.directory, "evaluations") if row["round"] == 4]
    assert accuracies == {row["client"]: row["alone_test_accuracy"] for row in last}
    numbers = collect_alone_numbers(run)
    others = set(everyone) - set(data.priority)
    assert numbers["alone"]["tested"] == {k: accuracies[k] for k in others}
    assert numbers["alone"]["whole"].keys() == others
    assert len(set(numbers["alone"]["whole"].values())) > 1
    assert numbers["whole"].keys() == others
    assert len(set(numbers["whole"].values())) == 1
    objective = collect_fedalign_numbers(run)["objective"]
    for after in (1, 2):
        assert objective[after] == pytest.approx(run.rounds[after].global_loss, rel=1e-12)
    assert np.isfinite(objective[4])
