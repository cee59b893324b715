"""Tests of the charts on a study's page."""

import math
from dataclasses import replace

import numpy as np
import pytest

from server_app.study.charts import (
    StudyChart,
    build_study_charts,
    build_tuning_charts,
    get_method_color,
)
from server_app.study.charts.forest import compute_differences_by_seed
from server_app.study.charts.trade_off import find_pareto_front
from server_app.study.result import StudyResult, Trial
from tests.builders_study import (
    BASE,
    add_to_baseline,
    make_curve,
    make_method_result,
    make_study_answer,
)

UP = add_to_baseline(2.0, 3.0, 1.8, 2.2, 2.4)
SCORES = {"fedavg": BASE, "fedau": UP, "mifa": add_to_baseline(-1, 0, -1, -1.5, -1)}
NAMES = ["differences", "trade-off", "scores", "leads"]


def build_charts(result: StudyResult) -> dict[str, StudyChart]:
    """Build the charts by name."""
    return {chart.name: chart for chart in build_study_charts(result)}


def list_annotations(chart: StudyChart) -> list[str]:
    """List the texts of a chart's annotations."""
    return [one.text for one in chart.figure.layout.annotations]


# --- the Pareto front -------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(30))
def test_the_front_has_all_undominated_points(seed: int) -> None:
    """By the definition, on points that often share a coordinate."""
    rng = np.random.default_rng(seed)
    points = [(float(x), float(y)) for x, y in rng.integers(0, 6, size=(rng.integers(1, 12), 2))]
    front = find_pareto_front(points)

    def dominates(one: tuple[float, float], other: tuple[float, float]) -> bool:
        return one != other and one[0] >= other[0] and one[1] >= other[1]

    for index, point in enumerate(points):
        assert (index in front) == (not any(dominates(other, point) for other in points))
    ascending = [points[index] for index in front]
    assert ascending == sorted(ascending)
    assert [y for _, y in ascending] == sorted((y for _, y in ascending), reverse=True)


def test_axes_are_reversed_if_lower_is_better() -> None:
    """Better is up and to the right for every metric."""
    lower = {name: [1.0 - score for score in scores] for name, scores in SCORES.items()}
    chart = build_charts(make_study_answer(lower, metric="loss"))["trade-off"].figure
    for axis in (chart.layout.xaxis, chart.layout.yaxis):
        assert axis.range[0] > axis.range[1]
    front, points = chart.data
    assert list(front.x[1:-1]) == [min(points.x)]


def test_methods_at_the_same_point_share_a_label() -> None:
    """Overlapping names would be unreadable; hovering shows each."""
    same = ["fedavg", "fedawe", "custom"]  # as long as each other: the builder draws by length
    points = build_charts(make_study_answer(dict.fromkeys(same, BASE) | {"afl": UP}))[
        "trade-off"
    ].figure.data[1]
    assert list(points.text) == ["FedAvg, FedAWE, custom", "", "", "AFL"]
    assert list(points.hovertext) == ["FedAvg", "FedAWE", "custom", "AFL"]
    five = dict.fromkeys([*same, "rule_1", "rule_2"], BASE) | {"afl": UP}
    points = build_charts(make_study_answer(five))["trade-off"].figure.data[1]
    assert [text for text in points.text if text] == ["FedAvg, 4 others", "AFL"]


# --- differences ------------------------------------------------------------------------------


def test_differences_are_positive_if_better() -> None:
    """Seed by seed, in the metric's direction."""
    result = make_study_answer(SCORES)
    assert compute_differences_by_seed(result, result.methods[1]) == pytest.approx(
        [0.02, 0.03, 0.018, 0.022, 0.024]
    )
    loss = make_study_answer(SCORES, metric="loss")
    assert compute_differences_by_seed(loss, loss.methods[1])[0] == pytest.approx(-0.02)


def test_seeds_are_paired_by_their_number() -> None:
    """A seed that the baseline lacks has no difference."""
    result = make_study_answer(SCORES)
    fedau = result.methods[1]
    runs = (replace(fedau.runs[1], seed=9), fedau.runs[0])
    assert compute_differences_by_seed(result, replace(fedau, runs=runs)) == pytest.approx([0.02])


