"""Tests of a report's tables: fairness over clients, paired differences, and formats."""

import csv
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from fedquorum.records.reader import load_run
from fedquorum.report.final_metrics import CLIENT_METRICS, RUN_METRICS, find_max_training_loss
from fedquorum.report.seed_groups import (
    Statistic,
    abbreviate_name,
    format_setting_value,
    get_value_sort_key,
    group_runs,
)
from fedquorum.report.tables import (
    Row,
    TextTable,
    build_costs_table,
    build_differences_table,
    build_experiment_tables,
    build_fairness_table,
    build_overview_table,
    build_settings_table,
    build_summary_table,
    compute_method_differences,
    format_cell,
    format_latex,
    format_markdown,
    summarize_groups,
    write_differences_csv,
    write_summary_csv,
)

from tests.fedquorum.records.made import load_all, make_round_line, make_run, write_table


def test_values_of_a_setting_ascend() -> None:
    """Numbers by size, then words; NaN sorts as a word."""
    values = ["word", "nan", "inf", "10", "2", "-inf", "1e-3"]
    for start in range(len(values)):
        rotated = values[start:] + values[:start]
        found = sorted(rotated, key=get_value_sort_key)
        assert found == ["-inf", "1e-3", "2", "10", "inf", "nan", "word"]


def make_test_groups(average: float, **others: float) -> dict[str, Any]:
    """Make the field ``test`` for clients that all have priority."""
    values = {
        "loss": 1.0,
        "accuracy": average,
        "left_out": 1,
        "average": average,
        "worst": 0.1,
        "best": 0.9,
        "worst10": 0.2,
        "best10": 0.8,
        "gini": 0.25,
        "std": 0.3,
        "jain": 0.5,
    } | others
    return {"priority": values, "non_priority": None, "all": values}


def summarize_methods(tmp_path: Path, **of_strategy: tuple[float, ...]) -> list[Row]:
    """Make a run with an average for every strategy and seed, and summarize them."""
    for strategy, averages in of_strategy.items():
        for seed, average in enumerate(averages, start=1):
            make_run(
                tmp_path / strategy / str(seed),
                [make_round_line(1, test=make_test_groups(average))],
                seed=seed,
                strategy=strategy,
                settings=f"strategy:\n  name: {strategy}\n",
            )
    return list(summarize_groups(group_runs(load_all(tmp_path))))


def read_cells(row: tuple[str, ...], headings: tuple[str, ...]) -> dict[str, str]:
    return dict(zip(headings, row, strict=True))


def test_the_calibration_error_is_a_column_where_runs_have_it(tmp_path: Path) -> None:
    """In percent, with a mean over seeds."""
    for seed, ece in enumerate((0.1, 0.3), start=1):
        groups = make_test_groups(0.5, ece=ece)
        make_run(tmp_path / "with" / str(seed), [make_round_line(1, test=groups)], seed=seed)
    table = build_summary_table([*summarize_groups(group_runs(load_all(tmp_path)))], "fedau/fmnist")
    cells = read_cells(table.rows[0], table.headings)
    assert cells["calibration error (ECE), %"] == "20.00 ± 14.14"
    plain = build_summary_table(summarize_methods(tmp_path / "without", fedau=(0.5,)), "fedau")
    assert not [heading for heading in plain.headings if "ECE" in heading]


def test_every_strategy_has_all_fairness_columns(tmp_path: Path) -> None:
    """Average, worst, best, tenths, Gini, sd, Jain, left out: in percent except Jain."""
    rows = summarize_methods(tmp_path, fedau=(0.5, 0.7), mifa=(0.4, 0.4))
    table = build_fairness_table(rows, "fedau/fmnist")
    assert table.title.startswith("fedau/fmnist: accuracy, %")
    first, second = (read_cells(row, table.headings) for row in table.rows)
    assert first == {
        "method": "FedAU",
        "clients": "all",
        "seeds": "2",
        "test accuracy, %, by data": "60.00 ± 14.14",
        "average, unweighted": "60.00 ± 14.14",
        "worst": "10.00 ± 0.00",
        "best": "90.00 ± 0.00",
        "worst 10 %, unweighted": "20.00 ± 0.00",
        "best 10 %, unweighted": "80.00 ± 0.00",
        "sd": "30.00 ± 0.00",
        "Gini, %": "25.00 ± 0.00",
        "Jain": "0.500 ± 0.000",
        "left out": "1",
        "largest training loss, nats": "-",
    }
    assert second["average, unweighted"] == "40.00 ± 0.00"


