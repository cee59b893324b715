"""Test runs with simulated response times and a quorum, from the settings to the report."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fedquorum.audit.check import audit_run
from fedquorum.errors import RunError, SettingsError
from fedquorum.registry import NAMED_STRATEGIES
from fedquorum.report.chart_spec import LineChart
from fedquorum.report.experiment import build_experiments
from fedquorum.report.seed_groups import group_runs

from client_app.node.node import Node
from conf.compose import compose_overrides
from tests.builders import NEEDED_WORDS
from tests.builders_runs import make_client_overrides, read_rounds, read_rows, run_here
from tests.fedquorum.records.made import change_round, change_table, load_all

SLOW = (
    *make_client_overrides(8, 3),
    "response_time=lognormal",
    "engine.quorum=0.5",
    "engine.grace_seconds=1",
    "rounds=12",
)
FEDAVG = ("strategy=fedavg", "strategy.warmup_fraction=0")


def run(directory: Path, *overrides: str) -> list[dict[str, Any]]:
    """Return the rounds of a run, without fields that depend on the machine."""
    return read_rounds(run_here(directory, *SLOW, *overrides))


def read_model(directory: Path) -> bytes:
    return (directory / "model.safetensors").read_bytes()


@pytest.mark.slow
def test_lateness_does_not_depend_on_the_nodes(tmp_path: Path) -> None:
    """Runs with one, three and eight nodes have the same bits, and so has a resumed run."""
    one = run(tmp_path / "1", "strategy=fedau")
    assert sum(line["late"] for line in one) > 12
    assert any(line["busy"] for line in one)
    assert any(line["late_replies"] for line in one)
    clock = [line["simulated_seconds"] for line in one]
    assert clock == sorted(set(clock))
    for nodes in (3, 8):
        again = run(tmp_path / str(nodes), "strategy=fedau", f"engine.num_supernodes={nodes}")
        assert again == one
        assert read_model(tmp_path / str(nodes)) == read_model(tmp_path / "1")
        assert read_rows(tmp_path / str(nodes)) == read_rows(tmp_path / "1")
    first = (*SLOW, "strategy=fedau", "engine.checkpoint_every=1")
    run_here(tmp_path / "resumed", *first, "rounds=5")
    resumed = (*first, f"resume={tmp_path / 'resumed'}")
    run_here(tmp_path / "resumed", *resumed)
    assert read_rounds(tmp_path / "resumed") == one
    assert read_model(tmp_path / "resumed") == read_model(tmp_path / "1")
    with pytest.raises(SettingsError, match=r"engine\.quorum must be 0\.5, as in the run so far"):
        run_here(tmp_path / "resumed", *resumed, "engine.quorum=0.6", "rounds=13")


@pytest.mark.slow
@pytest.mark.parametrize("strategy", sorted(NAMED_STRATEGIES))
def test_every_strategy_runs_with_late_and_unavailable_clients(
    tmp_path: Path, strategy: str
) -> None:
    """Late updates have no weight, unavailable clients are not late, and the audit agrees."""
    overrides = [f"strategy={strategy}", "engine.quorum_clients=priority", "rounds=8"]
    overrides += NEEDED_WORDS.get(strategy, ())
    if strategy == "known_statistics":
        overrides.append(f"strategy.probabilities={[0.6] * 8}".replace(" ", ""))
    if strategy != "aaggff_s":
        overrides += ["availability=bernoulli", "availability.p=0.6"]
    rounds = run(tmp_path / "run", *overrides)
    statuses = {row["status"] for row in read_rows(tmp_path / "run")}
    assert "trained" in statuses
    assert statuses <= {"trained", "declined", "unavailable", "late", "busy", "rejected"}
    for row in read_rows(tmp_path / "run"):
        assert (row["reply_seconds"] is None) == (row["status"] in ("unavailable", "busy"))
        assert row["weight"] == 0.0 or row["status"] in ("trained", "rejected")
    assert sum(line["late"] for line in rounds) > 0
    audit = audit_run(tmp_path / "run")
    assert not audit.mismatches
    assert audit.num_rounds == 8


@pytest.mark.slow
def test_a_client_that_misses_the_simulated_deadline_has_failed(tmp_path: Path) -> None:
    """The client is selected again in the next round."""
    overrides = ("engine.quorum=null", "engine.round_timeout=12", *FEDAVG, "rounds=4")
    rounds = run(tmp_path / "run", *overrides)
    assert [line["simulated_seconds"] for line in rounds] == [12.0, 24.0, 36.0, 48.0]
    assert all(line["failed"] > 0 and line["busy"] == line["late"] == 0 for line in rounds)
    failed = [row for row in read_rows(tmp_path / "run") if row["status"] == "failed"]
    assert {row["reason"] for row in failed} == {"no reply in time"}
    assert all(row["reply_seconds"] > 12 for row in failed)
    assert not audit_run(tmp_path / "run").mismatches


def test_a_reply_without_simulated_seconds_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node without simulated response times can be neither early nor late."""
    monkeypatch.setattr(Node, "get_mods", lambda *_: [])
    with pytest.raises(RunError, match=r"^no client trained .* its reply says no simulated sec"):
        run(tmp_path / "run", *FEDAVG, "rounds=2")
    rounds = read_rounds(tmp_path / "run")
    assert [line["rejected"] for line in rounds] == [8]
    assert {row["reason"] for row in read_rows(tmp_path / "run")} == {
        "its reply says no simulated seconds"
    }


