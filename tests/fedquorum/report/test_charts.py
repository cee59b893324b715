"""Tests of the report's charts and of both backends, which must draw the same."""

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fedquorum.report.chart_spec import (
    METHOD_COLORS,
    NO_BOUNDS,
    NUM_DASHES,
    Chart,
    GridChart,
    Line,
    LineChart,
    Panel,
    ReferenceLine,
    compute_band,
    compute_log_ticks,
    compute_y_limits,
    get_line_style,
    has_bands,
    place_end_labels,
    sample_indices,
    select_bar_points,
)
from fedquorum.report.client_charts import MAX_ROWS, STATUS_COLORS
from fedquorum.report.experiment import build_experiments
from fedquorum.report.matplotlib_charts import draw_figure, split_for_paper
from fedquorum.report.plotly_charts import build_panel_figure, build_plotly_spec
from fedquorum.report.published import find_published_results
from fedquorum.report.seed_groups import group_runs
from matplotlib.collections import LineCollection

from tests.builders_calibration import make_full_bin
from tests.fedquorum.records.made import (
    load_all,
    make_round_line,
    make_run,
    write_population,
    write_table,
)


def build_charts(directory: Path) -> dict[str, Chart]:
    """Build the charts of the one experiment below a folder, by name."""
    (one,) = build_experiments(group_runs(load_all(directory)))
    return {chart.name: chart for chart in one.charts}


def get_line_chart(found: dict[str, Chart], name: str) -> LineChart:
    chart = found[name]
    assert isinstance(chart, LineChart)
    return chart


def get_grid_chart(found: dict[str, Chart], name: str) -> GridChart:
    chart = found[name]
    assert isinstance(chart, GridChart)
    return chart


def make_test_metrics(value: float, **others: Any) -> dict[str, Any]:
    """Make the field ``test`` for clients that all have priority."""
    values = {"loss": 1.0, "accuracy": value, "worst": value / 2, "worst10": value / 2} | others
    return {"priority": values, "non_priority": None, "all": values}


# --- over rounds ------------------------------------------------------------------------------


def test_curves_are_means_and_bands_standard_deviations(tmp_path: Path) -> None:
    """Accuracies are in percent, losses in nats; a single seed has no band."""
    for seed, value in ((1, 0.5), (2, 0.7)):
        rounds = [
            make_round_line(n, test=make_test_metrics(value), global_loss=value) for n in (1, 2)
        ]
        make_run(tmp_path / str(seed), rounds, seed=seed)
    make_run(
        tmp_path / "other",
        [make_round_line(n, test=make_test_metrics(0.2)) for n in (1, 2)],
        strategy="fedavg",
    )
    first, loss, _ = get_line_chart(build_charts(tmp_path), "training").panels
    assert (first.title, first.y_label) == ("all clients", "test accuracy, %")
    assert "nats" in loss.y_label
    fedalign, other = first.lines
    np.testing.assert_allclose(fedalign.x, [1, 2])
    np.testing.assert_allclose(fedalign.y, [60, 60])
    assert fedalign.half_width is not None
    np.testing.assert_allclose(fedalign.half_width, [math.sqrt(200)] * 2)
    np.testing.assert_allclose(other.y, [20, 20])
    assert other.half_width is None
    assert (fedalign.label, other.label) == ("FedALIGN", "FedAvg")


def test_bands_end_at_the_bounds_of_values(tmp_path: Path) -> None:
    """No accuracy above 100 %, no count below 0, no band to minus infinity on a log scale."""
    for seed, accuracy, admitted, seconds in ((1, 0.99, 0, 0.01), (2, 0.6, 4, 2.0)):
        rounds = [
            make_round_line(
                1, test=make_test_metrics(accuracy), admitted=admitted, duration_seconds=seconds
            )
        ]
        make_run(tmp_path / str(seed), rounds, seed=seed)
    found = build_charts(tmp_path)
    for name, index, low, high in (
        ("training", 0, 79.5 - 19.5 * math.sqrt(2), 100.0),
        ("admission", 0, 0.0, 2.0 + 2 * math.sqrt(2)),
        ("costs", 2, 1.005 / 2, 1.005 + 0.995 * math.sqrt(2)),
    ):
        panel = get_line_chart(found, name).panels[index]
        ends = compute_band(panel.lines[0], panel)
        np.testing.assert_allclose(ends, [[low], [high]])