def test_the_first_table_compares_methods_on_the_same_clients(tmp_path: Path) -> None:
    """Rows of one group of clients are adjacent; an interrupted run is marked."""
    test = dict.fromkeys(("priority", "non_priority", "all"), make_test_groups(0.5)["all"])
    make_run(tmp_path / "a", [make_round_line(1, test=test)], strategy="fedalign")
    make_run(
        tmp_path / "b", [make_round_line(1, test=test)], strategy="fedavg", status="interrupted"
    )
    table = build_summary_table(summarize_groups(group_runs(load_all(tmp_path))), "x")
    assert table.title.startswith("x: test accuracy, %")
    assert [row[:2] for row in table.rows] == [
        (name, clients)
        for clients in ("priority", "non-priority", "all")
        for name in ("FedALIGN", "FedAvg [interrupted]")
    ]
    assert read_cells(table.rows[0], table.headings)["worst 10 %"] == "20.00"


def test_the_metric_is_named_and_losses_are_in_nats(tmp_path: Path) -> None:
    """The title names the metric; with a loss, only the Gini coefficient is in percent."""
    settings = "evaluation:\n  metric: loss\n"
    make_run(
        tmp_path / "run",
        [make_round_line(1, test=make_test_groups(0.5, loss=1.25))],
        settings=settings,
    )
    table = build_fairness_table(summarize_groups(group_runs(load_all(tmp_path))), "x")
    assert table.title.startswith("x: loss, nats")
    (row,) = (read_cells(row, table.headings) for row in table.rows)
    assert row["test loss, nats, by data"] == "1.250"
    assert (row["average, unweighted"], row["Gini, %"]) == ("0.500", "25.00")


def test_the_weighted_metric_is_the_one_configured(tmp_path: Path) -> None:
    """With AUROC the mean by data is that of AUROC, not of the accuracy beside it."""
    settings = "evaluation:\n  metric: auroc\n"
    make_run(
        tmp_path / "run",
        [make_round_line(1, test=make_test_groups(0.5, auroc=0.75))],
        settings=settings,
    )
    (row,) = summarize_groups(group_runs(load_all(tmp_path)))
    found = row.compute_statistic("test")
    assert found is not None
    assert found.mean == 0.75


@pytest.mark.parametrize(
    ("proven", "words"),
    [
        ({}, "3.000 (not proven here)"),
        ({"regret_bound_proven": 0}, "3.000 (not proven here)"),
        ({"regret_bound_proven": 1}, "3.000"),
    ],
)
def test_the_regret_is_a_column_if_recorded(
    tmp_path: Path, proven: dict[str, int], words: str
) -> None:
    """AAggFF's regret and its bound are columns; an unproven bound is marked."""
    mixing = {"regret": 0.5, "regret_bound": 3.0, **proven}
    make_run(tmp_path / "a", [make_round_line(1, test=make_test_groups(0.5))], strategy="aaggff_s")
    manifest = tmp_path / "a" / "manifest.json"
    manifest.write_text(
        json.dumps(json.loads(manifest.read_text()) | {"summary": {"mixing": mixing}})
    )
    make_run(tmp_path / "b", [make_round_line(1, test=make_test_groups(0.5))], strategy="term")
    table = build_fairness_table(summarize_groups(group_runs(load_all(tmp_path))), "x")
    ours, other = (read_cells(row, table.headings) for row in table.rows)
    assert (ours["regret"], ours["regret bound"]) == ("0.500", words)
    assert (other["regret"], other["regret bound"]) == ("-", "-")


def test_the_largest_training_loss_is_of_the_last_round_that_all_evaluated(tmp_path: Path) -> None:
    """Earlier losses, rounds with missing clients, other clients and nulls do not count."""
    run = make_run(tmp_path / "run", [make_round_line(1), make_round_line(2)])
    rows = [
        {"round": number, "client": client, "priority": priority, "loss": loss}
        for number, client, priority, loss in (
            (0, 0, True, 9.0),
            (1, 0, True, 0.5),
            (1, 1, True, 0.75),
            (2, 1, True, None),
            (2, 0, True, 0.25),
            (2, 2, False, 5.0),
        )
    ]
    write_table(run, "evaluations", rows)
    assert find_max_training_loss(load_run(run)) == 0.75
    write_table(run, "evaluations", [row for row in rows if row["round"] != 1])
    assert math.isnan(find_max_training_loss(load_run(run)))


