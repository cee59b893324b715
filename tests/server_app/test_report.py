"""The report: what is read from the records, what is averaged, and what a user sees."""

import csv
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conf import compose
from conf.errors import RunError
from server_app.records import RunRecords, round_record
from server_app.report.command_line import main
from server_app.report.figures import training_figure
from server_app.report.groups import Statistic, group_runs, metric_after_round
from server_app.report.runs import Run, find_runs, load_run
from server_app.report.tables import summarize, terminal_table
from strategies.report import ClientDecision, ClientEvaluation, TrainReport
from strategies.types import Call, GlobalMeasure

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def line(number: int, **changes: Any) -> dict[str, Any]:
    """Return a line of rounds.jsonl, as it is read by ``json``."""
    fields = {
        "round": number,
        "epsilon": 0.2,
        "global_loss": 1.0,
        "global_accuracy": 0.5,
        "asked": 4,
        "trained": 3,
        "silent": 1,
        "unavailable": 0,
        "rejected": 0,
        "failed": 0,
        "admitted": 3,
        "bytes_down": 10,
        "bytes_up": 20,
        "seconds": 0.1,
        "inclusion_mass": 0.25,
        "theta": 0.8,
        "test": accuracy(0.5),
    }
    return fields | changes


def accuracy(priority: float | None, everyone: float | None = 0.25) -> dict[str, Any]:
    """Return the field ``test``; the worst client is half as accurate as all together."""
    return {
        group: None if value is None else {"loss": 1.0, "accuracy": value, "worst": value / 2}
        for group, value in (("priority", priority), ("all", everyone))
    }