def test_losses_of_regression_are_squared_errors(tmp_path: Path) -> None:
    """They are not in nats, and the metric has the target's unit."""
    settings = "data:\n  regression: true\nevaluation:\n  metric: rmse\n"
    test = make_test_metrics(0.5, rmse=2.0) | {"non_priority": None}
    make_run(tmp_path / "run", [make_round_line(1, test=test)], settings=settings)
    chart = get_line_chart(build_charts(tmp_path), "training")
    labels = [panel.y_label for panel in chart.panels]
    assert "test RMSE, unit of the target" in labels
    assert "training loss F(w), squared error, scaled target" in labels
    assert not [label for label in labels if "nats" in label]
    assert chart.title == "RMSE and loss"


def test_priority_and_non_priority_clients_have_separate_panels(tmp_path: Path) -> None:
    """Non-priority clients have a panel beside the priority clients'."""
    test = make_test_metrics(0.5) | {"non_priority": {"accuracy": 0.25, "worst": 0.1}}
    make_run(tmp_path / "run", [make_round_line(1, test=test)])
    one, other, *_ = get_line_chart(build_charts(tmp_path), "training").panels
    assert (one.title, other.title) == ("priority clients", "non-priority clients")
    np.testing.assert_allclose(other.lines[0].y, [25])


def test_the_legend_names_an_incomplete_status(tmp_path: Path) -> None:
    """An interrupted run is drawn with its status."""
    make_run(tmp_path / "run", [make_round_line(1)], status="interrupted")
    (panel, *_) = get_line_chart(build_charts(tmp_path), "training").panels
    assert panel.lines[0].label == "FedALIGN [interrupted]"


def test_a_rule_without_a_gate_has_no_inclusion_mass(tmp_path: Path) -> None:
    """If all admit the same number in every round, there is no admission chart."""
    record = make_round_line(
        1, epsilon=None, inclusion_mass=0.0, theta=1.0, test=make_test_metrics(0.5)
    )
    make_run(tmp_path / "a" / "run", [record], strategy="fedavg")
    assert set(build_charts(tmp_path / "a")) == {"training", "costs"}
    other = record | {"round": 2, "admitted": 2, "trained": 2}
    make_run(tmp_path / "b" / "run", [record, other], strategy="fedau")
    (panel,) = get_line_chart(build_charts(tmp_path / "b"), "admission").panels
    assert panel.y_label == "updates admitted, a round"
    make_run(tmp_path / "c" / "run", [make_round_line(1)])
    labels = [p.y_label for p in get_line_chart(build_charts(tmp_path / "c"), "admission").panels]
    assert labels == ["updates admitted, a round", "inclusion mass A", "theta = 1 / (1 + A)"]


def test_colors_belong_to_methods(tmp_path: Path) -> None:
    """A method has the same style in every panel, also in panels without others."""
    no_gate = {"epsilon": None, "inclusion_mass": None, "theta": None}
    make_run(tmp_path / "a", [make_round_line(1, **no_gate)], strategy="afl")
    make_run(tmp_path / "b", [make_round_line(1)], strategy="fedalign")
    both, mass, _ = get_line_chart(build_charts(tmp_path), "admission").panels
    assert [one.label for one in both.lines] == ["AFL", "FedALIGN"]
    assert [one.label for one in mass.lines] == ["FedALIGN"]
    assert mass.lines[0].style == both.lines[1].style == 1


def test_decision_losses_are_drawn_if_recorded(tmp_path: Path) -> None:
    """The chart has the sum over rounds and KL."""
    rounds = [
        make_round_line(n, decision_loss=-0.1, decision_loss_sum=-0.1 * n, kl_to_data=0.5)
        for n in (1, 2)
    ]
    make_run(tmp_path / "run", rounds, strategy="aaggff_s")
    total, divergence = get_line_chart(build_charts(tmp_path), "decisions").panels
    np.testing.assert_allclose(total.lines[0].y, [-0.1, -0.2])
    np.testing.assert_allclose(divergence.lines[0].y, [0.5, 0.5])


def test_bytes_are_in_a_readable_unit(tmp_path: Path) -> None:
    """kB for small models, MB for large ones."""
    make_run(tmp_path / "a" / "run", [make_round_line(1, bytes_down=2_000, bytes_up=3_000)])
    down, up, seconds = get_line_chart(build_charts(tmp_path / "a"), "costs").panels
    assert (down.y_label, down.lines[0].y[0]) == ("kB to the nodes, a round", 2.0)
    assert (up.lines[0].y[0], seconds.lines[0].y[0]) == (3.0, 0.1)
    make_run(tmp_path / "b" / "run", [make_round_line(1, bytes_down=2_000, bytes_up=3_000_000)])
    down, *_ = get_line_chart(build_charts(tmp_path / "b"), "costs").panels
    assert (down.y_label, down.lines[0].y[0]) == ("MB to the nodes, a round", 0.002)