def test_without_evaluations_there_is_no_largest_loss(tmp_path: Path) -> None:
    """Without the table, with an empty one, or without training losses it is NaN."""
    run = make_run(tmp_path / "run", [make_round_line(1)])
    assert math.isnan(find_max_training_loss(load_run(run)))
    write_table(run, "evaluations", [])
    assert math.isnan(find_max_training_loss(load_run(run)))
    write_table(run, "evaluations", [{"round": 1, "client": 0, "priority": False, "loss": 1.0}])
    assert math.isnan(find_max_training_loss(load_run(run)))


# --- paired differences -----------------------------------------------------------------------


def test_differences_are_paired_by_seed(tmp_path: Path) -> None:
    """0.1, 0.2 and -0.1 over the common seeds: mean 0.0667, sd 0.1528, above 0 in 2 of 3."""
    rows = summarize_methods(tmp_path, fedau=(0.5, 0.7, 0.4, 0.9), mifa=(0.4, 0.5, 0.5))
    (pair,) = compute_method_differences(rows)
    assert (pair.one.group.strategy, pair.other.group.strategy) == ("fedau", "mifa")
    assert sorted(pair.by_seed) == [1, 2, 3]
    found = pair.compute_statistic("average")
    assert found is not None
    assert found.mean == pytest.approx(0.2 / 3)
    assert found.sd == pytest.approx(
        math.sqrt(((0.1 - 0.2 / 3) ** 2 + (0.2 - 0.2 / 3) ** 2 + (-0.1 - 0.2 / 3) ** 2) / 2)
    )
    assert pair.count_above("average") == (2, 3)
    assert pair.count_above("largest_training_loss") == (0, 0)
    table = build_differences_table([pair], "x")
    row = read_cells(table.rows[0], table.headings)
    assert row["difference"] == "FedAU minus MIFA"
    assert row["average, unweighted"] == "6.67 ± 15.28 (2/3)"
    assert row["largest training loss, nats"] == "-"


def test_methods_are_compared_with_each_baseline(tmp_path: Path) -> None:
    """AAggFF-S with all baselines, and no baseline with another."""
    rows = summarize_methods(tmp_path, afl=(0.5,), aaggff_s=(0.5,), fedavg=(0.5,), term=(0.5,))
    pairs = [
        (p.one.group.strategy, p.other.group.strategy) for p in compute_method_differences(rows)
    ]
    assert pairs == [("aaggff_s", other) for other in ("afl", "fedavg", "term")]


def test_variants_of_one_method_are_compared_with_the_first(tmp_path: Path) -> None:
    """A sweep over epsilon has differences from its smallest value."""
    for epsilon in ("0.1", "0.2", ".inf"):
        settings = f"strategy:\n  name: fedalign\n  epsilon: {epsilon}\n"
        make_run(tmp_path / epsilon, [make_round_line(1)], settings=settings)
    pairs = compute_method_differences(summarize_groups(group_runs(load_all(tmp_path))))
    assert {(p.one.group.method_name, p.other.group.method_name) for p in pairs} == {
        ("fedalign (epsilon=0.2)", "fedalign (epsilon=0.1)"),
        ("fedalign (epsilon=inf)", "fedalign (epsilon=0.1)"),
    }


def test_runs_on_different_data_are_not_compared(tmp_path: Path) -> None:
    """Differences need the same clients, availability and rounds."""
    for strategy in ("fedau", "mifa"):
        for process in ("bernoulli", "cyclic"):
            settings = f"strategy:\n  name: {strategy}\navailability:\n  name: {process}\n"
            make_run(
                tmp_path / strategy / process,
                [make_round_line(1)],
                settings=settings,
                strategy=strategy,
            )
    pairs = [
        p
        for p in compute_method_differences(summarize_groups(group_runs(load_all(tmp_path))))
        if p.one.clients == "all"
    ]
    assert [(p.one.group.variant, p.other.group.variant) for p in pairs] == [
        (("availability.name=bernoulli",), ("availability.name=bernoulli",)),
        (("availability.name=cyclic",), ("availability.name=cyclic",)),
    ]


