"""Build the charts of each method's trials by round."""

from collections.abc import Iterator, Mapping

import plotly.graph_objects as go
from fedquorum.report.names import format_setting
from fedquorum.report.plotly_charts import AXIS, LAYOUT, escape_html

from server_app.study.charts.helpers import (
    MIDDLE,
    StudyChart,
    expand_range,
    get_method_color,
)
from server_app.study.result import MethodResult, StudyResult, Trial
from server_app.study.text import format_method_name, get_compared_methods, get_unit

TUNING_HEIGHT = 250  # pixels
PRUNED_COLOR = "#C4C4C4"


def build_tuning_charts(result: StudyResult) -> Iterator[StudyChart]:
    """Yield a chart per method with all trials' validation scores, the best one emphasized."""
    shown = [m for m in get_compared_methods(result) if any(trial.curve for trial in m.trials)]
    values = [v for m in shown for trial in m.trials for _, v in trial.curve]
    if not values:
        return
    unit = get_unit(result)
    ends = expand_range(min(values) * unit.factor, max(values) * unit.factor)
    for method in shown:
        drawn = go.Figure([*_draw_trials(result, method)])
        drawn.update_layout(
            LAYOUT,
            height=TUNING_HEIGHT,
            margin={"t": 8, "b": 44, "l": 48, "r": 8},
            showlegend=False,
            hovermode="closest",
        )
        drawn.update_xaxes(AXIS, title={"text": "round", "standoff": 4})
        drawn.update_yaxes(AXIS, range=ends)
        yield StudyChart(
            f"tuning-{result.methods.index(method)}",
            format_method_name(method.name),
            _format_tuning_note(method),
            drawn,
            small=True,
        )


def _draw_trials(result: StudyResult, method: MethodResult) -> Iterator[go.Scatter]:
    """Yield the trials' curves, the most important ones last, so on top."""
    best = find_best_trial(method)

    def get_layer(trial: Trial) -> int:
        return 2 if trial is best else int(trial.status == "completed")

    line_styles = ({"color": PRUNED_COLOR, "width": 1}, {"color": MIDDLE, "width": 1.2})
    best_style = {"color": get_method_color(result, method.name), "width": 3}
    for trial in sorted(method.trials, key=get_layer):
        values = ", ".join(map(format_setting, trial.words)) or "as set"
        style = (*line_styles, best_style)[get_layer(trial)]
        yield _draw_trial(trial, style, values, get_unit(result).factor)


def _draw_trial(trial: Trial, line: Mapping[str, object], values: str, factor: float) -> go.Scatter:
    return go.Scatter(
        x=[number for number, _ in trial.curve],
        y=[factor * score for _, score in trial.curve],
        mode="lines" if len(trial.curve) > 1 else "markers",
        line=line,
        marker={"color": line["color"]},
        text=escape_html(f"{values} ({trial.status})"),
        hovertemplate="%{text}<br>round %{x}: %{y:.4g}<extra></extra>",
    )


def find_best_trial(method: MethodResult) -> Trial | None:
    """Return the trial with the values that the comparison used."""
    return next((trial for trial in method.trials if trial.words == method.tuned), None)


def _format_tuning_note(method: MethodResult) -> str:
    count = len(method.trials)
    parts = [f"{count} trial{'s' if count != 1 else ''}"]
    parts += [
        f"{number} {status}"
        for status in ("pruned", "failed")
        if (number := sum(trial.status == status for trial in method.trials))
    ]
    best = ", ".join(map(format_setting, method.tuned)) or "the settings as they were"
    return f"{', '.join(parts)}. Best: {best}."