# --- clients ----------------------------------------------------------------------------------


def write_clients(run: Path, rows: list[tuple[int, int, bool, str]], **columns: Any) -> None:
    write_table(
        run,
        "clients",
        [
            {"round": t, "client": k, "priority": p, "status": s, "weight": 0.0, **columns}
            for t, k, p, s in rows
        ],
    )


def test_the_raster_shows_the_status_of_clients_by_round(tmp_path: Path) -> None:
    """Rows are clients, priority first, columns are rounds; unselected clients are blank."""
    run = make_run(tmp_path / "run", [make_round_line(1), make_round_line(2)])
    write_clients(
        run,
        [(1, 2, True, "trained"), (2, 2, True, "failed"), (2, 0, False, "declined")],
    )
    chart = get_grid_chart(build_charts(tmp_path), "participation")
    (layer,) = chart.layers
    names = [name for name, _ in STATUS_COLORS]
    assert (layer.rows, layer.columns, layer.divider) == (("2", "0"), ("1", "2"), 1)
    assert [[names[code] for code in row] for row in layer.values] == [
        ["trained", "failed"],
        ["not selected", "declined"],
    ]


def test_rasters_have_the_names_of_clients(tmp_path: Path) -> None:
    """They are others' text: no markup, no formula, and cut where they are long."""
    run = make_run(tmp_path / "run", [make_round_line(1)])
    write_clients(run, [(1, k, True, "trained") for k in range(4)])
    write_population(run, [1.0] * 4, [True] * 4, ["<b>North</b>", "$x_$", "y" * 90, None])
    chart = get_grid_chart(build_charts(tmp_path), "participation")
    rows = ("<b>North</b>", "$x_$", f"{'y' * 24}... (id 2)", "3")
    assert chart.layers[0].rows == rows
    shown = build_plotly_spec(chart)["panels"][0]["data"][0]["y"]
    assert shown[:2] == ["&lt;b&gt;North&lt;/b&gt;", "$x_$"]
    axes = draw_figure(chart).axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == [*rows]
    assert not any(label.get_parse_math() for label in axes.get_yticklabels())


def test_equal_rasters_are_drawn_once(tmp_path: Path) -> None:
    """Methods with the same availability share a raster, which has all their names."""
    for strategy, status in (("fedau", "trained"), ("mifa", "trained"), ("fedvarp", "failed")):
        run = make_run(tmp_path / strategy, [make_round_line(1)], strategy=strategy)
        write_clients(run, [(1, 0, True, status)])
    layers = get_grid_chart(build_charts(tmp_path), "participation").layers
    assert [layer.label for layer in layers] == ["FedAU, seed 1; MIFA, seed 1", "FedVarp, seed 1"]


def test_a_long_raster_is_subsampled_with_a_note(tmp_path: Path) -> None:
    """Thousands of clients fit into a page."""
    run = make_run(tmp_path / "run", [make_round_line(1)])
    write_clients(run, [(1, k, True, "trained") for k in range(2000)])
    chart = get_grid_chart(build_charts(tmp_path), "participation")
    assert len(chart.layers[0].rows) <= MAX_ROWS + 1
    assert "evenly picked" in chart.note


def test_mixing_coefficients_are_a_table_over_rounds(tmp_path: Path) -> None:
    """The chart has p by client and round; rules without p have none."""
    run = make_run(
        tmp_path / "a" / "run", [make_round_line(1), make_round_line(2)], strategy="aaggff_d"
    )
    write_clients(run, [(1, 0, True, "trained"), (2, 1, True, "trained")], mixing_coefficient=0.25)
    (layer,) = get_grid_chart(build_charts(tmp_path / "a"), "mixing").layers
    np.testing.assert_array_equal(layer.values, [[0.25, math.nan], [math.nan, 0.25]])
    other = make_run(tmp_path / "b" / "run", [make_round_line(1)], strategy="fedavg")
    write_clients(other, [(1, 0, True, "trained")])
    assert "mixing" not in build_charts(tmp_path / "b")


