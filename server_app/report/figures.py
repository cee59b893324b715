"""Curves over rounds. Built on figure objects alone: no window, no state shared in matplotlib."""

import math
import textwrap
from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle, product
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import MaxNLocator

from server_app.records import RoundRecord
from server_app.report.groups import Group, metric_after_round

# Okabe and Ito's colours, told apart with any colour vision; without yellow, too pale on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
LINE_STYLES = ("-", "--", ":", "-.")
PANEL_INCHES = (5.2, 3.8)
LEGEND_LINE_INCHES = 0.24
LEGEND_CHARACTERS = 110


def training_figure(groups: Sequence[Group]) -> Figure:
    """Return test accuracy and training loss over rounds.

    Left: accuracy on the priority clients' test parts, weighted by training data, in percent, of
    the model after the round. Middle, where measured: the same of the non-priority clients.
    Right: F(w) = sum_{k in P} p_k F_k(w), mean cross entropy in nats on the training data, of the
    model broadcast in the round. One line per group, the mean over seeds; the band is one
    standard deviation to either side where a group has several seeds.
    """
    tested = [name for name in ("priority", "non_priority") if _is_measured(groups, name)]
    labels = [textwrap.fill(group.label, LEGEND_CHARACTERS) for group in groups]
    legend = LEGEND_LINE_INCHES * (1 + sum(label.count("\n") + 1 for label in labels))
    width, height = PANEL_INCHES
    figure = Figure(
        figsize=((len(tested) + 1) * width, height + legend),
        layout=ConstrainedLayoutEngine(wspace=0.06),
    )
    FigureCanvasAgg(figure)
    *panels, right = figure.subplots(1, len(tested) + 1, squeeze=False)[0]
    for name, panel in zip(tested, panels, strict=True):
        _panel(panel, groups, labels, partial(_percent_correct, clients=name))
        panel.set(
            ylabel=f"test accuracy, {name.replace('_', '-')} clients (%)",
            title="Model after the round",
        )
    _panel(right, groups, labels, lambda record: record.global_loss)
    right.set(
        ylabel="training loss F(w), priority clients (nats)", title="Model broadcast in the round"
    )
    handles, named = right.get_legend_handles_labels()
    figure.legend(handles, named, loc="outside lower center", frameon=False)
    return figure


def save(figure: Figure, folder: Path, name: str) -> tuple[Path, Path]:
    """Write ``name.png`` (150 dpi) and ``name.svg``, the same bytes for the same runs.

    Raises
    ------
    OSError
        If a file cannot be written.
    """
    png, svg = folder / f"{name}.png", folder / f"{name}.svg"
    figure.savefig(png, dpi=150)
    with mpl.rc_context({"svg.hashsalt": "fedquorum"}):
        figure.savefig(svg, metadata={"Date": None})
    return png, svg


def _percent_correct(record: RoundRecord, clients: str) -> float:
    return 100 * metric_after_round(record, clients, "accuracy")


def _is_measured(groups: Sequence[Group], clients: str) -> bool:
    return any(
        not math.isnan(_percent_correct(record, clients))
        for group in groups
        for run in group.counted
        for record in run.rounds
    )


def _panel(
    axes: Axes,
    groups: Sequence[Group],
    labels: Sequence[str],
    value: Callable[[RoundRecord], float],
) -> None:
    styles = cycle(product(LINE_STYLES, COLOURS))
    for group, label, (style, colour) in zip(groups, labels, styles, strict=False):
        curve = group.curve(value)
        mean = np.array([statistic.mean for statistic in curve.statistics])
        sd = np.array([statistic.sd or 0.0 for statistic in curve.statistics])
        marker = "o" if len(mean) == 1 else None  # a single round is no line
        axes.plot(
            curve.rounds, mean, style, color=colour, marker=marker, linewidth=1.3, label=label
        )
        if sd.any():
            axes.fill_between(
                curve.rounds, mean - sd, mean + sd, color=colour, alpha=0.2, linewidth=0
            )
    axes.set_xlabel("round")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(visible=True, alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
