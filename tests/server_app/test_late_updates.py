"""Test runs in which late updates count, from the settings to the audit."""

from collections.abc import Callable
from math import fsum
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from fedquorum.audit.check import audit_run
from fedquorum.audit.explain import describe_decision
from fedquorum.audit.replay import read_audit_input
from fedquorum.errors import SettingsError
from fedquorum.records.reader import load_run
from fedquorum.report.chart_spec import LineChart
from fedquorum.report.client_status import ClientStatusTable
from fedquorum.report.experiment import build_experiments
from fedquorum.report.seed_groups import group_runs

from tests.builders_runs import (
    COUNTING,
    make_client_overrides,
    read_rounds,
    read_rows,
    run_here,
)
from tests.fedquorum.records.made import change_table

LATE = (
    *make_client_overrides(8, 8),
    *COUNTING,
)


def run(directory: Path, *overrides: str) -> Path:
    return run_here(directory, *LATE, "rounds=8", *overrides)


def read_model(directory: Path) -> bytes:
    return (directory / "model.safetensors").read_bytes()


@pytest.mark.slow
def test_runs_have_the_same_bits_on_any_nodes_and_after_a_resume(tmp_path: Path) -> None:
    """Clients are under way when the run stops; each update counts once, with its staleness."""
    one = run(tmp_path / "1", "availability=bernoulli", "availability.p=0.8")
    rows = read_rows(one)
    assert max(row["staleness"] or 0 for row in rows) > 1
    for row in rows:
        if row["staleness"] is not None:
            assert row["staleness"] == row["round"] - row["start_round"]
            assert row["discount"] == (1.0 + row["staleness"]) ** -0.5
    set_out = {(row["client"], row["start_round"]) for row in rows if row["status"] == "late"}
    arrived = [(r["client"], r["start_round"]) for r in rows if (r["staleness"] or 0) > 0]
    assert len(arrived) == len({*arrived}) > 3
    assert {*arrived} <= set_out
    assert not audit_run(one).mismatches
    stopped = ("availability=bernoulli", "availability.p=0.8", "engine.num_supernodes=3")
    run(tmp_path / "2", *stopped, "engine.stop_after_round=4", "engine.checkpoint_every=1")
    assert any(row["round"] > 4 >= row["start_round"] for row in rows if row["staleness"])
    run(tmp_path / "2", *stopped, f"resume={tmp_path / '2'}")
    assert read_rows(tmp_path / "2") == rows
    assert read_model(tmp_path / "2") == read_model(one)
    assert [line["simulated_seconds"] for line in read_rounds(tmp_path / "2")] == [
        line["simulated_seconds"] for line in read_rounds(one)
    ]
    with pytest.raises(SettingsError, match=r"engine\.staleness_exponent must be 0\.5, as in"):
        run(tmp_path / "2", *stopped, f"resume={tmp_path / '2'}", "engine.staleness_exponent=1")


def _halve_discount(rows: list[dict[str, Any]]) -> None:
    row = next(row for row in rows if row["staleness"])
    row["discount"] /= 2


def _make_newer(rows: list[dict[str, Any]]) -> None:
    row = next(row for row in rows if row["staleness"])
    row["start_round"] += 1


def _delay(rows: list[dict[str, Any]]) -> None:
    row = next(row for row in rows if row["status"] == "late")
    row["reply_seconds"] *= 100


def _arrive(rows: list[dict[str, Any]]) -> None:
    next(row for row in rows if row["status"] == "late")["status"] = "failed"


@pytest.mark.slow
def test_the_audit_replays_late_updates(tmp_path: Path) -> None:
    """It finds another discount, another start, another time and another fate."""
    changes: dict[Callable[[list[dict[str, Any]]], None], str] = {
        _halve_discount: "discount is",
        _make_newer: "start_round is",
        _delay: "by simulated seconds",
        _arrive: "status is failed, but by simulated seconds it is under way",
    }
    directory = run(tmp_path / "run")
    path = directory / "clients" / "part-00000.parquet"
    recorded = path.read_bytes()
    for change, text in changes.items():
        change_table(directory, "clients", change)
        found = " ".join(str(problem) for problem in audit_run(directory).mismatches)
        assert text in found, change
        path.write_bytes(recorded)
    assert not audit_run(directory).mismatches


def test_an_explanation_says_where_an_update_started(tmp_path: Path) -> None:
    """The discount is a separate line; a client under way, and one not drawn, were not asked."""
    recorded = read_audit_input(run(tmp_path / "run"))
    rows = read_rows(tmp_path / "run")
    row = next(row for row in rows if row["staleness"])
    lines = describe_decision(recorded, row["client"], row["round"])
    assert (
        f"asked: in round {row['start_round']}, and it trained from the model of that round"
        in lines
    )
    discounted = f"weight: it started from the model of round {row['start_round']}, s = "
    (line,) = [line for line in lines if line.startswith(discounted)]
    assert line.endswith(f" = {row['weight']:.6g}")
    between = next(r for r in rows if (r["staleness"] or 0) > 1)
    lines = describe_decision(recorded, between["client"], between["round"] - 1)
    assert lines[-1] == "asked: no; it is under way since an earlier round"
    asked = {row["client"] for row in rows if row["round"] == 1}
    (left_out, *_) = {*range(8)} - asked
    lines = describe_decision(recorded, left_out, 1)
    assert lines[-1].endswith("the draw among the free clients left it out (engine.concurrency=6)")


