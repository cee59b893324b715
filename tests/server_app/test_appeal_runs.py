"""Test runs with requirements and held-out clients, from the settings to the report."""

import csv
import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fedquorum.audit.check import audit_run
from fedquorum.audit.explain import describe_decision
from fedquorum.audit.replay import read_audit_input
from fedquorum.contrib import find_requirement
from fedquorum.errors import FedQuorumError, SettingsError
from fedquorum.report.cli import main as report
from fedquorum.rules.equality import is_same
from safetensors.numpy import load_file

from conf.compose import compose_overrides
from conf.schema.rules import get_requirement_settings
from server_app.runs.build import build_population
from server_app.runs.data_preview import build_client_rows
from server_app.runs.requirements import read_recorded_requirements
from tests.builders_runs import read_lines, read_rows
from tests.reference import maxfl as reference
from tests.server_app.made_runs import SMALL, make_real_run

HELD_OUT = ("data.holdout_client_fraction=0.25",)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a run of clients alone, and two runs with its losses as requirements."""
    folder = tmp_path_factory.mktemp("appeal")
    make_real_run(folder / "alone", "strategy=fedavg", "evaluation.alone_epochs=5")
    required = (f"evaluation.requirement={folder / 'alone'}", *HELD_OUT)
    make_real_run(folder / "fedavg", "strategy=fedavg", *required)
    make_real_run(
        folder / "maxfl", "strategy=maxfl", f"strategy.requirement={folder / 'alone'}", *HELD_OUT
    )
    return folder


def read_test_groups(directory: Path) -> list[dict[str, Any]]:
    return [line["test"] for line in read_lines(directory)]


def get_column(rows: Sequence[dict[str, Any]], name: str) -> list[float]:
    return [row[name] for row in rows]


@pytest.mark.parametrize("name", ["fedavg", "maxfl"])
def test_held_out_clients_never_train_and_are_evaluated(runs: Path, name: str) -> None:
    """Only evaluations/ has them, in a separate group, and the audit explains them."""
    population = read_rows(runs / name, "population.parquet")
    held_out = {row["client"] for row in population if row["held_out"]}
    assert len(population) == 8
    assert len(held_out) == 2
    assert {row["client"] for row in read_rows(runs / name)} == {*range(8)} - held_out
    tested = [row for row in read_rows(runs / name, "evaluations") if row["round"] == 5]
    assert {row["client"] for row in tested if row["held_out"]} == held_out
    groups = read_test_groups(runs / name)[-1]
    for group, clients in (("held_out", held_out), ("all", {*range(8)} - held_out)):
        group_rows = [row for row in tested if row["client"] in clients]
        expected = np.mean(get_column(group_rows, "test_accuracy"))
        assert groups[group]["average"] == pytest.approx(expected)
    audit = audit_run(runs / name)
    assert [str(problem) for problem in audit.mismatches] == []
    (line,) = describe_decision(read_audit_input(runs / name), min(held_out), 2)
    assert "never trains" in line


@pytest.mark.parametrize("name", ["fedavg", "maxfl"])
def test_appeal_follows_from_the_records_of_both_runs(runs: Path, name: str) -> None:
    """rho_k is the training loss of k's model alone, also for held-out clients."""
    alone = {
        row["client"]: row for row in read_rows(runs / "alone", "evaluations") if row["round"] == 5
    }
    assert all(row["alone_loss"] > 0 for row in alone.values())
    recorded = read_recorded_requirements(runs / name)
    assert dict(recorded.columns["requirement"]) == {
        client: row["alone_loss"] for client, row in alone.items()
    }
    tested = [row for row in read_rows(runs / name, "evaluations") if row["round"] == 5]
    for group in ("held_out", "all"):
        group_rows = [row for row in tested if row["held_out"] == (group == "held_out")]
        alone_rows = [alone[row["client"]] for row in group_rows]
        fraction, accuracy = reference.measure_appeal(
            get_column(group_rows, "loss"),
            get_column(alone_rows, "alone_loss"),
            get_column(group_rows, "test_accuracy"),
            get_column(alone_rows, "alone_test_accuracy"),
        )
        metrics = read_test_groups(runs / name)[-1][group]
        assert metrics["appeal"] == pytest.approx(fraction)
        assert metrics["preferred_accuracy"] == pytest.approx(accuracy)


def test_maxfls_weights_follow_from_the_losses_alone(runs: Path) -> None:
    """The weights of every round equal those of the reference."""
    requirements = read_recorded_requirements(runs / "maxfl").columns["requirement"]
    for server_round in range(1, 6):
        rows = [row for row in read_rows(runs / "maxfl") if row["round"] == server_round]
        gaps = [repr(row["loss"] - requirements[row["client"]]) for row in rows]
        expected = [float(weight) for weight in reference.compute_weights(gaps, 1, "0")]
        np.testing.assert_allclose(get_column(rows, "weight"), expected, rtol=1e-9)