def test_without_a_common_seed_there_is_no_difference(tmp_path: Path) -> None:
    """Different seeds mean different data."""
    make_run(tmp_path / "a", [make_round_line(1)], seed=1, strategy="fedau")
    make_run(tmp_path / "b", [make_round_line(1)], seed=2, strategy="mifa")
    assert compute_method_differences(summarize_groups(group_runs(load_all(tmp_path)))) == ()


# --- formats ----------------------------------------------------------------------------------


def test_csv_has_every_measure_in_full(tmp_path: Path) -> None:
    """Fractions instead of percent, with all digits; sd is empty for one seed."""
    rows = summarize_methods(tmp_path, fedau=(1 / 3,), mifa=(0.1, 0.2))
    write_summary_csv(rows, tmp_path / "table.csv")
    write_differences_csv(compute_method_differences(rows), tmp_path / "differences.csv")
    with (tmp_path / "table.csv").open(newline="") as file:
        one, two = csv.DictReader(file)
    assert {
        f"{name}_{part}" for name in (*CLIENT_METRICS, *RUN_METRICS) for part in ("mean", "sd")
    } <= set(one)
    assert (float(one["average_mean"]), one["average_sd"]) == (1 / 3, "")
    assert float(two["average_sd"]) == pytest.approx(math.sqrt(0.005))
    assert (one["metric"], one["clients"], one["left_out_mean"]) == ("accuracy", "all", "1.0")
    with (tmp_path / "differences.csv").open(newline="") as file:
        (pair,) = csv.DictReader(file)
    assert (pair["strategy"], pair["other_strategy"], pair["seeds"]) == ("fedau", "mifa", "1")
    assert (float(pair["average_mean"]), pair["average_above"]) == (1 / 3 - 0.1, "1")


def test_markdown_is_a_table_per_title(tmp_path: Path) -> None:
    """It has headings, a rule and a line per row; characters that end a cell are escaped."""
    table = build_summary_table(summarize_methods(tmp_path, fedau=(0.5,)), "a|b")
    title, empty, headings, rule, row = format_markdown([table]).splitlines()
    assert (title, empty) == (f"### {table.title}", "")
    assert headings.startswith("| method | clients | seeds | mean by data |")
    assert rule == "|" + " --- |" * len(table.headings)
    assert row.startswith("| FedAU | all | 1 | 50.00 |")


def test_latex_escapes_special_characters(tmp_path: Path) -> None:
    """Percent signs, underscores and plus-minus signs; columns match the headings."""
    table = build_summary_table(summarize_methods(tmp_path, aaggff_s=(0.5, 0.7)), "aaggff/berka_1")
    text = format_latex([table])
    assert r"AAggFF-S & all & 2 & 60.00 $\pm$ 14.14 &" in text
    assert r"\caption{aaggff/berka\_1: test accuracy, \%" in text
    assert r"\begin{tabular}{ll" + "r" * (len(table.headings) - 2) + "}" in text
    (row,) = [one for one in text.splitlines() if one.startswith("AAggFF-S")]
    assert row.count(" & ") == len(table.headings) - 1


def test_latex_has_no_markup_of_a_record() -> None:
    """Every special character of LaTeX is escaped; headings may repeat."""
    text = r"\input{a}~^&%$#_<>"
    written = format_latex([TextTable(text, (text, "b", "b"), ((text, "", "1"),))])
    escaped = (
        r"\textbackslash{}input\{a\}\textasciitilde{}\textasciicircum{}\&\%\$\#\_"
        r"\textless{}\textgreater{}"
    )
    assert rf"\caption{{{escaped}}}" in written
    assert rf"{escaped} & b & b \\" in written
    assert rf"{escaped} &  & 1 \\" in written
    assert "input{" not in written


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        ("-0.41 ± 61.18 (1/3)", r"$-$0.41 $\pm$ 61.18 (1/3)"),
        ("0.2 (-0.1 to 0.5)", r"0.2 ($-$0.1 to 0.5)"),
        ("(-3, -1)", r"($-$3, $-$1)"),
        ("-", "--"),
        ("1e-05", "1e-05"),
        ("2026-11-28", "2026-11-28"),
        ("non-priority", "non-priority"),
        ("term (tilt=-1)", "term (tilt=-1)"),
    ],
)
def test_latex_has_minus_signs_in_numbers_alone(cell: str, expected: str) -> None:
    """LaTeX prints a hyphen of a number too short."""
    written = format_latex([TextTable("t", ("a", "b", "c"), (("x", "y", cell),))])
    assert f"x & y & {expected} \\\\" in written


