"""Describe charts as plain values, for both the page and figure files.

``plotly_charts`` draws them on the page, ``matplotlib_charts`` as PNG, SVG and PDF.
"""

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..rules.types import FloatArray
from .label_layout import spread_labels

# Okabe and Ito's colors, distinct in any color vision; without yellow, too pale on white.
METHOD_COLORS = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#8C564B"),
)
NUM_DASHES = 4
MAX_POINTS = 400
MAX_MARKED_POINTS = 12  # up to here every point gets a marker
BAND_OPACITY = 0.18
EDGE_OPACITY = 0.45
MAX_BANDS = 3  # more would hide each other
MAX_BARS = 16  # over all lines of a panel
AXIS_PADDING = 0.05  # fraction of an axis, at both ends
MAX_AXIS_VALUE = 1e200  # leaves room to add the padding without overflow
MAX_NAME_LINES = 3
TICK_STEPS, MAX_TICKS = (1, 2, 5), 8
NO_BOUNDS = (-math.inf, math.inf)
POSITIVE_BOUNDS = (0.0, math.inf)
FRACTION_BOUNDS = (0.0, 1.0)
PERCENT_BOUNDS = (0.0, 100.0)

ColumnArray = NDArray[Any]


@dataclass(frozen=True)
class Line:
    """One method's curve or points.

    Parameters
    ----------
    label : str
        The method; lines of one label share legend entry, color and dash.
    style : int
        The index of color and dash, see ``get_line_style``.
    x, y : arrays, shape (n,)
    half_width : array, shape (n,), optional
        Half the width of the band around y, or half the length of the bars.
    markers_only : bool
    hover_texts : sequence of str, optional
        A text for each point, shown below its coordinates.
    """

    label: str
    style: int
    x: FloatArray
    y: FloatArray
    half_width: FloatArray | None = None
    markers_only: bool = False
    hover_texts: Sequence[str] = ()


@dataclass(frozen=True)
class ReferenceLine:
    """A horizontal line: a published number, or a method without the swept setting."""

    label: str
    style: int
    y: float
    hover_text: str


@dataclass(frozen=True)
class Ticks:
    """Tick positions on an axis and their labels."""

    positions: tuple[float, ...]
    labels: tuple[str, ...]


@dataclass(frozen=True)
class Panel:
    """One pair of axes.

    ``log_axes`` names the axes with a logarithmic scale ("", "y" or "xy"); ``has_diagonal`` adds
    the line y = x; ``shaded_ranges`` are ranges of x. ``bounds`` are the lowest and highest
    possible y: bands end there. ``has_bars`` draws the spread of every point as a bar,
    ``has_line_names`` writes names at the ends of lines.
    """

    title: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...]
    reference_lines: tuple[ReferenceLine, ...] = ()
    x_ticks: Ticks | None = None
    log_axes: str = ""
    has_diagonal: bool = False
    shaded_ranges: tuple[tuple[float, float], ...] = ()
    bounds: tuple[float, float] = NO_BOUNDS
    has_bars: bool = False
    has_line_names: bool = True


@dataclass(frozen=True)
class LineChart:
    """Panels side by side with one legend.

    ``name`` is a file name without its extension, ``note`` the caption.
    """

    name: str
    title: str
    note: str
    panels: tuple[Panel, ...]

    @property
    def styles(self) -> dict[str, int]:
        """The style of each label, in the legend's order."""
        lines = {line.label: line.style for panel in self.panels for line in panel.lines}
        levels = {
            level.label: level.style for panel in self.panels for level in panel.reference_lines
        }
        return lines | {label: style for label, style in levels.items() if label not in lines}


@dataclass(frozen=True)
class GridLayer:
    """One grid of numbers to color, shape (len(rows), len(columns)).

    ``divider`` is the number of rows above the dividing line, 0 for no line.
    ``is_subsampled`` marks a layer with omitted rows or columns.
    """

    label: str
    columns: tuple[str, ...]
    rows: tuple[str, ...]
    values: ColumnArray
    divider: int = 0
    is_subsampled: bool = False


@dataclass(frozen=True)
class GridChart:
    """Colored grids; the page shows one layer at a time.

    ``categories`` holds a name and a color for each of the codes 0, 1, ... of categorical values;
    ``annotate`` writes each value into its cell.
    """

    name: str
    title: str
    note: str
    x_label: str
    y_label: str
    value_label: str
    layers: tuple[GridLayer, ...]
    categories: tuple[tuple[str, str], ...] = field(default=())
    annotate: bool = False


Chart = LineChart | GridChart


@dataclass(frozen=True)
class EndLabel:
    """A line's name at its end.

    ``position`` is the label's middle as a fraction of the axis's length.
    """

    label: str
    style: int
    text_lines: tuple[str, ...]
    position: float


def get_line_style(style: int) -> tuple[str, int]:
    """Return the color and the dash index of a style.

    Adjacent styles differ in both, to stay distinct in gray print; 32 styles are distinct.
    """
    return METHOD_COLORS[style % len(METHOD_COLORS)], (
        style + style // len(METHOD_COLORS)
    ) % NUM_DASHES


def has_bands(panel: Panel) -> bool:
    """Return whether spreads are drawn as bands, for few lines, instead of bars at some points."""
    spreads = sum(line.half_width is not None for line in panel.lines)
    return not panel.has_bars and spreads <= MAX_BANDS