def _mark_late_as_busy(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        if row["round"] == 1 and row["status"] == "late":
            row["status"] = "busy"


def _delay_replies(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        if row["round"] == 3 and row["status"] == "trained":
            row["reply_seconds"] += 1000.0


@pytest.mark.parametrize("change", [_mark_late_as_busy, _delay_replies])
def test_the_audit_replays_the_clock(
    tmp_path: Path, change: Callable[[list[dict[str, Any]]], None]
) -> None:
    """It finds a status that does not follow from the simulated seconds."""
    run(tmp_path / "run", *FEDAVG, "rounds=4")
    change_table(tmp_path / "run", "clients", change)
    texts = " ".join(str(problem) for problem in audit_run(tmp_path / "run").mismatches)
    assert "simulated seconds" in texts or "busy" in texts


def test_the_audit_finds_a_changed_clock(tmp_path: Path) -> None:
    """The clock after a round follows from its clients' seconds."""
    run(tmp_path / "run", *FEDAVG, "rounds=4")
    change_round(tmp_path / "run", 3, simulated_seconds=1.0)
    texts = [str(problem) for problem in audit_run(tmp_path / "run").mismatches]
    assert any(text.startswith("round 3: simulated_seconds is 1.0") for text in texts)


@pytest.mark.slow
def test_the_report_draws_simulated_seconds(tmp_path: Path) -> None:
    """Runs with and without a quorum are separate methods, each with its simulated times."""
    for seed in (1, 2):
        run(tmp_path / f"{seed}", "strategy=fedavg", f"seed={seed}")
        run(tmp_path / f"{seed}all", "strategy=fedavg", f"seed={seed}", "engine.quorum=null")
    (experiment,) = build_experiments(group_runs(load_all(tmp_path)))
    assert len(experiment.groups) == 2
    (chart,) = [chart for chart in experiment.charts if chart.name == "time"]
    assert isinstance(chart, LineChart)
    assert [panel.x_label for panel in chart.panels] == ["simulated seconds"] * 3
    ends = {line.label: line.x[-1] for line in chart.panels[0].lines}
    without_quorum = next(value for label, value in ends.items() if "quorum null" in label)
    with_quorum = next(value for label, value in ends.items() if "quorum 0.5" in label)
    assert with_quorum < without_quorum


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (("privacy=dp_fixed_server",), "response_time must be none with privacy=dp_fixed_server"),
        (("engine=flower", "engine.superlink=there"), "response_time must be none with"),
        (("response_time.median=0",), r"response_time\.median must be a number > 0, got 0"),
        (("response_time=trace", "response_time.path=''"), r"response_time\.path must be"),
        (("response_time=slow",), "response_time must be one of"),
    ],
)
def test_invalid_settings_are_refused(overrides: tuple[str, ...], problem: str) -> None:
    """Composing the settings raises an error with the allowed values."""
    with pytest.raises(SettingsError, match=problem):
        compose_overrides((*SLOW, *overrides))