def test_a_wide_latex_table_fits_the_page() -> None:
    """It is scaled, and the first line says what that needs."""
    narrow, wide = (
        format_latex([TextTable("t", tuple(map(str, range(n))), (("1",) * n,))]) for n in (8, 9)
    )
    assert "resizebox" not in narrow.replace("% needs", "")
    assert r"\resizebox{\linewidth}{!}{\begin{tabular}{ll" in wide
    assert "\\end{tabular}}\n" in wide
    assert wide.startswith(r"% needs \usepackage{booktabs,graphicx}")


def test_settings_that_differ_and_no_others(tmp_path: Path) -> None:
    """Equal settings are left out, and those that only one strategy has."""
    for strategy, setting, lr in (("fedau", "cutoff: 50", 0.1), ("mifa", "memory_dir: null", 0.05)):
        client = f"client:\n  lr: {lr}\n  batch_size: 16\n"
        settings = f"rounds: 1\n{client}strategy:\n  name: {strategy}\n  {setting}\n"
        make_run(tmp_path / strategy, [make_round_line(1)], settings=settings, strategy=strategy)
    table = build_settings_table(group_runs(load_all(tmp_path)), "x")
    assert table.rows == (
        ("FedAU", "client.lr=0.1 strategy.name=fedau"),
        ("MIFA", "client.lr=0.05 strategy.name=mifa"),
    )


def test_costs_are_listed_once_per_method(tmp_path: Path) -> None:
    """Bytes both ways in MB per round, not repeated for each group of clients."""
    make_run(
        tmp_path / "run", [make_round_line(1, bytes_down=1_500_000, bytes_up=500_000, theta=None)]
    )
    table = build_costs_table(summarize_groups(group_runs(load_all(tmp_path))), "x")
    (row,) = (read_cells(row, table.headings) for row in table.rows)
    assert row["MB a round, both ways"] == "2.000"
    assert "theta_T" not in row


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"theta": 1.0, "inclusion_mass": 0.0, "epsilon": None}, False),
        ({"theta": 0.8, "inclusion_mass": 0.25, "epsilon": None}, True),
        ({"theta": 1.0, "inclusion_mass": 0.0, "epsilon": 0.2}, True),
    ],
    ids=["all have priority", "others count", "a gate"],
)
def test_theta_is_a_column_where_it_can_differ_from_1(
    tmp_path: Path, fields: dict[str, Any], *, expected: bool
) -> None:
    """For a rule without priority it is 1 by definition."""
    make_run(tmp_path / "run", [make_round_line(1, **fields)])
    rows = summarize_groups(group_runs(load_all(tmp_path)))
    assert ("theta_T" in build_costs_table(rows, "x").headings) is expected
    overview = build_overview_table(rows)
    assert ("theta_T" in [column.header for column in overview.columns]) is expected


def test_what_no_row_has_is_left_out(tmp_path: Path) -> None:
    """The records of a drop-in strategy have no test metrics, and its report no such tables."""
    make_run(tmp_path / "run", [make_round_line(1, test=None)])
    groups = group_runs(load_all(tmp_path))
    rows = summarize_groups(groups)
    tables = build_experiment_tables(groups, rows, (), "x")
    assert [table.title for table in tables] == ["x: admissions and costs"]
    assert "-" not in {cell for row in tables[0].rows for cell in row}
    headings = [str(column.header) for column in build_overview_table(rows).columns]
    assert headings[:4] == ["experiment\nmethod", "clients", "runs", "updates\nper round"]


