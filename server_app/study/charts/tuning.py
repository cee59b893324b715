"""The trials of each method, by round."""

from collections.abc import Iterator, Mapping

import plotly.graph_objects as go

from server_app.naming import setting_words
from server_app.report.interactive import (
    AXIS,
    LAYOUT,
    plain_text,
)
from server_app.study.answer import Answer, MethodResult, Trial
from server_app.study.charts.parts import (
    MIDDLE,
    StudyChart,
    colour_of,
    padded,
)
from server_app.study.words import compared, title, unit_of

TUNING_HEIGHT = 250  # pixels
PALE = "#C4C4C4"


def tuning_charts(answer: Answer) -> Iterator[StudyChart]:
    """Yield, for each method, the score on validation parts of all trials, the best one strong."""
    shown = [m for m in compared(answer) if any(trial.curve for trial in m.trials)]
    values = [v for m in shown for trial in m.trials for _, v in trial.curve]
    if not values:
        return
    unit = unit_of(answer)
    ends = padded(min(values) * unit.factor, max(values) * unit.factor)
    for method in shown:
        drawn = go.Figure([*_trials(answer, method)])
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
            f"tuning-{answer.methods.index(method)}",
            title(method.name),
            _tuning_note(method),
            drawn,
            small=True,
        )


def _trials(answer: Answer, method: MethodResult) -> Iterator[go.Scatter]:
    """Yield the trials' curves, those that matter more later, so on top."""
    best = best_trial(method)

    def weight(trial: Trial) -> int:
        return 2 if trial is best else int(trial.status == "completed")

    looks = ({"color": PALE, "width": 1}, {"color": MIDDLE, "width": 1.2})
    strong = {"color": colour_of(answer, method.name), "width": 3}
    for trial in sorted(method.trials, key=weight):
        values = ", ".join(map(setting_words, trial.words)) or "as set"
        yield _trial(trial, (*looks, strong)[weight(trial)], values, unit_of(answer).factor)


def _trial(trial: Trial, line: Mapping[str, object], values: str, factor: float) -> go.Scatter:
    return go.Scatter(
        x=[number for number, _ in trial.curve],
        y=[factor * score for _, score in trial.curve],
        mode="lines" if len(trial.curve) > 1 else "markers",
        line=line,
        marker={"color": line["color"]},
        text=plain_text(f"{values} ({trial.status})"),
        hovertemplate="%{text}<br>round %{x}: %{y:.4g}<extra></extra>",
    )


def best_trial(method: MethodResult) -> Trial | None:
    """Return the trial whose values the method was compared with."""
    return next((trial for trial in method.trials if trial.words == method.tuned), None)


def _tuning_note(method: MethodResult) -> str:
    count = len(method.trials)
    said = [f"{count} trial{'s' if count != 1 else ''}"]
    said += [
        f"{number} {status}"
        for status in ("pruned", "failed")
        if (number := sum(trial.status == status for trial in method.trials))
    ]
    best = ", ".join(map(setting_words, method.tuned)) or "the settings as they were"
    return f"{', '.join(said)}. Best: {best}."
