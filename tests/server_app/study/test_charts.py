"""What the page of a study draws."""

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


def drawn(said: StudyResult) -> dict[str, StudyChart]:
    """Return the charts by name."""
    return {chart.name: chart for chart in build_study_charts(said)}


def written(chart: StudyChart) -> list[str]:
    """Return all that is written into a chart, beside its axes."""
    return [one.text for one in chart.figure.layout.annotations]


# --- the Pareto front -------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(30))
def test_the_front_is_all_that_nobody_beats(seed: int) -> None:
    """By definition, on points that often share a coordinate."""
    rng = np.random.default_rng(seed)
    points = [(float(x), float(y)) for x, y in rng.integers(0, 6, size=(rng.integers(1, 12), 2))]
    front = find_pareto_front(points)

    def beats(one: tuple[float, float], other: tuple[float, float]) -> bool:
        return one != other and one[0] >= other[0] and one[1] >= other[1]

    for place, point in enumerate(points):
        assert (place in front) == (not any(beats(other, point) for other in points))
    ascending = [points[place] for place in front]
    assert ascending == sorted(ascending)
    assert [y for _, y in ascending] == sorted((y for _, y in ascending), reverse=True)


def test_where_lower_is_better_the_axes_are_turned() -> None:
    """Better is up and to the right, whatever the metric."""
    lower = {name: [1.0 - score for score in scores] for name, scores in SCORES.items()}
    chart = drawn(make_study_answer(lower, metric="loss"))["trade-off"].figure
    for axis in (chart.layout.xaxis, chart.layout.yaxis):
        assert axis.range[0] > axis.range[1]
    front, points = chart.data
    assert list(front.x[1:-1]) == [min(points.x)]


def test_methods_at_the_same_point_share_a_label() -> None:
    """Names over each other could not be read; hovering tells each."""
    same = ["fedavg", "fedawe", "custom"]  # as long as each other: the builder draws by length
    points = drawn(make_study_answer(dict.fromkeys(same, BASE) | {"afl": UP}))[
        "trade-off"
    ].figure.data[1]
    assert list(points.text) == ["FedAvg, FedAWE, custom", "", "", "AFL"]
    assert list(points.hovertext) == ["FedAvg", "FedAWE", "custom", "AFL"]
    five = dict.fromkeys([*same, "rule_1", "rule_2"], BASE) | {"afl": UP}
    points = drawn(make_study_answer(five))["trade-off"].figure.data[1]
    assert [text for text in points.text if text] == ["FedAvg, 4 others", "AFL"]


# --- differences ------------------------------------------------------------------------------


def test_differences_are_positive_where_better() -> None:
    """Seed by seed, whichever way the metric goes."""
    said = make_study_answer(SCORES)
    assert compute_differences_by_seed(said, said.methods[1]) == pytest.approx(
        [0.02, 0.03, 0.018, 0.022, 0.024]
    )
    loss = make_study_answer(SCORES, metric="loss")
    assert compute_differences_by_seed(loss, loss.methods[1])[0] == pytest.approx(-0.02)


def test_seeds_are_paired_by_their_number() -> None:
    """A seed that the baseline lacks has no difference."""
    said = make_study_answer(SCORES)
    fedau = said.methods[1]
    runs = (replace(fedau.runs[1], seed=9), fedau.runs[0])
    assert compute_differences_by_seed(said, replace(fedau, runs=runs)) == pytest.approx([0.02])


def test_the_forest_plot_has_a_row_for_each_method() -> None:
    """With its numbers, both intervals, and every seed, in points."""
    chart = drawn(make_study_answer(SCORES))["differences"]
    first, second, baseline = written(chart)
    assert first.startswith("<b>FedAU</b>  +2.3 (+1.6 to +")
    assert second.startswith("<b>MIFA</b>  ")
    assert baseline == "FedAvg"
    thin, thick, dots = chart.figure.data[:3]
    assert thick.x[1] == pytest.approx(2.28)
    assert thin.x[1] == pytest.approx(2.08)
    assert len(dots.x) == 5
    assert "simultaneous" in chart.note
    assert "Thin:" in chart.note


def test_few_seeds_have_no_intervals() -> None:
    """Only the dots are drawn."""
    chart = drawn(make_study_answer({name: scores[:3] for name, scores in SCORES.items()}))[
        "differences"
    ]
    assert [trace.mode for trace in chart.figure.data] == ["markers"] * 2
    assert "too few seeds" in chart.note


# --- by round and the tuning ------------------------------------------------------------------


def test_every_line_has_its_name_at_its_end() -> None:
    """In the method's colour, which is the same in all charts; black is the baseline's."""
    said = make_study_answer(SCORES)
    charts = drawn(said)
    assert list(charts) == NAMES
    assert written(charts["scores"]) == ["FedAvg", "FedAU", "MIFA"]
    assert written(charts["leads"])[:2] == ["FedAU", "MIFA"]
    colours = {one.text: one.font.color for one in charts["scores"].figure.layout.annotations}
    assert colours["FedAvg"] == get_method_color(said, "fedavg") == "#000000"
    assert colours["FedAU"] == get_method_color(said, "fedau")
    assert len(set(colours.values())) == 3


def test_leads_are_those_of_rounds_that_both_measured() -> None:
    """The last lead is the difference of the scores."""
    said = make_study_answer(SCORES)
    fedavg, fedau, mifa = said.methods
    fewer = tuple(replace(run, curve=run.curve[::2]) for run in fedau.runs)
    some_rounds = replace(said, methods=(fedavg, replace(fedau, runs=fewer), mifa))
    lead = next(t for t in drawn(some_rounds)["leads"].figure.data if t.name == "FedAU")
    assert len(lead.x) == len(fewer[0].curve)
    assert lead.y[-1] == pytest.approx(2.28, abs=0.01)


def test_charts_without_anything_to_draw_are_left_out() -> None:
    """A baseline alone leads nobody; without runs there is nothing."""
    assert "differences" not in drawn(make_study_answer({"fedavg": BASE}))
    assert drawn(make_study_answer({"fedavg": [], "mifa": []})) == {}
    said = make_study_answer(SCORES)
    bare = (
        replace(
            one, runs=tuple(replace(run, curve=(), measures={"all": math.nan}) for run in one.runs)
        )
        for one in said.methods
    )
    assert list(drawn(replace(said, methods=tuple(bare)))) == ["differences"]


def test_the_best_trial_is_drawn_last_and_strong() -> None:
    """Pruned ones first and pale; a failed one has no curve but is counted."""
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
    said = make_study_answer({"fedavg": BASE, "mifa": UP}, methods=methods)
    (chart,) = build_tuning_charts(said)
    assert chart.note == "4 trials, 1 pruned, 1 failed. Best: client rate 0.1."
    last = chart.figure.data[-1]
    assert (last.line.color, last.y[-1]) == (
        get_method_color(said, "fedavg"),
        pytest.approx(70.0, abs=1),
    )
    widths = [trace.line.width for trace in chart.figure.data]
    assert widths == sorted(widths)
    assert last.text == "client rate 0.1 (completed)"