def test_omega_is_drawn_against_the_simulations_rates(tmp_path: Path) -> None:
    """The chart has each client's last omega over 1 / p_n, if p_n is recorded."""
    run = make_run(
        tmp_path / "run",
        [make_round_line(1), make_round_line(2, weight_error=0.5)],
        strategy="fedau",
    )
    rows = [
        {
            "round": t,
            "client": k,
            "priority": True,
            "status": "trained",
            "weight": 0.1,
            "participation_correction": w,
        }
        for t, k, w in ((1, 0, 1.0), (1, 1, 1.0), (2, 0, 3.0))
    ]
    write_table(run, "clients", rows)
    assert "omega" not in build_charts(tmp_path)
    write_population(run, rates=[0.5, 0.25], priority=[True, True])
    estimates, error = get_line_chart(build_charts(tmp_path), "omega").panels
    (points,) = estimates.lines
    np.testing.assert_allclose(points.x, [2, 4])
    np.testing.assert_allclose(points.y, [3, 1])
    assert (points.markers_only, estimates.has_diagonal, points.hover_texts) == (
        True,
        True,
        ["client 0", "client 1"],
    )
    np.testing.assert_allclose(error.lines[0].y, [0.5])


@pytest.mark.parametrize(("strategy", "drawn"), [("composed", True), ("known_statistics", False)])
def test_omega_is_drawn_for_every_rule_that_estimates_it(
    tmp_path: Path, strategy: str, drawn: bool
) -> None:
    """A composed rule may have FedAU's omega; a rule that receives p_n estimates none."""
    run = make_run(tmp_path / "run", [make_round_line(1, weight_error=0.5)], strategy=strategy)
    row = {"round": 1, "client": 0, "priority": True, "status": "trained", "weight": 0.1}
    write_table(run, "clients", [row | {"participation_correction": 3.0}])
    write_population(run, rates=[0.5], priority=[True])
    assert ("omega" in build_charts(tmp_path)) == drawn


def test_the_reliability_diagram_adds_the_bins_of_clients_and_seeds(tmp_path: Path) -> None:
    """Of the last evaluation: accuracy over mean confidence in each bin that has predictions."""
    rows = {1: [(1, 0, 14, 8, 8), (2, 0, 14, 4, 3), (2, 1, 14, 6, 3)], 2: [(2, 0, 7, 5, 4)]}
    for seed, of_seed in rows.items():
        run = make_run(
            tmp_path / str(seed), [make_round_line(1, test=make_test_metrics(0.5))], seed=seed
        )
        table = [
            {
                "round": t,
                "client": k,
                "priority": True,
                "test_num_examples": count,
                "test_accuracy": correct / count,
                "test_calibration": make_full_bin(b, count, correct),
            }
            for t, k, b, count, correct in of_seed
        ]
        write_table(run, "evaluations", table)
    (panel,) = get_line_chart(build_charts(tmp_path), "calibration").panels
    (line,) = panel.lines
    np.testing.assert_allclose(line.x, [100 * 8 / 15, 100])
    np.testing.assert_allclose(line.y, [80, 60])
    assert [*line.hover_texts] == ["5 predictions", "10 predictions"]
    assert panel.has_diagonal


def test_runs_without_calibration_have_no_reliability_diagram(tmp_path: Path) -> None:
    """Numbers are predicted, or the clients send none."""
    run = make_run(tmp_path / "run", [make_round_line(1, test=make_test_metrics(0.5))])
    row = {"round": 1, "client": 0, "priority": True, "test_num_examples": 1, "test_accuracy": 0.5}
    write_table(run, "evaluations", [row])
    charts = build_charts(tmp_path)
    assert "distribution" in charts
    assert "calibration" not in charts


def test_the_distribution_ranks_the_clients_values(tmp_path: Path) -> None:
    """Values of the last evaluation ascend, mean over seeds by rank; hovering shows the Gini."""
    for seed, shift in ((1, 0.0), (2, 0.2)):
        run = make_run(
            tmp_path / str(seed), [make_round_line(1, test=make_test_metrics(0.5))], seed=seed
        )
        write_table(
            run,
            "evaluations",
            [
                {
                    "round": t,
                    "client": k,
                    "priority": True,
                    "test_num_examples": 10,
                    "test_accuracy": value,
                }
                for t, k, value in ((1, 0, 0.9), (2, 0, 0.6 + shift), (2, 1, 0.2 + shift))
            ],
        )
    (panel,) = get_line_chart(build_charts(tmp_path), "distribution").panels
    (curve,) = panel.lines
    assert (curve.x[0], curve.x[-1]) == (0.0, 100.0)
    np.testing.assert_allclose(curve.y[[0, -1]], [30, 70])
    assert curve.half_width is not None
    np.testing.assert_allclose(curve.half_width, math.sqrt(200), rtol=1e-12)
    assert panel.shaded_ranges == ((0.0, 10.0), (90.0, 100.0))
    gini = (0.4 / (2 * 0.8) + 0.4 / (2 * 1.2)) / 2
    assert curve.hover_texts[0] == f"worst 10 % 30.0, best 10 % 70.0, Gini {100 * gini:.2f} %"