def select_bar_points(panel: Panel, line: Line) -> NDArray[np.int64]:
    """Return the indices of a line's points with a bar; no two lines share one."""
    if line.half_width is None or has_bands(panel):
        return np.zeros(0, dtype=np.int64)
    if panel.has_bars:
        return np.arange(len(line.x))
    rivals = [other for other in panel.lines if other.half_width is not None]
    count = max(1, min(len(line.x), MAX_BARS) // len(rivals))
    step = len(line.x) / count
    rank = next(index for index, other in enumerate(rivals) if other is line)
    first = (rank + 0.5) / len(rivals) * step
    return np.unique(np.floor(first + step * np.arange(count)).astype(np.int64))


def compute_band(line: Line, panel: Panel) -> tuple[FloatArray, FloatArray]:
    """Return y - spread and y + spread, within the panel's bounds.

    A logarithmic scale cannot show 0: there a band ends at half of the panel's lowest positive y.
    """
    spread = np.zeros_like(line.y) if line.half_width is None else line.half_width
    low, high = panel.bounds
    if "y" in panel.log_axes:
        positive = [
            float(y[y > 0].min()) for y in (shown.y for shown in panel.lines) if (y > 0).any()
        ]
        low = max(low, min(positive, default=1.0) / 2)
    return np.clip(line.y - spread, low, high), np.clip(line.y + spread, low, high)


def compute_y_limits(panel: Panel) -> tuple[float, float]:
    """Return the limits of the y axis, padded; exponents of 10 on a logarithmic scale."""
    drawn = [
        np.array([level.y for level in panel.reference_lines]),
        *(line.y for line in panel.lines),
    ]
    for line in panel.lines:
        indices = slice(None) if has_bands(panel) else select_bar_points(panel, line)
        drawn += [end[indices] for end in compute_band(line, panel)]
    values = np.concatenate(drawn)
    values = np.clip(values[np.isfinite(values)], -MAX_AXIS_VALUE, MAX_AXIS_VALUE)
    if "y" in panel.log_axes:
        values = np.log10(values[values > 0])
    low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)
    pad = AXIS_PADDING * (high - low) or 0.1 * abs(high) or 0.5
    return low - pad, high + pad


def compute_log_ticks(low: float, high: float) -> list[float]:
    """Return the ticks of a logarithmic axis between two exponents of 10.

    They are at 1, 2 and 5, or at powers of 10 only if more than ``MAX_TICKS`` would result.
    """
    powers = range(math.floor(low), math.ceil(high) + 1)
    for steps in (TICK_STEPS, TICK_STEPS[:1]):
        ticks = [step * 10.0**power for power in powers for step in steps]
        ticks = [tick for tick in ticks if tick > 0 and low <= math.log10(tick) <= high]
        if len(ticks) <= MAX_TICKS:
            break
    return ticks


def place_end_labels(
    chart: LineChart, panel: Panel, *, line_letters: int, height_in_lines: float
) -> list[EndLabel]:
    """Return the names at the ends of a panel's lines, or none if they do not fit.

    Names do not fit if two lines of them would be equal once shortened. The common prefix of all
    names of the chart is omitted.

    Parameters
    ----------
    chart, panel : LineChart, Panel
    line_letters : int
        The maximum number of letters in a line of a name.
    height_in_lines : float
        The axis's height in lines of text.
    """
    if not panel.has_line_names:
        return []
    short = _trim_common_prefix(list(chart.styles))
    low, high = compute_y_limits(panel)
    ends = {level.label: (level.style, level.y) for level in panel.reference_lines} | {
        line.label: (line.style, float(line.y[-1])) for line in panel.lines
    }
    for max_lines in (MAX_NAME_LINES, 1):
        texts = [_wrap_lines(short[label], line_letters, max_lines) for label in ends]
        if sum(map(len, texts)) <= height_in_lines and len({*texts}) == len(texts):
            break
    else:
        return []
    log = "y" in panel.log_axes
    values = [(math.log10(y) if y > 0 else low) if log else y for _, y in ends.values()]
    positions = [height_in_lines * (value - low) / (high - low) for value in values]
    middles = spread_labels(positions, [float(len(text)) for text in texts], 0.0, height_in_lines)
    return [
        EndLabel(label, style, text, middle / height_in_lines)
        for (label, (style, _)), text, middle in zip(ends.items(), texts, middles, strict=True)
    ]


def _wrap_lines(text: str, width: int, max_lines: int) -> tuple[str, ...]:
    return tuple(textwrap.wrap(text, width, max_lines=max_lines, placeholder=" ..."))


def _trim_common_prefix(labels: Sequence[str]) -> dict[str, str]:
    """Return the labels without their common first parts, which commas separate."""
    parts = [label.split(", ") for label in labels]
    shared = 0
    while len({tuple(one[: shared + 1]) for one in parts}) == 1 and all(
        len(one) > shared + 1 for one in parts
    ):
        shared += 1
    return {label: ", ".join(one[shared:]) for label, one in zip(labels, parts, strict=True)}


def sample_indices(count: int, max_count: int = MAX_POINTS) -> NDArray[np.int64]:
    """Return at most ``max_count`` + 1 evenly spaced indices below ``count``, with both ends."""
    step = max(1, -(-count // max_count))
    indices = np.arange(0, count, step)
    if count and indices[-1] != count - 1:
        indices = np.append(indices, count - 1)
    return indices
