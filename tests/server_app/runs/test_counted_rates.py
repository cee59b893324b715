"""Test how often a simulated run counts each client, and how known_statistics uses it."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from fedquorum.audit.check import audit_run
from fedquorum.errors import SettingsError
from fedquorum.rules.types import FloatArray

from client_app.data import load_data
from conf.compose import compose_overrides
from conf.schema.rules import rules_from_settings
from server_app.runs.build import build_population
from server_app.runs.counted_rates import compute_counted_rates
from tests.builders_runs import read_rounds, read_rows, run_here
from tests.fedquorum.records.made import load_all

TEN = (
    *("experiment=custom", "data=synth", "model=logistic_regression"),
    *("data.num_clients=10", "data.priority=all", "data.sizes=equal"),
    *("data.samples_per_client=10", "client.lr=0.001", "client.local_steps=1", "seed=3"),
)
HALF = ("availability=bernoulli", "availability.p=0.5")
KNOWN = "strategy=known_statistics"
QUORUM = ("response_time=lognormal", "engine.quorum=0.5")


def run(directory: Path, *overrides: str, availability: tuple[str, ...] = HALF) -> Path:
    return run_here(directory, *TEN, *availability, *overrides)


def read_weights(directory: Path, rounds: int) -> FloatArray:
    """Return the recorded weights, shape (T, N)."""
    weights = np.zeros((rounds, 10))
    for row in read_rows(directory):
        weights[row["round"] - 1, row["client"]] = row["weight"]
    return weights


@pytest.mark.slow
@pytest.mark.parametrize("fraction", [1.0, 0.5, 0.2])
@pytest.mark.parametrize("strategy", ["known_statistics", "fedau", "empirical"])
def test_the_mean_sum_of_weights_is_1_under_every_fraction(
    tmp_path: Path, fraction: float, strategy: str
) -> None:
    """The mean is over rounds 101 to 300; the error is 0 for known rates and small for estimates.

    With the rate r = fraction / 2, a client counts 1 / (10 r) with probability r, so the sum has a
    standard deviation of at most sqrt((1 - r) / (10 r)). An estimate of 1 / r after 300 rounds has
    the relative variance (1 - r) / (300 r); its mean over 10 clients is within a factor of 3.
    """
    overrides = (f"strategy={strategy}", "rounds=300", "evaluation.every=300")
    directory = run(tmp_path / "run", *overrides, f"strategy.fraction={fraction}")
    rate = fraction / 2
    mean = read_weights(directory, 300)[100:].sum(axis=1).mean()
    assert mean == pytest.approx(1.0, abs=5 * np.sqrt((1 - rate) / (10 * rate) / 200))
    last = read_rounds(directory)[-1]["weight_error"]
    if strategy == "known_statistics":
        assert last == pytest.approx(0.0, abs=1e-12)
    assert last <= 3 * (1 - rate) / (300 * rate)
    assert audit_run(directory).mismatches == ()


@pytest.mark.slow
def test_the_rate_combines_time_varying_availability_and_sampling(tmp_path: Path) -> None:
    """omega is 1 / (p_n(t) q_n) on three nodes, and the audit finds no mismatch."""
    overrides = (
        KNOWN,
        "strategy.fraction=0.25",
        "availability=interleaved",
        "availability.period=4",
    )
    directory = run(tmp_path / "run", *overrides, "rounds=6", "engine.num_supernodes=3")
    assert audit_run(directory).mismatches == ()
    for row in read_rows(directory):
        g = 1 - 0.3 * (1 - np.sin(2 * np.pi * ((row["round"] - 1) % 4) / 4))
        assert row["participation_correction"] == pytest.approx(
            1 / (0.5 * g * 0.2), rel=1e-12
        )  # round(2.5) of 10
    assert all(r["weight_error"] == pytest.approx(0, abs=1e-12) for r in read_rounds(directory))
    population = pq.read_table(directory / "population.parquet").to_pydict()
    assert population["participation_rate"] == pytest.approx([0.5 * 0.7 * 0.2] * 10)
    assert population["base_rate"] == [0.5] * 10


def test_clients_that_are_never_selected_count_in_no_error(tmp_path: Path) -> None:
    """The selection samples 2 of 4 priority clients; the other 6 have no rate and no error."""
    parts = ("selection=priority_only", "weighting=average_all", "participation=known_statistics")
    overrides = ("strategy=composed", *(f"strategy/{part}" for part in parts))
    directory = run(
        tmp_path / "run", *overrides, "data.priority=[0,1,2,3]", "strategy.fraction=0.5", "rounds=3"
    )
    assert [r["weight_error"] for r in read_rounds(directory)] == pytest.approx([0.0] * 3)
    assert {row["participation_correction"] for row in read_rows(directory)} == {4.0}
    rates = pq.read_table(directory / "population.parquet")["participation_rate"].to_pylist()
    assert rates == [0.25] * 4 + [None] * 6
    assert audit_run(directory).mismatches == ()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("availability", "overrides"),
    [
        (HALF, (*QUORUM, "strategy.fraction=0.5")),
        (("availability=markov", "availability.p=0.5", "availability.max_transition=0.5"), QUORUM),
        (("availability=always",), QUORUM),
        ((*HALF, "availability.rest=1"), QUORUM),
        (HALF, ("response_time=lognormal", "engine.round_timeout=12")),
    ],
    ids=str,
)
def test_rates_under_a_quorum_are_counted_ahead(
    tmp_path: Path,
    availability: tuple[str, ...],
    overrides: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each client's mean weight is 1 / 10, also if it is often late, and the audit agrees.

    A client that rarely counts has a large weight when it does. Over 400 rounds, the mean sum is
    known to 0.2, and each client's rate to 0.15, which is at most 5 standard errors.
    """
    monkeypatch.setattr("server_app.runs.counted_rates.NUM_SIMULATED_ROUNDS", 3_000)
    few = ("rounds=400", "evaluation.every=400", "evaluation.clients=priority")
    directory = run(tmp_path / "run", KNOWN, *overrides, *few, availability=availability)
    statuses = {row["status"] for row in read_rows(directory)}
    assert statuses & {"late", "failed"}
    assert read_weights(directory, 400).sum(axis=1).mean() == pytest.approx(1.0, abs=0.2)
    assert read_rounds(directory)[-1]["weight_error"] == pytest.approx(0.0, abs=1e-12)
    assert audit_run(directory).mismatches == ()
    rates = np.array(pq.read_table(directory / "population.parquet")["participation_rate"])
    assert len(set(rates.tolist())) > 5
    counted = (read_weights(directory, 400) > 0).mean(axis=0)
    assert np.abs(counted - rates).max() < 0.15


