"""Tests of the report: reading records, averaging, and the user's view."""

import csv
import math
import re
from pathlib import Path

import pytest
from fedquorum import FedAvg
from fedquorum.flower.codec import encode_arrays
from fedquorum.records import provenance
from fedquorum.report import matplotlib_charts
from fedquorum.report.chart_spec import Chart, LineChart
from fedquorum.report.cli import main
from fedquorum.report.experiment import build_experiments
from fedquorum.report.final_metrics import get_last_test_metric
from fedquorum.report.matplotlib_charts import draw_figure
from fedquorum.report.page import render_report_page
from fedquorum.report.seed_groups import (
    Statistic,
    format_mean_sd,
    get_test_metric,
    group_runs,
    subtract_by_seed,
)
from fedquorum.report.tables import build_overview_table, summarize_groups
from matplotlib.figure import Figure

from tests.builders_flower import MODEL, make_grid, make_standard_app
from tests.builders_runs import make_client_overrides, run_here
from tests.fedquorum.records.made import (
    load_all,
    make_accuracy,
    make_round_line,
    make_run,
    write_table,
)
from tests.server_app.pages import read_page_text
from tests.snapshot import Snapshot

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def read_csv_rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


# --- averaging ---------------------------------------------------------------------------------


def test_mean_and_sample_deviation_over_seeds(tmp_path: Path) -> None:
    """0.5, 0.6 and 0.7 have mean 0.6 and standard deviation sqrt(0.02 / 2) = 0.1."""
    for seed, value in ((1, 0.5), (2, 0.6), (3, 0.7)):
        make_run(
            tmp_path / str(seed),
            [
                make_round_line(
                    1, admitted=1, theta=1.0, global_loss=2.0 + value, test=make_accuracy(0.1)
                ),
                make_round_line(2, admitted=3, theta=0.5, test=make_accuracy(value)),
            ],
            seed=seed,
        )
    (group,) = group_runs(load_all(tmp_path))
    priority, others, all_clients = summarize_groups([group])
    assert others.clients == "non_priority"
    assert (priority.clients, all_clients.clients) == ("priority", "all")
    for name, mean, sd in (("test", 0.6, 0.1), ("worst", 0.3, 0.05)):
        found = priority.compute_statistic(name)
        assert found is not None
        assert (found.mean, found.sd) == pytest.approx((mean, sd))
    assert all_clients.compute_statistic("test") == Statistic(0.25, 0.0)
    assert priority.compute_statistic("admitted") == Statistic(2.0, 0.0)
    assert priority.compute_statistic("theta") == Statistic(0.75, 0.0)
    assert (sorted(priority.by_seed), priority.rounds) == ([1, 2, 3], (2, 2))
    curve = group.compute_curve(lambda record: record.global_loss)
    assert curve.rounds == (1, 2)
    assert curve.statistics[0].mean == pytest.approx(2.6)
    assert curve.statistics[0].sd == pytest.approx(0.1)


def test_one_seed_has_no_deviation(tmp_path: Path) -> None:
    """The standard deviation of one value is undefined, not 0."""
    make_run(tmp_path / "run", [make_round_line(1)])
    row, *_ = summarize_groups(group_runs(load_all(tmp_path)))
    assert row.compute_statistic("test") == Statistic(0.5, None)