def test_a_column_that_one_row_has_stays(tmp_path: Path) -> None:
    """The others have a dash in it."""
    summarize_methods(tmp_path, fedavg=(0.5,))
    make_run(tmp_path / "other", [make_round_line(1, test=None)], strategy="fedau")
    groups = group_runs(load_all(tmp_path))
    rows = list(summarize_groups(groups))
    first = build_experiment_tables(groups, rows, (), "x")[0]
    cells = {row[0]: read_cells(row, first.headings)["mean by data"] for row in first.rows}
    assert cells == {"FedAvg": "50.00", "FedAU": "-"}


def test_masks_leave_no_spread_over_clients(tmp_path: Path) -> None:
    """Cells say so beside runs without masks; a report of masked runs alone has no such column."""
    summed = {"loss": 1.0, "accuracy": 0.5, "left_out": 0}
    make_run(
        tmp_path / "masked",
        [make_round_line(1, test={"priority": None, "non_priority": None, "all": summed})],
        strategy="fedau",
        settings="secure_aggregation: {name: masks}\n",
    )
    groups = group_runs(load_all(tmp_path))
    alone = build_experiment_tables(groups, list(summarize_groups(groups)), (), "x")[0]
    assert "worst client" not in alone.headings
    rows = summarize_methods(tmp_path, fedavg=(0.5,))
    beside = build_experiment_tables(group_runs(load_all(tmp_path)), rows, (), "x")[0]
    cells = {row[0]: read_cells(row, beside.headings) for row in beside.rows if row[1] == "all"}
    assert cells["FedAU"]["worst client"] == "not with masks"
    assert cells["FedAU"]["mean by data"] == "50.00"
    assert cells["FedAvg"]["worst client"] == "10.00"


# --- untrusted texts --------------------------------------------------------------------------


@pytest.mark.parametrize("first", ["=", "+", "-", "@"])
def test_no_cell_of_a_csv_file_is_a_formula(tmp_path: Path, first: str) -> None:
    """Spreadsheets execute such cells, and names in records may be ones; numbers stay numbers."""
    make_run(
        tmp_path / "run",
        [make_round_line(1, global_loss=-2.0)],
        experiment=f"{first}cmd|' /C calc'!A0",
    )
    write_summary_csv(summarize_groups(group_runs(load_all(tmp_path))), tmp_path / "table.csv")
    with (tmp_path / "table.csv").open(newline="") as file:
        row, *_ = csv.DictReader(file)
    assert row["experiment"] == f"'{first}cmd|' /C calc'!A0"
    assert row["global_loss_mean"] == "-2.0"


def test_markdown_has_no_markup_of_a_record(tmp_path: Path) -> None:
    """HTML, links, images and code in a name are shown literally, on one line."""
    text = "<img src=x onerror=alert(1)>[a](javascript:b)`c`|d\\e"
    table = TextTable(text, (text,), ((text + "\n# f",),))
    written = format_markdown([table])
    for character in "<>[]`|\\":
        unescaped = re.findall(rf"(?<!\\)(?:\\\\)*{re.escape(character)}", written)
        assert not unescaped or character in "|\\"
    assert "\n# f" not in written
    assert "\\<img src=x onerror=alert(1)\\>" in written


def test_long_names_are_shortened_in_charts() -> None:
    """Shortened names stay distinct."""
    names = [abbreviate_name("x" * length) for length in (120, 121, 5000)]
    assert names[0] == "x" * 120
    assert len(set(names)) == 3
    assert max(map(len, names)) < 140
    assert format_setting_value(1e300) == "1e+300"


def test_a_password_of_an_older_run_is_masked(tmp_path: Path) -> None:
    """Earlier versions allowed one in tracker.uri; no report repeats it."""
    uri = "https://user:hunter2@example.org/a"
    make_run(
        tmp_path / "run",
        [make_round_line(1)],
        settings=f"tracker: {{name: mlflow, uri: '{uri}'}}\n",
    )
    (run,) = load_all(tmp_path)
    assert format_setting_value(run.settings["tracker.uri"]) == "https://user:***@example.org/a"


def test_errors_of_a_tiny_target_are_no_zeros() -> None:
    """Where all decimals of a mean or its deviation would be 0, its digits stand."""
    assert format_cell(Statistic(5e-12, 4e-13), "test", "rmse") == "5e-12 \u00b1 4e-13"
    assert format_cell(Statistic(0.25, 0.0), "test", "rmse") == "0.250 \u00b1 0.000"
    assert format_cell(Statistic(0.00001, None), "test", "accuracy") == "0.00"