# --- sweeps -----------------------------------------------------------------------------------


def make_sweep(directory: Path, **of_epsilon: float) -> None:
    for epsilon, value in of_epsilon.items():
        number = epsilon.removeprefix("e").replace("_", ".")
        settings = f"strategy:\n  name: fedalign\n  epsilon: {number}\n"
        make_run(
            directory / epsilon,
            [make_round_line(1, test=make_test_metrics(value))],
            settings=settings,
        )


def test_a_swept_setting_is_a_curve_with_infinity_at_its_end(tmp_path: Path) -> None:
    """Values are in order; methods without the setting are reference lines."""
    make_sweep(tmp_path, **{"e.inf": 0.3, "e0_2": 0.5, "e0": 0.4})
    baseline = "strategy:\n  name: fedavg\n"
    make_run(
        tmp_path / "b",
        [make_round_line(1, test=make_test_metrics(0.1))],
        settings=baseline,
        strategy="fedavg",
    )
    chart = get_line_chart(build_charts(tmp_path), "sweep-strategy-epsilon")
    panel = chart.panels[0]
    assert panel.x_ticks is not None
    assert panel.x_ticks.labels == ("0", "0.2", "inf")
    (curve,) = panel.lines
    np.testing.assert_allclose(curve.x, [0, 1, 2])
    np.testing.assert_allclose(curve.y, [40, 50, 30])
    assert [(level.label, level.y) for level in panel.reference_lines] == [("FedAvg", 10.0)]


def test_two_swept_settings_are_a_heat_map_too(tmp_path: Path) -> None:
    """Cells without a run are blank; there is also a curve for each value of the other."""
    for epsilon, lr, value in ((0.1, 1, 0.1), (0.1, 2, 0.2), (0.3, 1, 0.3)):
        settings = f"strategy:\n  name: fedalign\n  epsilon: {epsilon}\nclient:\n  lr: {lr}\n"
        make_run(
            tmp_path / f"{epsilon}_{lr}",
            [make_round_line(1, test=make_test_metrics(value))],
            settings=settings,
        )
    found = build_charts(tmp_path)
    chart = get_grid_chart(found, "heat-fedalign")
    layer = chart.layers[0]
    assert (chart.x_label, chart.y_label) == ("epsilon", "client rate")
    assert (layer.columns, layer.rows) == (("0.1", "0.3"), ("1", "2"))
    expected = np.array([[10.0, 30.0], [20.0, math.nan]])
    np.testing.assert_allclose(layer.values, expected, rtol=1e-6)
    curves = get_line_chart(found, "sweep-strategy-epsilon").panels[0].lines
    assert [one.label for one in curves] == ["FedALIGN, client rate 1", "FedALIGN, client rate 2"]


def test_methods_alone_are_no_sweep(tmp_path: Path) -> None:
    """Strategies differ in many settings, but none of them is swept."""
    for strategy in ("fedalign", "fedavg"):
        settings = f"strategy:\n  name: {strategy}\n"
        make_run(tmp_path / strategy, [make_round_line(1)], settings=settings, strategy=strategy)
    assert not any(name.startswith(("sweep", "heat")) for name in build_charts(tmp_path))


# --- published numbers ------------------------------------------------------------------------


def test_a_published_number_needs_the_same_data_method_and_availability() -> None:
    """FedAU's table is for the real CIFAR-10: a subset under the same preset has no line."""
    settings = {
        "data.name": "cifar10",
        "strategy.name": "fedau",
        "strategy.cutoff": math.inf,
        "availability.name": "cyclic",
    }
    (one,) = find_published_results("fedau/cifar10", settings)
    assert one.values == {"test": pytest.approx(0.763)}
    assert "Wang and Ji" in one.source
    assert find_published_results("fedau/cifar10", settings | {"data.name": "npz"}) == ()
    assert find_published_results("fedau/fmnist", settings) == ()
    (other,) = find_published_results("fedau/cifar10", settings | {"strategy.cutoff": 50.0})
    assert other.values == {"test": pytest.approx(0.766)}


def test_published_numbers_are_reference_lines_of_their_methods(tmp_path: Path) -> None:
    """The line has the method's color, and the note names the paper."""
    settings = "strategy:\n  name: term\nevaluation:\n  metric: auroc\n"
    make_run(
        tmp_path / "run",
        [make_round_line(1, test=make_test_metrics(0.5, auroc=0.6))],
        settings=settings,
        strategy="term",
        experiment="aaggff/berka",
    )
    chart = get_line_chart(build_charts(tmp_path), "training")
    auroc, *others = chart.panels
    (level,) = auroc.reference_lines
    assert level.y == pytest.approx(80.11)
    assert (level.style, level.label) == (0, "TERM")
    assert all(panel.reference_lines == () for panel in others)
    assert "Hahn, Kim and Lee" in chart.note