TIMED = ("strategy=fedau", "evaluation.every=null", "evaluation.every_seconds=20")


@pytest.mark.slow
@pytest.mark.parametrize("late", [(), ("engine.late_replies=count",)])
def test_simulated_seconds_end_a_run_and_time_its_evaluations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], late: tuple[str, ...]
) -> None:
    """A run that is stopped and resumed evaluates and ends after the same rounds."""
    every = run(tmp_path / "all", "strategy=fedau", *late, "rounds=40")
    times = [0.0, *(line["simulated_seconds"] for line in every)]
    last = next(t for t, now in enumerate(times) if now >= 50)
    due = [t for t in range(1, last + 1) if times[t] // 20 > times[t - 1] // 20 or t == last]
    assert 1 < len(due) < last < 30
    timed = (*TIMED, *late, "rounds=40", "engine.simulated_seconds=50")
    found = run(
        tmp_path / "run", *timed, "evaluation.finetune_epochs=1", "engine.checkpoint_every=1000"
    )
    assert f"Ended after round {last} of 40 (engine.simulated_seconds=50)" in (
        capsys.readouterr().out
    )
    assert [line["round"] for line in found if line["test"]] == due
    assert load_all(tmp_path / "run")[0].status == "completed"
    assert [line["selected"] for line in found] == [line["selected"] for line in every[:last]]
    assert not audit_run(tmp_path / "run").mismatches
    rows = read_rows(tmp_path / "run", "evaluations")
    assert {row["round"] for row in rows if row["finetuned_epochs"] is not None} == {last}
    # The run ends once: its last checkpoint has nothing left to do.
    again = (*timed, "evaluation.finetune_epochs=1", f"resume={tmp_path / 'run'}")
    assert run(tmp_path / "run", *again) == found
    stopped = (*timed, "evaluation.finetune_epochs=1", "engine.num_supernodes=3")
    run_here(tmp_path / "2", *SLOW, *stopped, f"engine.stop_after_round={last - 1}")
    assert load_all(tmp_path / "2")[0].status == "interrupted"
    assert run(tmp_path / "2", *stopped, f"resume={tmp_path / '2'}") == found
    assert read_model(tmp_path / "2") == read_model(tmp_path / "run")
    longer = run(tmp_path / "run", *again, "engine.simulated_seconds=60")
    assert longer[:last] == found
    assert longer[-1]["simulated_seconds"] >= 60 > longer[-2]["simulated_seconds"]
    assert not audit_run(tmp_path / "run").mismatches


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["response_time=none", "engine.simulated_seconds=50"],
            "engine.simulated_seconds must be null with response_time=none",
        ),
        (
            ["response_time=none", "evaluation.every_seconds=2.5"],
            "evaluation.every_seconds must be null with response_time=none",
        ),
        (
            ["evaluation.every_seconds=20"],
            "evaluation.every must be null or above 1 with evaluation.every_seconds=20",
        ),
    ],
)
def test_settings_of_simulated_seconds_need_their_clock(overrides: list[str], message: str) -> None:
    """Each is refused where it would have no effect."""
    with pytest.raises(SettingsError) as error:
        compose_overrides((*SLOW, *overrides))
    assert str(error.value).startswith(message)