def test_strategies_and_settings_are_kept_apart(tmp_path: Path) -> None:
    """Only seed, engine and device may differ in a group; a variant's name has the difference."""
    make_run(
        tmp_path / "a", [make_round_line(1)], seed=1, settings="lr: 0.1\nengine: {name: flower}\n"
    )
    make_run(
        tmp_path / "b",
        [make_round_line(1)],
        seed=2,
        settings="lr: 0.1\nengine: {name: in-process}\n",
    )
    resumed = "lr: 0.1\nresume: /elsewhere\nclient: {batching: sequential}\n"
    make_run(tmp_path / "resumed", [make_round_line(1)], seed=3, settings=resumed)
    make_run(tmp_path / "c", [make_round_line(1)], seed=1, settings="lr: 0.2\n")
    make_run(tmp_path / "d", [make_round_line(1)], seed=1, settings="lr: 0.1\n", strategy="fedavg")
    groups = group_runs(load_all(tmp_path))
    assert [(group.label, len(group.runs)) for group in groups] == [
        ("fedalign/synth_low, fedalign (lr=0.1)", 3),
        ("fedalign/synth_low, fedalign (lr=0.2)", 1),
        ("fedalign/synth_low, fedavg", 1),
    ]


def test_each_seed_counts_once_and_completed_runs_come_first(tmp_path: Path) -> None:
    """Of two runs with one seed, the later counts; an unfinished run is listed, not averaged."""
    old, new = "2026-01-01T00:00:00+00:00", "2026-01-02T00:00:00+00:00"
    make_run(tmp_path / "a", [make_round_line(1, test=make_accuracy(0.9))], seed=1, started=new)
    make_run(tmp_path / "b", [make_round_line(1, test=make_accuracy(0.1))], seed=1, started=old)
    make_run(
        tmp_path / "c", [make_round_line(1, test=make_accuracy(0.3))], seed=2, status="interrupted"
    )
    row, *_ = summarize_groups(group_runs(load_all(tmp_path)))
    assert row.statuses == {"completed": 2, "interrupted": 1}
    assert list(row.by_seed) == [1]
    assert row.compute_statistic("test") == Statistic(0.9, None)


def test_without_a_completed_run_the_unfinished_ones_count(tmp_path: Path) -> None:
    """A report of running or interrupted runs has numbers and their progress."""
    make_run(tmp_path / "a", [make_round_line(1), make_round_line(2)], seed=1, status="running")
    make_run(tmp_path / "b", [make_round_line(1)], seed=2, status="interrupted")
    make_run(tmp_path / "c", [], seed=3, status="failed")
    row, *_ = summarize_groups(group_runs(load_all(tmp_path)))
    assert (list(row.by_seed), row.rounds) == ([1, 2], (1, 2))
    assert row.group.unfinished_statuses == "interrupted, running"


def test_null_values_are_left_out(tmp_path: Path) -> None:
    """Rounds without evaluation are no points; the last evaluated round is the final one."""
    make_run(
        tmp_path / "run",
        [
            make_round_line(1, test=make_accuracy(0.4, None), theta=None),
            make_round_line(2, test=make_accuracy(0.6, None), global_loss=None),
            make_round_line(3, test=None, epsilon="inf", global_loss="inf", theta=0.5),
        ],
    )
    (group,) = group_runs(load_all(tmp_path))
    (row,) = summarize_groups([group])
    assert row.clients == "priority"
    assert row.compute_statistic("test") == Statistic(0.6, None)
    assert row.compute_statistic("gini") is None
    theta = row.compute_statistic("theta")
    assert theta is not None
    assert theta.mean == pytest.approx((0.8 + 0.5) / 2)
    curve = group.compute_curve(lambda record: get_test_metric(record, "priority", "accuracy"))
    assert curve.rounds == (1, 2)
    assert group.compute_curve(lambda record: record.global_loss).rounds == (1,)


def test_a_curve_has_only_rounds_that_every_seed_has(tmp_path: Path) -> None:
    """Means over fewer seeds are left out."""
    make_run(tmp_path / "a", [make_round_line(1), make_round_line(2), make_round_line(3)], seed=1)
    make_run(tmp_path / "b", [make_round_line(1), make_round_line(2, global_loss=None)], seed=2)
    (group,) = group_runs(load_all(tmp_path))
    assert group.compute_curve(lambda record: record.global_loss).rounds == (1,)