# --- drawing ----------------------------------------------------------------------------------


def make_lines(*ends: float, rounds: int = 30, spread: float | None = 1.0) -> tuple[Line, ...]:
    """Make straight lines from 0, named a, b and so on."""
    x = np.arange(1.0, rounds + 1)
    band_width = None if spread is None else np.full(rounds, spread)
    return tuple(
        Line("abcdefghijklmnop"[index], index, x, np.linspace(0.0, end, rounds), band_width)
        for index, end in enumerate(ends)
    )


def make_chart(*panels: Panel) -> LineChart:
    return LineChart("one", "", "", panels)


def test_styles_differ_also_in_gray() -> None:
    """Adjacent styles have different dashes; the first 32 styles are distinct."""
    styles = [get_line_style(style) for style in range(len(METHOD_COLORS) * NUM_DASHES)]
    assert len(set(styles)) == len(styles)
    assert all(one[1] != other[1] for one, other in pairwise(styles[: len(METHOD_COLORS)]))


def test_few_lines_have_bands() -> None:
    """Four bands would hide each other: they are bars, at different points of each line."""
    few = Panel("", "round", "y", make_lines(1, 2, 3))
    assert has_bands(few)
    assert all(len(select_bar_points(few, line)) == 0 for line in few.lines)
    many = Panel("", "round", "y", make_lines(1, 2, 3, 4))
    assert not has_bands(many)
    indices = np.concatenate([select_bar_points(many, line) for line in many.lines])
    assert len(np.unique(indices)) == len(indices) >= 12
    assert all(len(select_bar_points(many, line)) >= 3 for line in many.lines)


@pytest.mark.parametrize(("lines", "rounds"), [(16, 30), (4, 4), (5, 3), (4, 1)])
def test_every_line_has_a_bar(lines: int, rounds: int) -> None:
    """With many lines and with few points."""
    panel = Panel("", "round", "y", make_lines(*range(lines), rounds=rounds))
    for one in panel.lines:
        indices = select_bar_points(panel, one)
        assert len(indices) >= 1
        assert 0 <= indices.min() <= indices.max() < rounds


def test_a_sweep_has_a_bar_at_every_point() -> None:
    """Also a single line has them."""
    panel = Panel("", "K", "y", make_lines(1, rounds=4), has_bars=True)
    assert select_bar_points(panel, panel.lines[0]).tolist() == [0, 1, 2, 3]


def test_an_axis_includes_everything_drawn() -> None:
    """Lines, bands and reference lines; a constant still has a range."""
    panel = Panel("", "x", "y", make_lines(4, spread=1.0), (ReferenceLine("z", 1, 7.0, ""),))
    low, high = compute_y_limits(panel)
    assert -1.5 < low < -1.0
    assert 7.0 < high < 7.5
    low, high = compute_y_limits(Panel("", "x", "y", make_lines(0, spread=None)))
    assert low < 0.0 < high


@pytest.mark.parametrize(("log", "end"), [("", 1e250), ("", -1e250), ("y", 1e250)])
def test_a_diverged_run_is_drawn(log: str, end: float) -> None:
    """Huge numbers do not break an axis."""
    x, first = np.array([1.0, 2.0]), 1.0 if log else -end
    lines = (Line("a", 0, x, np.array([first, end])), Line("b", 1, x, np.array([end, end])))
    panel = Panel("", "x", "y", lines, log_axes=log, bounds=NO_BOUNDS)
    assert all(map(math.isfinite, compute_y_limits(panel)))
    assert len(build_plotly_spec(make_chart(panel))["panels"]) == 1
    draw_figure(make_chart(panel))


@pytest.mark.parametrize("end", [2.5, 50.0, 5e6])
def test_a_log_scale_has_ticks_for_any_range(end: float) -> None:
    """They are at 1, 2 and 5, at powers of 10, or Plotly's."""
    y = np.array([1.2, end])
    panel = Panel("", "x", "y", (Line("a", 0, y, y),), log_axes="xy")
    ticks = compute_log_ticks(math.log10(1.2), math.log10(end))
    assert all(1.2 <= tick <= end for tick in ticks)
    axis = build_panel_figure(make_chart(panel), panel).layout.yaxis
    assert axis.type == "log"
    assert (axis.tickvals is None) == (end == 2.5)
    assert 10 ** axis.range[0] < 1.2 < end < 10 ** axis.range[1]
    assert draw_figure(make_chart(panel)).axes[0].get_yscale() == "log"


