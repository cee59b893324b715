"""Whole runs in which clients come and go."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from fedquorum.audit.check import audit_run
from fedquorum.audit.explain import describe_decision
from fedquorum.audit.replay import read_audit_input
from fedquorum.client.availability import (
    Bernoulli,
    InterleavedSine,
    PeriodicProcess,
    Sine,
    Staircase,
)
from fedquorum.client.availability.periodic import AvailabilityPattern
from fedquorum.client.availability.processes import compute_process_state
from safetensors.numpy import load_file

from client_app.data import load_data
from client_app.simulation.availability import compute_participation_rates
from conf.compose import compose_overrides
from tests.builders_runs import read_rounds, read_rows, run_here
from tests.integration.conftest import assert_same_rounds
from tests.reference.fedalign import find_mismatches

ROUNDS = 12
SMALL = ("data.sizes=equal", "data.samples_per_client=50", "client.local_epochs=2")


def run(directory: Path, *overrides: str) -> Path:
    return run_here(directory, f"rounds={ROUNDS}", *SMALL, *overrides)


def assert_same_models(one: Path, other: Path) -> None:
    first, second = (load_file(directory / "model.safetensors") for directory in (one, other))
    for name, array in first.items():
        np.testing.assert_allclose(second[name], array, rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["fedalign", "fedavg"])
def test_unavailable_clients_in_the_records(tmp_path: Path, strategy: str) -> None:
    """The clients table has the unavailable clients of the process, on one node and on three."""
    overrides = (f"strategy={strategy}", "availability=bernoulli", "availability.p=0.6")
    one, three = (
        run(tmp_path / str(nodes), *overrides, f"engine.num_supernodes={nodes}") for nodes in (1, 3)
    )
    assert_same_rounds(one, three)
    assert_same_models(one, three)
    rows = read_rows(one)
    assert [(r["round"], r["client"], r["status"]) for r in rows] == [
        (r["round"], r["client"], r["status"]) for r in read_rows(three)
    ]
    process = Bernoulli(0.6)
    for row in rows:
        available = compute_process_state(
            process, seed=1, client=row["client"], server_round=row["round"]
        ).state
        assert (row["status"] == "unavailable") == (available == 0)
        if row["status"] == "unavailable":
            assert row["weight"] == 0
            assert row["num_examples"] is row["loss"] is row["accuracy"] is row["reason"] is None
    unavailable = [record["unavailable"] for record in read_rounds(one)]
    assert sum(unavailable) == sum(row["status"] == "unavailable" for row in rows) > 0
    assert len(set(unavailable)) > 1


@pytest.mark.slow
def test_decisions_recompute_where_non_priority_clients_come_and_go(tmp_path: Path) -> None:
    """FedALIGN's admissions and weights are correct among the available clients."""
    path = tmp_path / "trace.csv"
    lines = [f"{t},{k},1" for t in range(1, ROUNDS + 1) for k in range(20) if k < 10 or (t + k) % 3]
    path.write_text("\n".join(["round,client,available", *lines]))
    directory = run(tmp_path / "run", "availability=trace", f"availability.path={path}")
    found = find_mismatches(directory)
    assert found.problems == []
    assert found.gates > 0
    for row in read_rows(directory):
        disconnected = row["client"] >= 10 and (row["round"] + row["client"]) % 3 == 0
        assert (row["status"] == "unavailable") == disconnected


@pytest.mark.slow
def test_decisions_recompute_with_intermittent_clients(tmp_path: Path) -> None:
    """Also if some priority clients do not train; F(w) is evaluated on all of them."""
    directory = run(tmp_path / "run", "availability=markov", "availability.p=0.5", "seed=2")
    problems = find_mismatches(directory).problems
    assert [text for text in problems if "global loss" not in text] == []


@pytest.mark.slow
@pytest.mark.parametrize("process", ["bernoulli", "markov", "cyclic"])
def test_a_probability_of_one_is_always(tmp_path: Path, process: str) -> None:
    """With p = 1 a run has the same bits as without a process."""
    always = run(tmp_path / "always", "rounds=4")
    same = run(tmp_path / process, "rounds=4", f"availability={process}", "availability.p=1")
    assert read_rounds(always) == read_rounds(same)
    assert_same_models(always, same)