def make_run(
    directory: Path,
    lines: Sequence[Mapping[str, Any]],
    *,
    seed: int = 1,
    settings: str = "client:\n  lr: 0.1\n",
    **manifest: str,
) -> Path:
    directory.mkdir(parents=True)
    fields = {
        "status": "completed",
        "experiment": "fedalign/synth_low",
        "strategy": "fedalign",
        "started": "2026-01-01T00:00:00+00:00",
        "overrides": [],
    }
    (directory / "manifest.json").write_text(json.dumps({**fields, **manifest, "seed": seed}))
    (directory / "config.yaml").write_text(f"{settings}seed: {seed}\n")
    (directory / "rounds.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    return directory


def load_all(directory: Path) -> list[Run]:
    return [load_run(found) for found in find_runs([directory])]


def table_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


# --- reading -----------------------------------------------------------------------------------


def test_reads_what_run_records_writes(tmp_path: Path) -> None:
    """A run comes back as it was recorded, with an infinite epsilon and an unmeasured loss."""
    decisions = (ClientDecision(0, True, "trained", None, 10, 1.0, 0.5, weight=1.0),)
    evaluations = (ClientEvaluation(0, 1.0, 10, 1.0, 0.5, 4, 2.0, 0.75),)
    records = []
    composed = compose("fedalign/synth_low", "seed=7 client.lr=0.05")
    with RunRecords(tmp_path / "run", composed, engine="in-process") as writer:
        for number, loss, measured in ((1, 1.25, evaluations), (2, math.nan, ())):
            made = TrainReport(
                number, Call((0,), math.inf), GlobalMeasure(loss, 0.5), decisions, None
            )
            record = round_record(
                made,
                measured,
                bytes_down=5,
                bytes_up=7,
                seconds=0.5,
                state_bytes=24,
                rates=None,
                metric="accuracy",
                all_evaluated=False,
            )
            records.append(record)
            writer.add_round(record, made, measured)
    run = load_run(tmp_path / "run")
    assert (run.status, run.experiment, run.strategy) == (
        "completed",
        "fedalign/synth_low",
        "fedalign",
    )
    assert (run.seed, run.settings["client.lr"]) == (7, 0.05)
    assert run.rounds[0] == records[0]
    assert math.isnan(run.rounds[1].global_loss)
    assert (run.rounds[1].epsilon, run.rounds[1].test) == (math.inf, None)


def test_finds_runs_at_any_depth_once(tmp_path: Path) -> None:
    """Runs are found below the folders given, not below a run, and not twice."""
    one = make_run(tmp_path / "a" / "deep" / "one", [])
    two = make_run(tmp_path / "two", [])
    make_run(two / "inside", [])
    assert find_runs([tmp_path, one]) == (one, two)


@pytest.mark.parametrize("torn", ['{"round": 3, "epsi', "{", '{"round": 3'])
def test_a_torn_last_line_is_ignored(tmp_path: Path, torn: str) -> None:
    """What an interrupted process wrote half is left out, the rounds before it are kept."""
    run = make_run(tmp_path / "run", [line(1), line(2)], status="interrupted")
    with (run / "rounds.jsonl").open("a") as file:
        file.write(torn)
    assert [record.round for record in load_run(run).rounds] == [1, 2]


def test_a_last_line_without_line_end_counts_if_it_is_whole(tmp_path: Path) -> None:
    """An editor that drops the last line end drops no round."""
    run = make_run(tmp_path / "run", [line(1), line(2)])
    text = (run / "rounds.jsonl").read_text()
    (run / "rounds.jsonl").write_text(text.rstrip("\n"))
    assert [record.round for record in load_run(run).rounds] == [1, 2]


@pytest.mark.parametrize(
    ("damaged", "problem"),
    [
        ('{"round": 2, "epsi', "expected one round as a JSON object, got something else"),
        ("[2]", r"a record must be a JSON object, got \[2\]"),
        (json.dumps({"round": 2}), "asked is missing"),
        (json.dumps(line(2, trained=-1)), "trained must be a whole number >= 0, got -1"),
        (json.dumps(line(2, theta="much")), "theta must be a number, null or inf, got 'much'"),
        (json.dumps(line(2, test={"all": {"accuracy": 1}})), "worst is missing"),
    ],
)
def test_a_damaged_line_is_named(tmp_path: Path, damaged: str, problem: str) -> None:
    """A whole line that is no round is refused with file, line number and what is wrong."""
    run = make_run(tmp_path / "run", [line(1)])
    with (run / "rounds.jsonl").open("a") as file:
        file.write(damaged + "\n" + json.dumps(line(3)) + "\n")
    with pytest.raises(RunError, match=rf"run/rounds\.jsonl, line 2: {problem}"):
        load_run(run)


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("manifest.json", '{\n"status": }', r"manifest\.json, line 2: expected JSON"),
        ("manifest.json", "{}", r"manifest\.json: experiment is missing"),
        ("config.yaml", "a: 1\nb: [", r"config\.yaml, line \d: expected YAML"),
        ("config.yaml", "- 1\n", r"config\.yaml: expected settings by name, got list"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, name: str, text: str, problem: str) -> None:
    """Manifest and settings are checked like the rounds."""
    run = make_run(tmp_path / "run", [line(1)])
    (run / name).write_text(text)
    with pytest.raises(RunError, match=problem):
        load_run(run)


def test_an_unknown_status_is_refused(tmp_path: Path) -> None:
    """A status is one of the four that runs have."""
    run = make_run(tmp_path / "run", [], status="done")
    with pytest.raises(RunError, match=r"status must be one of completed, .*, got 'done'"):
        load_run(run)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """A run without its rounds is an error that names the file."""
    run = make_run(tmp_path / "run", [])
    (run / "rounds.jsonl").unlink()
    with pytest.raises(RunError, match=r"expected a file of a run, got .*rounds\.jsonl"):
        load_run(run)


# --- averaging ---------------------------------------------------------------------------------


def test_mean_and_sample_deviation_over_seeds(tmp_path: Path) -> None:
    """0.5, 0.6 and 0.7 have mean 0.6 and standard deviation sqrt(0.02 / 2) = 0.1."""
    for seed, value in ((1, 0.5), (2, 0.6), (3, 0.7)):
        make_run(
            tmp_path / str(seed),
            [
                line(1, admitted=1, theta=1.0, global_loss=2.0 + value, test=accuracy(0.1)),
                line(2, admitted=3, theta=0.5, test=accuracy(value)),
            ],
            seed=seed,
        )
    (group,) = group_runs(load_all(tmp_path))
    (row,) = summarize([group])
    priority = row.test_accuracy["priority"]
    assert priority is not None
    assert (priority.mean, priority.sd) == pytest.approx((0.6, 0.1))
    worst = row.worst_client["priority"]
    assert worst is not None
    assert (worst.mean, worst.sd) == pytest.approx((0.3, 0.05))
    assert row.test_accuracy["all"] == Statistic(0.25, 0.0)
    assert (row.admitted, row.theta) == (Statistic(2.0, 0.0), Statistic(0.75, 0.0))
    assert (row.seeds, row.rounds) == ((1, 2, 3), (2, 2))
    curve = group.curve(lambda record: record.global_loss)
    assert curve.rounds == (1, 2)
    assert curve.statistics[0].mean == pytest.approx(2.6)
    assert curve.statistics[0].sd == pytest.approx(0.1)


def test_one_seed_has_no_deviation(tmp_path: Path) -> None:
    """The standard deviation of one value is not 0 but unknown."""
    make_run(tmp_path / "run", [line(1)])
    (row,) = summarize(group_runs(load_all(tmp_path)))
    assert row.test_accuracy["priority"] == Statistic(0.5, None)


def test_strategies_and_settings_are_kept_apart(tmp_path: Path) -> None:
    """Only seed, engine and device may differ in a group; what tells two apart is its name."""
    make_run(tmp_path / "a", [line(1)], seed=1, settings="lr: 0.1\nengine: {name: flower}\n")
    make_run(tmp_path / "b", [line(1)], seed=2, settings="lr: 0.1\nengine: {name: in-process}\n")
    make_run(tmp_path / "c", [line(1)], seed=1, settings="lr: 0.2\n")
    make_run(tmp_path / "d", [line(1)], seed=1, settings="lr: 0.1\n", strategy="fedavg")
    groups = group_runs(load_all(tmp_path))
    assert [(group.label, len(group.runs)) for group in groups] == [
        ("fedalign/synth_low, fedalign (lr=0.1)", 2),
        ("fedalign/synth_low, fedalign (lr=0.2)", 1),
        ("fedalign/synth_low, fedavg", 1),
    ]


def test_each_seed_counts_once_and_completed_runs_come_first(tmp_path: Path) -> None:
    """Of two runs with one seed the later counts; an unfinished run is shown, not averaged."""
    old, new = "2026-01-01T00:00:00+00:00", "2026-01-02T00:00:00+00:00"
    make_run(tmp_path / "a", [line(1, test=accuracy(0.9))], seed=1, started=new)
    make_run(tmp_path / "b", [line(1, test=accuracy(0.1))], seed=1, started=old)
    make_run(tmp_path / "c", [line(1, test=accuracy(0.3))], seed=2, status="interrupted")
    (row,) = summarize(group_runs(load_all(tmp_path)))
    assert row.statuses == {"completed": 2, "interrupted": 1}
    assert row.seeds == (1,)
    assert row.test_accuracy["priority"] == Statistic(0.9, None)


def test_without_a_completed_run_the_unfinished_ones_count(tmp_path: Path) -> None:
    """A report of running or interrupted runs is not empty, and says how far they are."""
    make_run(tmp_path / "a", [line(1), line(2)], seed=1, status="running")
    make_run(tmp_path / "b", [line(1)], seed=2, status="interrupted")
    make_run(tmp_path / "c", [], seed=3, status="failed")
    (row,) = summarize(group_runs(load_all(tmp_path)))
    assert (row.seeds, row.rounds) == ((1, 2), (1, 2))


def test_null_values_are_left_out(tmp_path: Path) -> None:
    """Rounds that were not evaluated are no points, and the last that was is the final one."""
    make_run(
        tmp_path / "run",
        [
            line(1, test=accuracy(0.4, None), theta=None),
            line(2, test=accuracy(0.6, None), global_loss=None),
            line(3, test=None, epsilon="inf", global_loss="inf", theta=0.5),
        ],
    )
    (group,) = group_runs(load_all(tmp_path))
    (row,) = summarize([group])
    assert row.test_accuracy == {
        "priority": Statistic(0.6, None),
        "non_priority": None,
        "all": None,
    }
    theta = row.theta
    assert theta is not None
    assert theta.mean == pytest.approx((0.8 + 0.5) / 2)
    curve = group.curve(lambda record: metric_after_round(record, "priority", "accuracy"))
    assert curve.rounds == (1, 2)
    assert group.curve(lambda record: record.global_loss).rounds == (1,)


def test_a_curve_has_only_rounds_that_every_seed_has(tmp_path: Path) -> None:
    """A mean over fewer seeds is not drawn."""
    make_run(tmp_path / "a", [line(1), line(2), line(3)], seed=1)
    make_run(tmp_path / "b", [line(1), line(2, global_loss=None)], seed=2)
    (group,) = group_runs(load_all(tmp_path))
    assert group.curve(lambda record: record.global_loss).rounds == (1,)


# --- what the user sees ------------------------------------------------------------------------


def test_figure_has_a_line_per_group_and_a_band_for_several_seeds(tmp_path: Path) -> None:
    """Left percent, right the loss; the band is where seeds differ, in one group of two."""
    for seed, value in ((1, 0.5), (2, 0.7)):
        rounds = [line(n, test=accuracy(value), global_loss=value) for n in (1, 2)]
        make_run(tmp_path / str(seed), rounds, seed=seed)
    make_run(tmp_path / "other", [line(1), line(2)], strategy="fedavg")
    figure = training_figure(group_runs(load_all(tmp_path)))
    left, right = figure.axes
    drawn = [np.asarray(curve.get_ydata(), dtype=np.float64) for curve in left.lines]
    np.testing.assert_allclose(drawn, [[60, 60], [50, 50]])
    assert (len(left.collections), len(right.collections)) == (1, 1)
    assert "%" in left.get_ylabel()
    assert left.get_xlabel() == right.get_xlabel() == "round"
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [
        "fedalign/synth_low, fedalign",
        "fedalign/synth_low, fedavg",
    ]


def test_figure_shows_non_priority_clients_where_measured(tmp_path: Path) -> None:
    """A panel of their test accuracy stands between the priority clients' and the loss."""
    test = accuracy(0.5)
    test["non_priority"] = {"accuracy": 0.25, "worst": 0.1}
    make_run(tmp_path / "run", [line(1, test=test), line(2, test=test)])
    _, middle, right = training_figure(group_runs(load_all(tmp_path))).axes
    np.testing.assert_allclose(np.asarray(middle.lines[0].get_ydata(), dtype=np.float64), [25, 25])
    assert "non-priority" in middle.get_ylabel()
    assert "loss" in right.get_ylabel()


def test_writes_table_and_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command prints the table and absolute paths, and the files hold what they should."""
    for seed, value in ((1, 0.5), (2, 0.7)):
        make_run(tmp_path / "runs" / str(seed), [line(1, test=accuracy(value))], seed=seed)
    output = tmp_path / "made" / "here"
    assert main([str(tmp_path / "runs"), "--output", str(output)]) == 0
    printed = capsys.readouterr().out
    assert "60.0 ± 14.1" in printed
    for name in ("table.csv", "figure.png", "figure.svg"):
        assert str(output / name) in printed.splitlines()
    assert (output / "figure.png").read_bytes().startswith(PNG_SIGNATURE)
    assert "</svg>" in (output / "figure.svg").read_text()
    (row,) = table_csv(output / "table.csv")
    assert (row["strategy"], row["runs"], row["completed"], row["failed"]) == (
        "fedalign",
        "2",
        "2",
        "0",
    )
    assert float(row["test_accuracy_priority_mean"]) == pytest.approx(0.6)
    assert float(row["test_accuracy_priority_sd"]) == pytest.approx(math.sqrt(0.02))


def test_the_same_runs_give_the_same_files(tmp_path: Path) -> None:
    """A report made again differs in no byte, so that it can be kept under version control."""
    run = make_run(tmp_path / "run", [line(1), line(2)])
    for name in ("one", "two"):
        main([str(run), "--output", str(tmp_path / name)])
    for name in ("table.csv", "figure.png", "figure.svg"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_a_run_without_rounds_is_reported(tmp_path: Path) -> None:
    """A run that failed in its first round is a row with its status and no numbers."""
    make_run(tmp_path / "run", [], status="failed")
    assert main([str(tmp_path / "run"), "--output", str(tmp_path)]) == 0
    (row,) = table_csv(tmp_path / "table.csv")
    assert (row["failed"], row["seeds"], row["rounds_max"]) == ("1", "0", "0")
    assert row["test_accuracy_priority_mean"] == ""


def test_settings_with_brackets_are_not_markup(tmp_path: Path) -> None:
    """A list in a setting is printed as it is, not read as a style."""
    for name in ("red", "blue"):
        make_run(tmp_path / name, [line(1)], settings=f"drop: '[{name}]'\n")
    table = terminal_table(summarize(group_runs(load_all(tmp_path))))
    cells = list(table.columns[0].cells)
    assert cells == [
        "fedalign/synth_low\nfedalign\ndrop=\\[blue]",
        "fedalign/synth_low\nfedalign\ndrop=\\[red]",
    ]


@pytest.mark.parametrize("name", ["empty", "missing"])
def test_no_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    """Without a run the status is 1, and one line says what was expected and given."""
    (tmp_path / "empty").mkdir()
    assert main([str(tmp_path / name), "--output", str(tmp_path / "report")]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert len(printed.err.splitlines()) == 1
    assert printed.err.startswith("fedquorum-report: expected a folder")
    assert str(tmp_path / name) in printed.err
    assert not (tmp_path / "report").exists()


def test_an_output_that_is_a_file_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where nothing can be written, one line names the option and the path."""
    run = make_run(tmp_path / "run", [line(1)])
    (tmp_path / "file").write_text("")
    assert main([str(run), "--output", str(tmp_path / "file")]) == 1
    error = capsys.readouterr().err
    assert error.startswith("fedquorum-report: --output must be a folder to write to, got")
    assert len(error.splitlines()) == 1