def test_the_error_of_estimates_is_undefined_if_clients_can_be_late(tmp_path: Path) -> None:
    """FedAU needs no rates, so no rounds are played ahead."""
    directory = run(tmp_path / "run", "strategy=fedau", *QUORUM, "rounds=3")
    assert [r["weight_error"] for r in read_rounds(directory)] == [None] * 3
    assert audit_run(directory).mismatches == ()
    assert load_all(directory)


def test_rates_without_lateness_are_exact() -> None:
    """The rates are exact if no reply misses the deadline, or if all clients reply at once."""
    for overrides in (("response_time=lognormal",), ("engine.quorum=0.5",), ()):
        composed = compose_overrides((*TEN, *HALF, KNOWN, *overrides)).settings
        data = load_data(composed.data, composed.seed)
        population = build_population(composed, data)
        rates = compute_counted_rates(composed, rules_from_settings(composed), population, data)
        assert rates is not None
        assert rates.get_rates(0).tolist() == [0.5] * 10


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (("engine=ray", "engine.quorum=0.5"), "lateness on the machine's clock tells no rates"),
        ((*QUORUM, "availability=cyclic"), "availability=cyclic changes with the rounds"),
        ((*QUORUM, "availability=sine"), "availability=sine changes with the rounds"),
    ],
)
def test_rates_that_cannot_be_counted_ahead_are_refused(
    overrides: tuple[str, ...], reason: str
) -> None:
    """Composing the settings raises a one-line error, unless the settings give the rates."""
    with pytest.raises(SettingsError, match=reason) as caught:
        compose_overrides((*TEN, *HALF, KNOWN, *overrides))
    assert str(caught.value).startswith("strategy.probabilities must be the rates of being counted")
    assert "\n" not in str(caught.value)
    given = f"strategy.probabilities={[0.3] * 10}".replace(" ", "")
    compose_overrides((*TEN, *HALF, KNOWN, *overrides, given))


@pytest.mark.slow
def test_a_warm_up_and_varying_response_times_are_refused(tmp_path: Path) -> None:
    """With either, the rates would vary from round to round."""
    parts = ("selection=after_warmup", "weighting=average_all", "participation=known_statistics")
    overrides = ("strategy=composed", *(f"strategy/{part}" for part in parts), *QUORUM)
    with pytest.raises(SettingsError, match=r"^strategy\.participation\.probabilities .*warm-up"):
        compose_overrides((*TEN, *HALF, *overrides, "strategy.selection.warmup_rounds=2"))
    times = tmp_path / "times.csv"
    lines = ["round,client,seconds", *(f"1,{k},{k + 1}" for k in range(10)), "5,3,90"]
    times.write_text("\n".join(lines))
    trace = ("response_time=trace", f"response_time.path={times}")
    with pytest.raises(SettingsError, match=r"^response_time\.path must have one line for each"):
        run(tmp_path / "run", KNOWN, *trace, "engine.quorum=0.5", "rounds=1")
    run(tmp_path / "patient", KNOWN, *trace, "rounds=1")


@pytest.mark.slow
def test_a_client_that_is_never_selected_or_in_time_is_refused(tmp_path: Path) -> None:
    """The error is one line with the setting that would let the client count."""
    few = ("data.priority=[0,1]", "strategy.fraction=0.05", "rounds=1")
    with pytest.raises(SettingsError, match=r"^strategy\.fraction must be so large .*, got 0\.05$"):
        run(tmp_path / "unselected", KNOWN, *few)
    times = tmp_path / "times.csv"
    times.write_text("\n".join(["client,seconds", *(f"{k},{k + 1}" for k in range(10))]))
    trace = ("response_time=trace", f"response_time.path={times}")
    with pytest.raises(
        SettingsError, match=r"^engine\.round_timeout must be so large .*, got 8\.5;"
    ):
        run(tmp_path / "late", KNOWN, *trace, "engine.round_timeout=8.5", "rounds=1")


@pytest.mark.slow
def test_rates_counted_ahead_do_not_change_on_a_resume(tmp_path: Path) -> None:
    """They depend neither on the number of rounds nor on the number of nodes."""
    overrides = (KNOWN, *QUORUM, "strategy.fraction=0.5", "engine.checkpoint_every=1")
    whole = run(tmp_path / "whole", *overrides, "rounds=4")
    resumed = run(tmp_path / "resumed", *overrides, "rounds=2")
    run(resumed, *overrides, "rounds=4", f"resume={resumed}")
    assert np.array_equal(read_weights(resumed, 4), read_weights(whole, 4))
    three = run(tmp_path / "three", *overrides, "rounds=4", "engine.num_supernodes=3")
    assert np.array_equal(read_weights(three, 4), read_weights(whole, 4))
