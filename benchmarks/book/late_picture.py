"""Draw how accuracy grows over simulated seconds for each way to close a round."""

import math
from collections.abc import Mapping

import numpy as np
from fedquorum.records.reader import Run
from fedquorum.report.figure_files import DPI, NotebookFigure, to_png
from fedquorum.report.seed_groups import get_test_metric
from fedquorum.rules.types import FloatArray
from matplotlib.layout_engine import ConstrainedLayoutEngine

from benchmarks.book.late import REFERENCE, WORLDS, compute_running_means, find_overrides

COLORS: Mapping[str, str] = {
    "all": "#000000",
    "a random cohort of 25": "#878787",
    "0.2 of all, discarded": "#d6604d",
    REFERENCE: "#4393c3",
    "25 replies, FedAU, a = 0.5": "#a6dba0",
    "25 replies, FedAU, a = 0, server_lr 0.3": "#1b7837",
}
"""The ways that are drawn: one of each kind, with the color of its line."""

SIZE_INCHES = (9.0, 3.6)
LOWEST_PERCENT = 60.0


def draw_late_picture(runs: Mapping[tuple[str, ...], Run]) -> bytes:
    """Return the picture as PNG: a panel for each world, a line for the mean over the runs.

    Each point is a running mean over evaluations, as in the tables. ``runs`` are by their
    overrides.
    """
    figure = NotebookFigure(figsize=SIZE_INCHES, layout=ConstrainedLayoutEngine())
    axes = figure.subplots(1, len(WORLDS), sharey=True, squeeze=False)[0]
    for ax, world in zip(axes, WORLDS, strict=True):
        for name, color in COLORS.items():
            curves = [
                _smooth_accuracy(run)
                for words, run in runs.items()
                if find_overrides(words) == (world, name)
            ]
            if not curves:
                continue
            seconds = np.unique(np.concatenate([times for times, _ in curves]))
            mean = np.mean([np.interp(seconds, *curve, left=math.nan) for curve in curves], axis=0)
            ax.plot(seconds, mean, color=color, linewidth=1.2, label=name)
        ax.set_title(world, fontsize=9, loc="left")
        ax.set_xlabel("simulated seconds", fontsize=8)
        ax.set_ylim(bottom=LOWEST_PERCENT)
        ax.grid(color="#dddddd", linewidth=0.5)
        ax.tick_params(labelsize=7)
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("test accuracy, %", fontsize=8)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=7, frameon=False)
    return to_png(figure, DPI)


def _smooth_accuracy(run: Run) -> tuple[FloatArray, FloatArray]:
    """Return the simulated seconds and the accuracies, each the mean of the last evaluations."""
    evaluated = [record for record in run.rounds if record.test is not None]
    seconds = np.array([record.simulated_seconds for record in evaluated], dtype=np.float64)
    accuracy = [100 * get_test_metric(record, "all", "accuracy") for record in evaluated]
    means = compute_running_means(accuracy)
    return seconds[-len(means) :], means