def test_the_forest_plot_has_a_row_for_each_method() -> None:
    """The row has its numbers, its interval and every seed, in points."""
    chart = build_charts(make_study_answer(SCORES))["differences"]
    first, second, baseline = list_annotations(chart)
    assert first.startswith("<b>FedAU</b>  +2.3 (+1.6 to +")
    assert second.startswith("<b>MIFA</b>  ")
    assert baseline == "FedAvg"
    interval, dots = chart.figure.data[:2]
    assert interval.x[1] == pytest.approx(2.28)
    assert len(dots.x) == 5
    assert "simultaneous" in chart.note


def test_few_seeds_have_no_intervals() -> None:
    """Only the dots are drawn."""
    chart = build_charts(make_study_answer({name: scores[:3] for name, scores in SCORES.items()}))[
        "differences"
    ]
    assert [trace.mode for trace in chart.figure.data] == ["markers"] * 2
    assert "too few seeds" in chart.note


# --- by round and the tuning ------------------------------------------------------------------


def test_every_line_has_its_name_at_its_end() -> None:
    """In the method's color, which all charts share; the baseline is black."""
    result = make_study_answer(SCORES)
    charts = build_charts(result)
    assert list(charts) == NAMES
    assert list_annotations(charts["scores"]) == ["FedAvg", "FedAU", "MIFA"]
    assert list_annotations(charts["leads"])[:2] == ["FedAU", "MIFA"]
    colors = {one.text: one.font.color for one in charts["scores"].figure.layout.annotations}
    assert colors["FedAvg"] == get_method_color(result, "fedavg") == "#000000"
    assert colors["FedAU"] == get_method_color(result, "fedau")
    assert len(set(colors.values())) == 3


def test_leads_exist_at_rounds_that_both_evaluated() -> None:
    """The last lead is the difference of the scores."""
    result = make_study_answer(SCORES)
    fedavg, fedau, mifa = result.methods
    fewer = tuple(replace(run, curve=run.curve[::2]) for run in fedau.runs)
    some_rounds = replace(result, methods=(fedavg, replace(fedau, runs=fewer), mifa))
    lead = next(t for t in build_charts(some_rounds)["leads"].figure.data if t.name == "FedAU")
    assert len(lead.x) == len(fewer[0].curve)
    assert lead.y[-1] == pytest.approx(2.28, abs=0.01)


def test_charts_without_anything_to_draw_are_left_out() -> None:
    """A baseline alone has no leads; without runs there is no chart."""
    assert "differences" not in build_charts(make_study_answer({"fedavg": BASE}))
    assert build_charts(make_study_answer({"fedavg": [], "mifa": []})) == {}
    result = make_study_answer(SCORES)
    bare = (
        replace(
            one, runs=tuple(replace(run, curve=(), measures={"all": math.nan}) for run in one.runs)
        )
        for one in result.methods
    )
    assert list(build_charts(replace(result, methods=tuple(bare)))) == ["differences"]


def test_the_best_trial_is_emphasized_and_drawn_last() -> None:
    """Pruned ones come first and are pale; a failed one has no curve but is counted."""
    best = Trial(("client.lr=0.1",), "completed", 0.7, make_curve(0.7, 0.1))
    trials = (
        best,
        Trial((), "completed", 0.6, make_curve(0.6, 0.1)),
        Trial(("client.lr=9",), "pruned", 0.2, make_curve(0.2, 0.1)[:5]),
        Trial(("client.lr=99",), "failed", None, ()),
    )
    methods = [
        make_method_result("fedavg", BASE, trials=trials, tuned=best.words),
        make_method_result("mifa", UP),
    ]
    result = make_study_answer({"fedavg": BASE, "mifa": UP}, methods=methods)
    (chart,) = build_tuning_charts(result)
    assert chart.note == "4 trials, 1 pruned, 1 failed. Best: client rate 0.1."
    last = chart.figure.data[-1]
    assert (last.line.color, last.y[-1]) == (
        get_method_color(result, "fedavg"),
        pytest.approx(70.0, abs=1),
    )
    widths = [trace.line.width for trace in chart.figure.data]
    assert widths == sorted(widths)
    assert last.text == "client rate 0.1 (completed)"