def test_a_round_without_available_clients_is_empty(tmp_path: Path) -> None:
    """The model does not change, the round is logged, and the run continues."""
    path = tmp_path / "trace.csv"
    path.write_text("round,client,available\n" + "".join(f"2,{k},1\n" for k in range(20)))
    overrides = ("rounds=3", "availability=trace", f"availability.path={path}")
    rounds = read_rounds(run(tmp_path / "run", *overrides))
    counts = [(record["selected"], record["unavailable"]) for record in rounds]
    assert counts == [(10, 10), (20, 0), (20, 20)]
    assert rounds[0]["global_loss"] == rounds[1]["global_loss"] != rounds[2]["global_loss"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "pattern"),
    [
        (("availability=staircase", "availability.low=0.25"), Staircase(period=4, low=0.25)),
        (("availability=sine", "availability.phase=1"), Sine(period=4, phase=1)),
        (("availability=interleaved", "availability.cut=0.3"), InterleavedSine(period=4, cut=0.3)),
    ],
)
def test_known_rates_use_the_probabilities_of_this_round(
    tmp_path: Path, overrides: tuple[str, ...], pattern: AvailabilityPattern
) -> None:
    """Availability depends on p_n(t), a weight is 1 / (N p_n(t)), and the audit agrees."""
    p = [0.4 + 0.03 * k for k in range(20)]
    directory = run(
        tmp_path / "run",
        *("rounds=6", "strategy=known_statistics", "engine.num_supernodes=2"),
        *(f"availability.p={p}".replace(" ", ""), "availability.period=4", *overrides),
    )
    rates = [pattern.compute_probabilities(np.array(p), t) for t in range(6)]
    rows = read_rows(directory)
    for row in rows:
        k, t = row["client"], row["round"] - 1
        law = PeriodicProcess(p[k], pattern)
        available = law.is_available(
            compute_process_state(law, seed=1, client=k, server_round=t + 1).state
        )
        assert (row["status"] == "trained") == available
        expected = 1 / rates[t][k] if rates[t][k] > 0 else 0.0
        assert row["participation_correction"] == pytest.approx(expected, rel=1e-12)
        assert row["weight"] == pytest.approx(available * expected / 20, rel=1e-12)
    found = audit_run(directory)
    assert found.mismatches == ()
    assert found.num_rounds == 6
    population = pq.read_table(directory / "population.parquet").to_pydict()
    assert population["base_rate"] == p
    assert (
        population["participation_rate"] == pattern.compute_mean_probabilities(np.array(p)).tolist()
    )
    errors = [record["weight_error"] for record in read_rounds(directory)]
    cut = [float((of_round == 0).mean()) for of_round in rates]  # (0 - 1)^2 each, else 0
    assert errors == pytest.approx(cut, abs=1e-12)
    trained = next(row for row in rows if row["status"] == "trained")
    lines = describe_decision(read_audit_input(directory), trained["client"], trained["round"])
    assert any(f"omega_n = 1 / p_n({trained['round'] - 1}) = " in line for line in lines)


@pytest.mark.slow
def test_correlated_participation_has_its_rate(tmp_path: Path) -> None:
    """Over a run each client takes part about as often as its p_n says."""
    selected = ("strategy=fedavg", "strategy.warmup_fraction=0")  # all clients, in every round
    overrides = ("rounds=150", "availability=bernoulli", "availability.mean=0.4", *selected)
    fast = ("evaluation.every=200", "evaluation.clients=priority")
    directory = run(tmp_path / "run", *overrides, *fast)
    settings = compose_overrides((*overrides, *SMALL)).settings
    rates = compute_participation_rates(settings, load_data(settings.data, settings.seed))
    assert rates is not None
    expected = rates.mean_rates.tolist()
    rows = read_rows(directory)
    for client, p in enumerate(expected):
        available = [row["status"] != "unavailable" for row in rows if row["client"] == client]
        assert len(available) == 150
        assert np.mean(available) == pytest.approx(p, abs=4 * np.sqrt(p * (1 - p) / 150))
    assert len(set(expected)) > 5