def test_evaluating_appeal_changes_no_bit_of_the_model(runs: Path, tmp_path: Path) -> None:
    """The training losses of clients without priority enter neither objective nor state."""
    make_real_run(tmp_path / "run", "strategy=fedavg", *HELD_OUT)
    with_it, without = (
        load_file(directory / "model.safetensors")
        for directory in (runs / "fedavg", tmp_path / "run")
    )
    assert all(with_it[name].tobytes() == array.tobytes() for name, array in without.items())
    assert all("appeal" not in test["all"] for test in read_test_groups(tmp_path / "run"))


def test_a_run_resumes_with_its_initial_requirements(runs: Path, tmp_path: Path) -> None:
    """It reads them from its records, not from the other run, whose folder may be gone."""
    alone = tmp_path / "alone"
    shutil.copytree(runs / "alone", alone)
    overrides = ("strategy=maxfl", f"strategy.requirement={alone}", *HELD_OUT)
    make_real_run(tmp_path / "stopped", *overrides, "rounds=2", "engine.num_supernodes=3")
    shutil.rmtree(alone)
    make_real_run(tmp_path / "stopped", *overrides, f"resume={tmp_path / 'stopped'}")
    first, other = (
        load_file(d / "model.safetensors") for d in (runs / "maxfl", tmp_path / "stopped")
    )
    assert all(first[name].tobytes() == array.tobytes() for name, array in other.items())
    assert read_test_groups(tmp_path / "stopped") == read_test_groups(runs / "maxfl")


@pytest.mark.slow
@pytest.mark.usefixtures("blank_figures")
def test_the_report_shows_held_out_clients_and_appeal(runs: Path, tmp_path: Path) -> None:
    """The tables have a line for held-out clients; the CSV file and the page have the appeal."""
    report([*(str(runs / name) for name in ("fedavg", "maxfl")), "--output", str(tmp_path)])
    with (tmp_path / "table.csv").open() as file:
        lines = {(line["strategy"], line["clients"]): line for line in csv.DictReader(file)}
    for name in ("fedavg", "maxfl"):
        test = read_test_groups(runs / name)[-1]
        for group in ("priority", "non_priority", "all", "held_out"):
            assert float(lines[name, group]["appeal_mean"]) == test[group]["appeal"]
    page = (tmp_path / "report.html").read_text()
    for text in ("clients satisfied, %", "held-out clients"):
        assert text in page


def test_requirements_given_twice_may_share_missing_values() -> None:
    """NaN in both settings is allowed; NaN in one and a number in the other are refused."""
    overrides = ("strategy=maxfl", "strategy.requirement=[0.5,nan]")
    settings = compose_overrides((*overrides, "evaluation.requirement=[0.5,nan]")).settings
    key, value = find_requirement(get_requirement_settings(settings))
    assert key == "evaluation.requirement"
    assert is_same(value, [0.5, math.nan])
    with pytest.raises(SettingsError, match=r"strategy\.requirement must be null or that of"):
        compose_overrides((*overrides, "evaluation.requirement=[0.5,2]"))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ("strategy=maxfl",),
            r"strategy\.requirement must be a number, .*no client has a requirement",
        ),
        (
            ("strategy=maxfl", "strategy.requirement=1", "evaluation.requirement=2"),
            r"strategy\.requirement must be null or that of evaluation\.requirement \(2\), got 1",
        ),
        (("evaluation.requirement=[1,2]",), "one number for each of the 8 clients .*, got 2"),
        (("evaluation.requirement={9: 1}",), "must name client ids from 0 to 7, got 9"),
        (("evaluation.requirement=true",), r"evaluation\.requirement must be a number, .*got true"),
        (("evaluation.requirement={runs}/none",), "none"),
        (
            ("evaluation.requirement={runs}/fedavg",),
            r"expected a run with evaluation\.alone_epochs=N, .* one of fedavg",
        ),
        (("evaluation.requirement={runs}/alone", "seed=2"), "seed=1 where this run has 2"),
        (
            ("evaluation.requirement={runs}/alone", "data.alpha=2"),
            r"of the same clients, got one with data\.alpha=",
        ),
        (
            ("data.holdout_client_fraction=0.9",),
            r"data\.holdout_client_fraction must be 0 or a share of 1 to 4 of",
        ),
        (
            ("data.holdout_client_fraction=1",),
            r"data\.holdout_client_fraction must be a number >= 0 and < 1, got 1",
        ),
    ],
)
def test_invalid_requirements_are_refused_in_one_line(
    runs: Path, tmp_path: Path, overrides: Sequence[str], message: str
) -> None:
    """The error names the setting, and comes before the run's folder is created."""
    with pytest.raises(FedQuorumError, match=message) as caught:
        make_real_run(tmp_path / "run", *(item.replace("{runs}", str(runs)) for item in overrides))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_the_clients_table_marks_held_out_clients() -> None:
    """They are the clients that the run holds out."""
    settings = compose_overrides((*SMALL, *HELD_OUT)).settings
    from client_app.data import load_data

    population = build_population(settings, load_data(settings.data, settings.seed))
    held_out = [row.client for row in build_client_rows(settings) if row.held_out]
    assert tuple(held_out) == population.held_out
    assert not set(held_out) & population.priority