def test_the_page_says_who_is_under_way(tmp_path: Path) -> None:
    """As many clients as the concurrency leaves, each with the round in which it was asked."""
    directory = run(tmp_path / "run")
    table = ClientStatusTable(load_run(directory)).to_text_table("run")
    found = {row[0]: row[1] for row in table.rows if row[1].startswith("under way since round ")}
    last = {row["client"]: row for row in read_rows(directory)}
    expected = {
        str(client): f"under way since round {row['round']}, from model {row['round'] - 1}"
        for client, row in last.items()
        if row["status"] == "late"
    }
    assert found == expected
    assert len(found) == 4


def test_the_report_draws_staleness_and_how_much_each_client_counted(tmp_path: Path) -> None:
    """Medians and sums follow from the rows; a run that discards has the third panel alone."""
    directory = run(tmp_path / "count")
    discarding = ("engine.late_replies=discard", "engine.concurrency=null")
    run(tmp_path / "discard", *discarding)
    runs = [load_run(tmp_path / name) for name in ("count", "discard")]
    (experiment,) = build_experiments(group_runs(runs))
    (chart,) = [chart for chart in experiment.charts if chart.name == "staleness"]
    assert isinstance(chart, LineChart)
    assert [len(panel.lines) for panel in chart.panels] == [1, 1, 2]
    rows = read_rows(directory)
    by_round: dict[int, list[int]] = {}
    for row in rows:
        if row["staleness"] is not None:
            by_round.setdefault(row["round"], []).append(row["staleness"])
    medians = {t: median(values) for t, values in by_round.items()}
    largest = {t: max(values) for t, values in by_round.items()}
    for panel, expected in zip(chart.panels, (medians, largest), strict=False):
        (line,) = panel.lines
        assert dict(zip(line.x, line.y, strict=True)) == expected
    label = chart.panels[0].lines[0].label
    (cloud,) = [line for line in chart.panels[2].lines if line.label == label]
    seconds = {(row["client"], row["start_round"]): row["reply_seconds"] for row in rows}
    weights = [fsum(r["weight"] or 0 for r in rows if r["client"] == k) for k in range(8)]
    assert cloud.x.tolist() == [
        median(s for (client, _), s in seconds.items() if client == k) for k in range(8)
    ]
    assert cloud.y.tolist() == pytest.approx([8 * weight / fsum(weights) for weight in weights])


def test_nobody_late_is_the_run_without_late_updates(tmp_path: Path) -> None:
    """And only runs in which late updates count have their columns on disk."""
    overrides = ("engine.quorum=null", "engine.concurrency=null", "rounds=4")
    late = run(tmp_path / "late", *overrides)
    today = run(tmp_path / "today", *overrides, "engine.late_replies=discard")
    assert read_model(late) == read_model(today)
    names = ("start_round", "staleness", "discount")
    assert not {*names} & {*read_rows(today)[0]}
    assert [{k: v for k, v in r.items() if k not in names} for r in read_rows(late)] == read_rows(
        today
    )


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["engine.late_replies=maybe"], "engine.late_replies must be one of discard, count"),
        (
            ["response_time=none"],
            "engine.late_replies must be discard with engine=in-process and response_time=none",
        ),
        (
            ["response_time=none", "privacy=dp_fixed_server"],
            "engine.late_replies must be discard with privacy=dp_fixed_server",
        ),
        (["engine.quorum=7"], "engine.quorum must be at most 6, engine.concurrency"),
        (["engine.concurrency=9"], "engine.concurrency must be at most 8, the number of clients"),
        (["engine.quorum_clients=priority"], "engine.quorum_clients must be asked with engine.lat"),
        (["strategy.fraction=0.5"], "engine.concurrency must be null with a fraction below 1"),
        (["strategy=qfedavg"], "engine.late_replies must be discard with qfedavg"),
        (["strategy=fedawe"], "engine.late_replies must be discard with fedawe"),
        (["strategy=known_statistics"], "strategy.probabilities must be the rates of counting"),
        (["engine.late_replies=discard"], "engine.concurrency must be null with engine.late_repl"),
    ],
)
def test_contradictory_settings_are_refused(
    tmp_path: Path, overrides: list[str], message: str
) -> None:
    """One line names the setting, what it may be, and the reason."""
    with pytest.raises(SettingsError) as error:
        run(tmp_path / "run", *overrides)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


def test_a_correction_without_discount_and_with_full_steps_is_doubted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a smaller server's learning rate, or with the discount, it is not."""
    run(tmp_path / "1", "engine.staleness_exponent=0", "rounds=1")
    assert "Doubtful: engine.staleness_exponent=0 with a correction" in capsys.readouterr().out
    run(tmp_path / "2", "engine.staleness_exponent=0", "strategy.server_lr=0.3", "rounds=1")
    assert "Doubtful" not in capsys.readouterr().out