def test_a_log_axis_of_the_smallest_float_has_ticks() -> None:
    """Powers of 10 below the smallest float are 0, which has no logarithm."""
    ticks = compute_log_ticks(-324.0, -300.0)
    assert all(tick > 0 for tick in ticks)
    assert ticks


def test_lines_have_their_names_at_their_ends() -> None:
    """Names are near the ends, in order, without overlaps."""
    panel = Panel(
        "", "round", "y", make_lines(10, 9.9, 1), (ReferenceLine("level", 3, 5.0, "text"),)
    )
    names = place_end_labels(make_chart(panel), panel, line_letters=20, height_in_lines=20)
    indices = {name.label: name.position for name in names}
    assert indices["c"] < indices["level"] < indices["b"] < indices["a"]
    assert indices["a"] - indices["b"] == pytest.approx(1 / 20)
    low, high = compute_y_limits(panel)
    assert indices["c"] == pytest.approx((1 - low) / (high - low))


def test_names_omit_their_common_prefix() -> None:
    """In a sweep over epsilon, that is the method; a long name has several lines."""
    x = np.array([1.0, 2.0])
    labels = ("FedALIGN, epsilon 0.1", "FedALIGN, epsilon falls to 0 at half")
    panel = Panel("", "", "", tuple(Line(label, k, x, x + k) for k, label in enumerate(labels)))
    names = place_end_labels(make_chart(panel), panel, line_letters=12, height_in_lines=20)
    assert [name.text_lines for name in names] == [
        ("epsilon 0.1",),
        ("epsilon", "falls to 0", "at half"),
    ]


def test_names_that_do_not_fit_are_left_to_the_legend() -> None:
    """For example with very many methods, or if the panel wants no names."""
    panel = Panel("", "", "", make_lines(*range(16)))
    assert place_end_labels(make_chart(panel), panel, line_letters=20, height_in_lines=15) == []
    unnamed = replace(panel, has_line_names=False)
    assert place_end_labels(make_chart(unnamed), unnamed, line_letters=20, height_in_lines=50) == []


def test_names_that_would_be_equal_once_shortened_are_left_to_the_legend() -> None:
    """Trials of a tuning often begin with the same words; the legend has their full names."""
    x = np.array([1.0, 2.0])
    labels = [f"FedAvg, client rate 0.05, momentum {k}" for k in (0.1, 0.2)] + ["TERM"]
    panel = Panel("", "", "", tuple(Line(label, k, x, x + k) for k, label in enumerate(labels)))
    names = place_end_labels(make_chart(panel), panel, line_letters=20, height_in_lines=20)
    assert len({name.text_lines for name in names}) == len(labels)
    assert place_end_labels(make_chart(panel), panel, line_letters=20, height_in_lines=4) == []


def test_names_are_beside_both_drawings() -> None:
    """The page's script hides those of hidden methods; on paper they replace a legend."""
    chart = make_chart(Panel("", "round", "y", make_lines(10, 1)))
    (panel,) = build_plotly_spec(chart)["panels"]
    written = {one["name"]: one["text"] for one in panel["layout"]["annotations"]}
    assert written == {"a": "a", "b": "b"}
    drawn = draw_figure(chart)
    assert [text.get_text() for text in drawn.axes[0].texts] == ["a", "b"]
    assert drawn.legends == []
    without = make_chart(replace(chart.panels[0], has_line_names=False))
    assert len(draw_figure(without).legends) == 1


def test_a_method_alone_has_no_name_at_its_end(tmp_path: Path) -> None:
    """The legend has the name."""
    make_run(tmp_path / "run", [make_round_line(n) for n in (1, 2)])
    chart = get_line_chart(build_charts(tmp_path), "training")
    shown = build_plotly_spec(chart)
    assert [entry["label"] for entry in shown["legend"]] == ["FedALIGN"]
    assert all("annotations" not in panel["layout"] for panel in shown["panels"])