def test_only_common_seeds_are_paired(tmp_path: Path) -> None:
    """Seeds of only one group are left out."""
    for strategy, values in (("fedau", {1: 0.5, 2: 0.7, 3: 0.9}), ("mifa", {2: 0.4, 3: 1.0, 4: 0})):
        for seed, value in values.items():
            rounds = [make_round_line(1, global_loss=value)]
            make_run(tmp_path / strategy / str(seed), rounds, seed=seed, strategy=strategy)
    one, other = group_runs(load_all(tmp_path))
    gaps = subtract_by_seed(one, other, lambda run: run.rounds[-1].global_loss)
    assert gaps == pytest.approx([0.3, -0.1])
    assert format_mean_sd(gaps) == "0.10 ± 0.28"
    assert format_mean_sd([math.nan]) == "-"
    assert format_mean_sd([1.0], digits=1) == "1.0"


def test_values_of_settings_are_in_their_order(tmp_path: Path) -> None:
    """2 is before 10 and inf last, as in the papers' figures; integers have no decimal point."""
    for name, cutoff in (("a", "10.0"), ("b", "inf"), ("c", "2.0")):
        settings = f"strategy:\n  cutoff: {cutoff.replace('inf', '.inf')}\n"
        make_run(tmp_path / name, [make_round_line(1)], settings=settings, strategy="fedau")
    assert [group.method_name for group in group_runs(load_all(tmp_path))] == [
        "fedau (cutoff=2)",
        "fedau (cutoff=10)",
        "fedau (cutoff=inf)",
    ]


def test_settings_that_change_no_result_make_no_group(tmp_path: Path) -> None:
    """Retained memory does not; the number of threads rounds products differently."""
    for seed, setting in enumerate(
        ("retain_memory: true", "retain_memory: false", "threads_per_op: 2")
    ):
        threads = "" if "threads_per_op" in setting else "  threads_per_op: 1\n"
        settings = f"client:\n  lr: 0.1\n  {setting}\n{threads}"
        make_run(tmp_path / str(seed), [make_round_line(1)], settings=settings, seed=seed)
    groups = {group.method_name: len(group.runs) for group in group_runs(load_all(tmp_path))}
    assert groups == {
        "fedalign (client.threads_per_op=1)": 2,
        "fedalign (client.threads_per_op=2)": 1,
    }


def test_what_an_option_implies_is_not_in_a_name(tmp_path: Path) -> None:
    """Cyclic availability implies a period: it distinguishes runs only if both have one."""
    for name, process in (
        ("a", "name: bernoulli\n  p: 0.1"),
        ("b", "name: cyclic\n  p: 0.1\n  period: 100"),
        ("c", "name: cyclic\n  p: 0.1\n  period: 50"),
    ):
        make_run(tmp_path / name, [make_round_line(1)], settings=f"availability:\n  {process}\n")
    methods = {group.method_name for group in group_runs(load_all(tmp_path))}
    assert methods == {
        "fedalign (bernoulli)",
        "fedalign (cyclic, availability.period=50)",
        "fedalign (cyclic, availability.period=100)",
    }


# --- the user's view ---------------------------------------------------------------------------


def test_the_page_of_two_methods(tmp_path: Path, snapshot: Snapshot) -> None:
    """Two methods with two seeds, and incomplete runs of every status."""
    statuses = ["completed", "completed", "interrupted", "running", "failed"]
    for name, ahead in (("fedavg", 0.0), ("fedalign", 0.1)):
        settings = f"rounds: 2\ndata:\n  name: synth\nstrategy:\n  name: {name}\n"
        for seed, status in enumerate(statuses if name == "fedalign" else statuses[:2], start=1):
            manifest = {"strategy": name, "rounds": 2, "status": status}
            if status == "failed":
                manifest["error"] = "ValueError: <no>"
            rounds = [make_round_line(n, test=make_accuracy(ahead + 0.1 * seed)) for n in (1, 2)]
            run = tmp_path / name / str(seed)
            make_run(run, rounds[: 1 + (seed < 3)], seed=seed, settings=settings, **manifest)
    experiments = build_experiments(group_runs(load_all(tmp_path)))
    text = read_page_text(render_report_page(experiments, {}, ("an unreadable record",)))
    snapshot("report/page.txt", text.replace(str(tmp_path), "runs"))


