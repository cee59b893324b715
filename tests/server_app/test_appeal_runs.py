"""Runs with requirements and with clients that never train, from the settings to the report."""

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
from fedquorum.contrib.requirements import read_recorded_requirements
from fedquorum.equality import is_same
from fedquorum.errors import FedQuorumError, SettingsError
from safetensors.numpy import load_file

from conf.compose import compose_overrides
from conf.schema.rules import get_requirement_settings
from server_app.build import build_population
from server_app.clients_table.rows import build_client_rows
from server_app.report.command_line import main as report
from tests.builders_runs import read_lines, read_rows
from tests.reference import maxfl as reference
from tests.server_app.made_runs import SMALL, make_real_run

UNSEEN = ("data.holdout_client_fraction=0.25",)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a run of local_only, and two that are measured by it."""
    folder = tmp_path_factory.mktemp("appeal")
    make_real_run(folder / "local", "strategy=local_only")
    required = (f"evaluation.requirement={folder / 'local'}", *UNSEEN)
    make_real_run(folder / "fedavg", "strategy=fedavg", *required)
    make_real_run(
        folder / "maxfl", "strategy=maxfl", f"strategy.requirement={folder / 'local'}", *UNSEEN
    )
    return folder


def groups_of(directory: Path) -> list[dict[str, Any]]:
    return [line["test"] for line in read_lines(directory)]


def values(found: Sequence[dict[str, Any]], name: str) -> list[float]:
    return [row[name] for row in found]


@pytest.mark.parametrize("name", ["fedavg", "maxfl"])
def test_unseen_clients_never_train_and_are_evaluated(runs: Path, name: str) -> None:
    """They are in evaluations/ alone, in a group of their own, and the audit knows them."""
    population = read_rows(runs / name, "population.parquet")
    unseen = {row["client"] for row in population if row["held_out"]}
    assert len(population) == 8
    assert len(unseen) == 2
    assert {row["client"] for row in read_rows(runs / name)} == {*range(8)} - unseen
    tested = [row for row in read_rows(runs / name, "evaluations") if row["round"] == 5]
    assert {row["client"] for row in tested if row["held_out"]} == unseen
    groups = groups_of(runs / name)[-1]
    for group, chosen in (("held_out", unseen), ("all", {*range(8)} - unseen)):
        of_group = [row for row in tested if row["client"] in chosen]
        expected = np.mean(values(of_group, "test_accuracy"))
        assert groups[group]["average"] == pytest.approx(expected)
    found = audit_run(runs / name)
    assert [str(problem) for problem in found.mismatches] == []
    (line,) = describe_decision(read_audit_input(runs / name), min(unseen), 2)
    assert "never trains" in line


@pytest.mark.parametrize("name", ["fedavg", "maxfl"])
def test_appeal_follows_from_the_records_of_both_runs(runs: Path, name: str) -> None:
    """rho_k is the final training loss of the local model, for unseen clients too."""
    local = {
        row["client"]: row for row in read_rows(runs / "local", "evaluations") if row["round"] == 5
    }
    assert all(row["loss"] > 0 for row in local.values())
    held = read_recorded_requirements(runs / name)
    assert dict(held.columns["requirement"]) == {
        client: row["loss"] for client, row in local.items()
    }
    tested = [row for row in read_rows(runs / name, "evaluations") if row["round"] == 5]
    for group in ("held_out", "all"):
        of_group = [row for row in tested if row["held_out"] == (group == "held_out")]
        alone = [local[row["client"]] for row in of_group]
        share, accuracy = reference.measure_appeal(
            values(of_group, "loss"),
            values(alone, "loss"),
            values(of_group, "test_accuracy"),
            values(alone, "test_accuracy"),
        )
        found = groups_of(runs / name)[-1][group]
        assert found["appeal"] == pytest.approx(share)
        assert found["preferred_accuracy"] == pytest.approx(accuracy)


def test_maxfls_weights_follow_from_the_local_losses(runs: Path) -> None:
    """In every round, against the reference."""
    held = read_recorded_requirements(runs / "maxfl").columns["requirement"]
    for number in range(1, 6):
        found = [row for row in read_rows(runs / "maxfl") if row["round"] == number]
        gaps = [repr(row["loss"] - held[row["client"]]) for row in found]
        expected = [float(weight) for weight in reference.compute_weights(gaps, 1, "0")]
        np.testing.assert_allclose(values(found, "weight"), expected, rtol=1e-9)


def test_measuring_appeal_changes_no_bit_of_the_model(runs: Path, tmp_path: Path) -> None:
    """The training losses of clients without priority are in no objective and no state."""
    make_real_run(tmp_path / "run", "strategy=fedavg", *UNSEEN)
    with_it, without = (
        load_file(directory / "model.safetensors")
        for directory in (runs / "fedavg", tmp_path / "run")
    )
    assert all(with_it[name].tobytes() == array.tobytes() for name, array in without.items())
    assert all("appeal" not in test["all"] for test in groups_of(tmp_path / "run"))


def test_a_run_resumes_with_its_initial_requirements(runs: Path, tmp_path: Path) -> None:
    """From its records: the run that they were read from may be gone. Nodes change no bit."""
    local = tmp_path / "local"
    shutil.copytree(runs / "local", local)
    words = ("strategy=maxfl", f"strategy.requirement={local}", *UNSEEN)
    make_real_run(tmp_path / "stopped", *words, "rounds=2", "engine.num_supernodes=3")
    shutil.rmtree(local)
    make_real_run(tmp_path / "stopped", *words, f"resume={tmp_path / 'stopped'}")
    first, other = (
        load_file(d / "model.safetensors") for d in (runs / "maxfl", tmp_path / "stopped")
    )
    assert all(first[name].tobytes() == array.tobytes() for name, array in other.items())
    assert groups_of(tmp_path / "stopped") == groups_of(runs / "maxfl")


def test_the_report_shows_held_out_clients_and_appeal(runs: Path, tmp_path: Path) -> None:
    """Unseen clients are a line of the tables; appeal is in CSV and page."""
    report([str(runs), "--output", str(tmp_path)])
    with (tmp_path / "table.csv").open() as file:
        lines = {(line["strategy"], line["clients"]): line for line in csv.DictReader(file)}
    for name in ("fedavg", "maxfl"):
        test = groups_of(runs / name)[-1]
        for group in ("priority", "non_priority", "all", "held_out"):
            assert float(lines[name, group]["appeal_mean"]) == test[group]["appeal"]
    assert lines["local_only", "all"]["appeal_mean"] == ""
    page = (tmp_path / "report.html").read_text()
    for text in ("clients satisfied, %", "held-out clients"):
        assert text in page


def test_two_settings_may_agree_on_who_has_no_requirement() -> None:
    """NaN in both is no contradiction; NaN and a number are."""
    words = ("strategy=maxfl", "strategy.requirement=[0.5,nan]")
    settings = compose_overrides((*words, "evaluation.requirement=[0.5,nan]")).settings
    place, value = find_requirement(get_requirement_settings(settings))
    assert place == "evaluation.requirement"
    assert is_same(value, [0.5, math.nan])
    with pytest.raises(SettingsError, match=r"strategy\.requirement must be null or that of"):
        compose_overrides((*words, "evaluation.requirement=[0.5,2]"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("strategy=maxfl",), r"strategy\.requirement must be a number, .*none has one"),
        (
            ("strategy=maxfl", "strategy.requirement=1", "evaluation.requirement=2"),
            r"strategy\.requirement must be null or that of evaluation\.requirement \(2\), got 1",
        ),
        (("evaluation.requirement=[1,2]",), "one number for each of the 8 clients .*, got 2"),
        (("evaluation.requirement={9: 1}",), "must name client ids from 0 to 7, got 9"),
        (("evaluation.requirement=true",), r"evaluation\.requirement must be a number, .*got true"),
        (("evaluation.requirement={runs}/none",), "none"),
        (("evaluation.requirement={runs}/fedavg",), "expected a run of local_only, .* of fedavg"),
        (("evaluation.requirement={runs}/local", "seed=2"), "seed=1 where this run has 2"),
        (
            ("evaluation.requirement={runs}/local", "data.alpha=2"),
            r"of the same clients, got one with data\.alpha=",
        ),
        (
            ("strategy=local_only", *UNSEEN),
            r"data\.holdout_client_fraction must be 0 with strategy=local_only .*, got 0\.25",
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
def test_what_cannot_be_is_refused_in_one_line(
    runs: Path, tmp_path: Path, words: Sequence[str], message: str
) -> None:
    """With the setting, before anything is written."""
    with pytest.raises(FedQuorumError, match=message) as caught:
        make_real_run(tmp_path / "run", *(word.replace("{runs}", str(runs)) for word in words))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_the_clients_table_says_who_never_trains() -> None:
    """As the run draws them."""
    settings = compose_overrides((*SMALL, *UNSEEN)).settings
    from client_app.data import load_data

    population = build_population(settings, load_data(settings.data, settings.seed))
    unseen = [row.client for row in build_client_rows(settings) if row.held_out]
    assert tuple(unseen) == population.held_out
    assert not set(unseen) & population.priority