def test_both_drawings_have_the_same_lines(tmp_path: Path) -> None:
    """Plotly and matplotlib draw the same curves and bands."""
    for seed, value in ((1, 0.5), (2, 0.7)):
        rounds = [
            make_round_line(n, test=make_test_metrics(value), global_loss=value) for n in (1, 2)
        ]
        make_run(tmp_path / str(seed), rounds, seed=seed)
    make_run(
        tmp_path / "other",
        [make_round_line(n, test=make_test_metrics(0.2)) for n in (1, 2)],
        strategy="fedavg",
    )
    chart = get_line_chart(build_charts(tmp_path), "training")
    figures = [build_panel_figure(chart, panel) for panel in chart.panels]
    for panel, figure in zip(chart.panels, figures, strict=True):
        assert len([t for t in figure.data if t.fill is None]) == len(panel.lines)
    bands = [trace for trace in figures[0].data if trace.fill == "toself"]
    assert {trace.legendgroup for trace in bands} == {"FedALIGN"}
    legend = build_plotly_spec(chart)["legend"]
    assert [entry["label"] for entry in legend] == ["FedALIGN", "FedAvg"]
    axes = draw_figure(chart).axes
    drawn = [np.asarray(one.get_ydata(), dtype=np.float64) for one in axes[0].lines]
    np.testing.assert_allclose(drawn, [[60, 60], [20, 20]])
    assert len(axes[0].collections) == 1


def test_bars_are_in_both_drawings() -> None:
    """Bars end at the bounds of the panel."""
    panel = Panel(
        "", "K", "y", make_lines(1, rounds=2, spread=5.0), has_bars=True, bounds=(0.0, 3.0)
    )
    (trace,) = build_panel_figure(make_chart(panel), panel).data
    np.testing.assert_allclose(trace.error_y.array, [3.0, 2.0])
    np.testing.assert_allclose(trace.error_y.arrayminus, [0.0, 1.0])
    (bars,) = draw_figure(make_chart(panel)).axes[0].collections
    assert isinstance(bars, LineCollection)
    assert [one.tolist() for one in bars.get_segments()] == [
        [[1.0, 0.0], [1.0, 3.0]],
        [[2.0, 0.0], [2.0, 3.0]],
    ]


def test_a_narrow_paper_has_a_file_for_each_panel() -> None:
    """Stacked panels would be higher than a page; side by side they are one figure."""
    chart = make_chart(
        *(Panel(title, "round", "test accuracy, %", make_lines(1, 2)) for title in ("all", "some"))
    )
    names = [name for name, _ in split_for_paper(chart, 3.3)]
    assert names == ["one_1_test-accuracy-all", "one_2_test-accuracy-some"]
    ((name, whole),) = split_for_paper(chart, 6.9)
    assert (name, whole) == ("one", chart)
    width, height = draw_figure(chart, 6.9).get_size_inches()
    assert width == pytest.approx(6.9)
    assert height < 3.0
    _, height = draw_figure(make_chart(chart.panels[0]), 6.9).get_size_inches()
    assert height < 4.0  # a panel alone is not higher than on a screen


def test_layers_are_choices_of_one_chart(tmp_path: Path) -> None:
    """The legend has only the statuses that occur."""
    for strategy, status in (("fedau", "trained"), ("mifa", "failed")):
        run = make_run(tmp_path / strategy, [make_round_line(1)], strategy=strategy)
        write_clients(run, [(1, 0, True, status)])
    shown = build_plotly_spec(get_grid_chart(build_charts(tmp_path), "participation"))
    assert shown["choices"] == ["FedAU, seed 1", "MIFA, seed 1"]
    assert [entry["label"] for entry in shown["legend"]] == ["trained", "failed"]
    assert len(shown["panels"]) == 2


def test_settings_are_not_markup_in_charts(tmp_path: Path) -> None:
    """Plotly interprets HTML in names: settings are escaped."""
    for name in ("<b>", "<i>"):
        settings = f"data:\n  drop: '{name}'\n"
        make_run(tmp_path / name.strip("<>"), [make_round_line(1)], settings=settings)
    chart = get_line_chart(build_charts(tmp_path), "training")
    figures = [build_panel_figure(chart, panel) for panel in chart.panels]
    names = {trace.name for figure in figures for trace in figure.data}
    assert names == {"FedALIGN, drop &lt;b&gt;", "FedALIGN, drop &lt;i&gt;"}
    written = {one.text for figure in figures for one in figure.layout.annotations}
    assert written == {"drop &lt;b&gt;", "drop &lt;i&gt;"}


@pytest.mark.parametrize(("count", "max_count"), [(0, 5), (1, 5), (5, 5), (6, 5), (1000, 7)])
def test_subsampling_retains_both_ends(count: int, max_count: int) -> None:
    """At most one index more than requested, and none twice."""
    indices = sample_indices(count, max_count)
    assert len(indices) <= max_count + 1
    assert len(set(indices.tolist())) == len(indices)
    if count:
        assert (indices[0], indices[-1]) == (0, count - 1)