@pytest.mark.slow
def test_writes_page_tables_and_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command prints the table and absolute paths, and the files have the numbers."""
    for seed, value in ((1, 0.5), (2, 0.7)):
        make_run(
            tmp_path / "runs" / str(seed),
            [make_round_line(1, test=make_accuracy(value))],
            seed=seed,
        )
    output = tmp_path / "made" / "here"
    assert main([str(tmp_path / "runs"), "--output", str(output)]) == 0
    printed = capsys.readouterr()
    assert "60.00 ± 14.14" in printed.out
    assert printed.err == ""
    for name in ("report.html", "table.csv", "differences.csv", "tables.md", "tables.tex"):
        assert str(output / name) in printed.out.splitlines()
        assert (output / name).is_file()
    figures = output / "figures"
    for chart in ("training", "admission", "costs"):
        png = figures / f"fedalign-synth-low_{chart}.png"
        assert png.read_bytes().startswith(PNG_SIGNATURE)
        assert "</svg>" in png.with_suffix(".svg").read_text()
    row, *others = read_csv_rows(output / "table.csv")
    assert [row["clients"], *(o["clients"] for o in others)] == ["priority", "non_priority", "all"]
    assert (row["strategy"], row["runs"], row["completed"], row["failed"]) == (
        "fedalign",
        "2",
        "2",
        "0",
    )
    assert float(row["test_mean"]) == pytest.approx(0.6)
    assert float(row["test_sd"]) == pytest.approx(math.sqrt(0.02))


@pytest.mark.slow
def test_the_same_runs_give_the_same_files(tmp_path: Path) -> None:
    """A repeated report is identical, so that it can be under version control."""
    run = make_run(tmp_path / "run", [make_round_line(1), make_round_line(2)])
    for name in ("one", "two"):
        main([str(run), "--output", str(tmp_path / name)])
    files = [path for path in (tmp_path / "one").rglob("*") if path.is_file()]
    assert len(files) == 5 + 2 * 3
    for path in files:
        other = tmp_path / "two" / path.relative_to(tmp_path / "one")
        assert path.read_bytes() == other.read_bytes(), path


def test_a_run_without_rounds_is_reported(tmp_path: Path) -> None:
    """A run that failed in its first round is a row with its status and no numbers."""
    make_run(tmp_path / "run", [], status="failed", error="ValueError: <no>", rounds=7)
    assert main([str(tmp_path / "run"), "--output", str(tmp_path)]) == 0
    (row,) = read_csv_rows(tmp_path / "table.csv")
    assert (row["failed"], row["seeds"], row["rounds_max"]) == ("1", "0", "0")
    assert row["test_mean"] == ""
    text = read_page_text((tmp_path / "report.html").read_text())
    assert "failed, 0 of 7 rounds" in text
    assert "(ValueError: <no>)" in text


@pytest.mark.usefixtures("blank_figures")
def test_damaged_runs_are_excluded_and_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each has one line, also on the page; another program's folder does not stop the report."""
    make_run(tmp_path / "runs" / "good", [make_round_line(1)])
    torn = make_run(tmp_path / "runs" / "torn", [make_round_line(1)])
    (torn / "clients").mkdir()
    (torn / "clients" / "part-00000.parquet").write_bytes(b"PAR1 and no more")
    (torn / "clients" / "part-00001.part").write_bytes(b"never finished")
    foreign = tmp_path / "runs" / "foreign"
    foreign.mkdir()
    (foreign / "manifest.json").write_text('{"name": "an app of the web"}')
    assert main([str(tmp_path / "runs"), "--output", str(tmp_path / "report")]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert lines[0] == f"fedquorum-report: left out: {foreign}/manifest.json: format is missing"
    part = torn / "clients" / "part-00000.parquet"
    assert lines[1].startswith(f"fedquorum-report: left out: {part}: ")
    text = read_page_text((tmp_path / "report" / "report.html").read_text())
    assert f"{foreign}/manifest.json: format is missing" in text
    (row,) = {row["runs"] for row in read_csv_rows(tmp_path / "report" / "table.csv")}
    assert row == "1"


def test_damaged_runs_alone_are_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a readable run the status is 1, after a line for each."""
    run = make_run(tmp_path / "run", [make_round_line(1)])
    (run / "config.yaml").unlink()
    assert main([str(run), "--output", str(tmp_path / "report")]) == 1
    first, last = capsys.readouterr().err.splitlines()
    assert first.startswith("fedquorum-report: left out: expected a file of a run, got")
    assert last == "fedquorum-report: expected a run that can be read, got none"
    assert not (tmp_path / "report").exists()


def test_an_incomplete_part_of_a_table_is_ignored(tmp_path: Path) -> None:
    """A killed process leaves an unfinished file .part: the rows before it are read."""
    run = make_run(tmp_path / "run", [make_round_line(1)], status="running")
    rows = [{"round": 1, "client": 0, "priority": True, "loss": 0.5}]
    write_table(run, "evaluations", rows)
    (run / "evaluations" / "part-00001.part").write_bytes(b"never finished")
    row, *_ = summarize_groups(group_runs(load_all(tmp_path)))
    assert row.compute_statistic("largest_training_loss") == Statistic(0.5, None)


def test_settings_with_brackets_are_not_markup(tmp_path: Path) -> None:
    """A list in a setting is printed literally, not read as a style."""
    for name in ("red", "blue"):
        make_run(tmp_path / name, [make_round_line(1)], settings=f"drop: '[{name}]'\n")
    table = build_overview_table(summarize_groups(group_runs(load_all(tmp_path))))
    cells = list(table.columns[0].cells)
    assert cells == [
        "fedalign/synth_low\nFedALIGN\ndrop \\[blue]",
        "fedalign/synth_low\nFedALIGN\ndrop \\[red]",
    ]


@pytest.mark.parametrize("name", ["empty", "missing"])
def test_no_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    """Without a run the status is 1, and one line has the expected and the given folder."""
    (tmp_path / "empty").mkdir()
    assert main([str(tmp_path / name), "--output", str(tmp_path / "report")]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert len(printed.err.splitlines()) == 1
    assert printed.err.startswith("fedquorum-report: expected a folder")
    assert str(tmp_path / name) in printed.err
    assert not (tmp_path / "report").exists()


def test_a_missing_package_is_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line says what to install, also where a run is to be followed."""
    monkeypatch.setattr(provenance, "REPORT_PACKAGES", {"yaml": "pyyaml", "nowhere": "not-there"})
    for arguments in ([str(tmp_path)], ["--watch", str(tmp_path)]):
        assert main(arguments) == 1
        assert capsys.readouterr().err == (
            "fedquorum-report: a report needs not-there, which the extra report brings: "
            "pip install not-there\n"
        )


def test_an_output_that_is_a_file_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """If nothing can be written, one line names the option and the path."""
    run = make_run(tmp_path / "run", [make_round_line(1)])
    (tmp_path / "file").write_text("")
    assert main([str(run), "--output", str(tmp_path / "file")]) == 1
    error = capsys.readouterr().err
    assert error.startswith("fedquorum-report: --output must be a folder to write to, got")
    assert len(error.splitlines()) == 1


@pytest.mark.slow
def test_figures_for_a_paper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They have the requested width and TrueType fonts, and are reproducible.

    One figure of each report is drawn; the others are blank, which takes a tenth of the time.
    """

    def draw(chart: Chart, width: float | None = None) -> Figure:
        panels = chart.panels if isinstance(chart, LineChart) and width is not None else ()
        wanted = chart.name == "training" and [p.y_label for p in panels] == ["test accuracy, %"]
        return draw_figure(chart, width) if wanted else Figure((2, 1))

    monkeypatch.setattr(matplotlib_charts, "draw_figure", draw)
    test = {"all": {"accuracy": 0.5}}
    make_run(tmp_path / "run", [make_round_line(n, test=test) for n in (1, 2)])
    for folder, options in (
        ("a", ["--paper-width", "3.3"]),
        ("b", ["--paper-width=3.3"]),
        ("screen", []),
    ):
        assert main([str(tmp_path / "run"), "--output", str(tmp_path / folder), *options]) == 0
    drawn, *_ = (tmp_path / "a" / "figures").glob("*_training_1_*.pdf")
    content = drawn.read_bytes()
    (box,) = re.findall(rb"/MediaBox \[ 0 0 ([\d.]+) [\d.]+ \]", content)
    assert float(box) == pytest.approx(72 * 3.3)
    assert b"/Type3" not in content
    assert content == (tmp_path / "b" / "figures" / drawn.name).read_bytes()
    assert not list((tmp_path / "screen").rglob("*.pdf"))


@pytest.mark.parametrize("width", ["0", "abc", "nan", "21"])
def test_an_impossible_paper_width_is_refused(
    width: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line names the allowed range."""
    with pytest.raises(SystemExit):
        main(["runs", "--paper-width", width])
    assert f"must be a width from 2 to 20 inches, got {width}" in capsys.readouterr().err


def test_a_metric_missing_from_the_last_evaluation_is_nan(tmp_path: Path) -> None:
    """A diverged model leaves no Gini coefficient; an earlier one does not replace it."""
    group = {"accuracy": 0.5, "loss": 1.0, "gini": 0.2, "average": 1.0}
    last = {**group, "loss": "inf", "average": "inf", "gini": None}
    make_run(
        tmp_path / "run",
        [
            make_round_line(1, test={"priority": group, "non_priority": None, "all": group}),
            make_round_line(2, test={"priority": last, "non_priority": None, "all": last}),
            make_round_line(3, test=None),
        ],
    )
    (run,) = load_all(tmp_path)
    assert math.isnan(get_last_test_metric(run, "all", "gini"))
    assert get_last_test_metric(run, "all", "average") == math.inf
    assert get_last_test_metric(run, "all", "accuracy") == 0.5


@pytest.mark.slow
def test_the_page_of_a_run_without_other_clients_does_not_speak_of_priority(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All clients have it, so that the word says nothing; only the settings name it."""
    monkeypatch.chdir(tmp_path)
    overrides = ("data=synth", *make_client_overrides(3, 2), "data.priority=all")
    run_here(tmp_path / "run", *overrides, "strategy=fedavg", "rounds=2")
    main(["run"])
    page = re.sub(
        r"<code>.*?</code>", "", (tmp_path / "report/report.html").read_text(), flags=re.DOTALL
    )
    text = read_page_text(page)
    assert "F(w), of all clients, is of the model broadcast in it." in text
    assert "priority" not in text
    assert "theta" not in text


@pytest.mark.slow
def test_the_page_of_a_drop_in_run_has_no_empty_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has what its records have: no test metrics, and no data of a known name."""
    monkeypatch.chdir(tmp_path)
    strategy = FedAvg(records=tmp_path / "run")
    strategy.start(make_grid(make_standard_app(), 4), encode_arrays(MODEL), num_rounds=2)
    main(["run"])
    text = read_page_text((tmp_path / "report/report.html").read_text())
    assert "4 clients, 2 rounds." in text
    assert "Data ," not in text
    for absent in ("Mean by data", "test accuracy", "Test metrics", "Gini", "theta_T"):
        assert absent not in text
    assert "updates admitted a round" in text
