"""What a report draws, as plain values: one description, drawn interactively and on paper.

``interactive`` makes the page's plots of these, ``figures`` PNG, SVG and PDF.
"""

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from fedquorum.types import FloatArray
from numpy.typing import NDArray

from server_app.report.placing import apart

# Okabe and Ito's colours, told apart with any colour vision; without yellow, too pale on white.
COLOURS = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#8C564B"),
)
NUM_DASHES = 4
MAX_POINTS = 400
FEW_POINTS = 12  # each is marked: between them nothing was measured
BAND_OPACITY = 0.18
EDGE_OPACITY = 0.45
MOST_BANDS = 3  # more would hide each other
BARS = 16  # of all lines of a panel together
PADDING = 0.05  # of an axis, at both ends
LARGEST = 1e200  # that an axis shows: longer by its padding, it can still be computed with
LINES_OF_A_NAME = 3
STEPS, MOST_TICKS = (1, 2, 5), 8
ANY = (-math.inf, math.inf)
POSITIVE = (0.0, math.inf)
FRACTION = (0.0, 1.0)
PERCENT = (0.0, 100.0)

Column = NDArray[Any]


@dataclass(frozen=True)
class Line:
    """One method's curve or points.

    Parameters
    ----------
    label : str
        The method; lines of one label share legend entry, colour and dash.
    style : int
        Which colour and dash, see ``look``.
    x, y : arrays, shape (n,)
        The points.
    spread : array, shape (n,), optional
        Half the width of the band around y, or half the length of the bars.
    points : bool
        Whether there are markers and no line.
    hover : sequence of str, optional
        What is said of each point, beside its coordinates.
    """

    label: str
    style: int
    x: FloatArray
    y: FloatArray
    spread: FloatArray | None = None
    points: bool = False
    hover: Sequence[str] = ()


@dataclass(frozen=True)
class Level:
    """A horizontal line: a published number, or a method that the swept setting leaves alone."""

    label: str
    style: int
    y: float
    text: str


@dataclass(frozen=True)
class Ticks:
    """Positions on an axis and what stands there."""

    positions: tuple[float, ...]
    texts: tuple[str, ...]


@dataclass(frozen=True)
class Panel:
    """One pair of axes.

    ``log`` names the axes with a logarithmic scale ("", "y" or "xy"), ``diagonal`` whether y = x
    is drawn; ``shaded`` are ranges of x. ``bounds`` are the least and the greatest value that y
    can have: bands end there. With ``bars`` every point has its spread as a bar, with ``named``
    lines have their names at their ends.
    """

    title: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...]
    levels: tuple[Level, ...] = ()
    x_ticks: Ticks | None = None
    log: str = ""
    diagonal: bool = False
    shaded: tuple[tuple[float, float], ...] = ()
    bounds: tuple[float, float] = ANY
    bars: bool = False
    named: bool = True


@dataclass(frozen=True)
class LineChart:
    """Panels side by side with one legend.

    ``name`` is a file name without ending, ``note`` what a reader has to know.
    """

    name: str
    title: str
    note: str
    panels: tuple[Panel, ...]

    @property
    def styles(self) -> dict[str, int]:
        """The style of each label, as the legend has them."""
        lines = {line.label: line.style for panel in self.panels for line in panel.lines}
        levels = {level.label: level.style for panel in self.panels for level in panel.levels}
        return lines | {label: style for label, style in levels.items() if label not in lines}


@dataclass(frozen=True)
class Layer:
    """One table of numbers to colour: rows by columns, shape (len(rows), len(columns)).

    ``divider`` is how many rows there are before a line that divides them, 0 for none.
    ``picked`` says that rows or columns are left out.
    """

    label: str
    columns: tuple[str, ...]
    rows: tuple[str, ...]
    values: Column
    divider: int = 0
    picked: bool = False


@dataclass(frozen=True)
class GridChart:
    """Coloured tables, of which one is shown at a time on the page.

    ``categories`` names the values 0, 1, ... and their colours where they are no numbers;
    ``written`` puts each value into its cell.
    """

    name: str
    title: str
    note: str
    x_label: str
    y_label: str
    value_label: str
    layers: tuple[Layer, ...]
    categories: tuple[tuple[str, str], ...] = field(default=())
    written: bool = False


Chart = LineChart | GridChart


@dataclass(frozen=True)
class EndName:
    """A line's name at its end.

    ``text`` is what is written, in lines, ``place`` the middle as a share of the axis's length.
    """

    label: str
    style: int
    text: tuple[str, ...]
    place: float


def look(style: int) -> tuple[str, int]:
    """Return the colour and the number of the dash of a style.

    Neighbours differ in both, so that grey print tells them apart; 32 styles are different.
    """
    return COLOURS[style % len(COLOURS)], (style + style // len(COLOURS)) % NUM_DASHES


def has_bands(panel: Panel) -> bool:
    """Say whether spreads are bands: of few lines. Otherwise they are bars at some points."""
    spreads = sum(line.spread is not None for line in panel.lines)
    return not panel.bars and spreads <= MOST_BANDS


def barred(panel: Panel, line: Line) -> NDArray[np.int64]:
    """Return at which points of a line its spread is a bar; no two lines have them together."""
    if line.spread is None or has_bands(panel):
        return np.zeros(0, dtype=np.int64)
    if panel.bars:
        return np.arange(len(line.x))
    rivals = [other for other in panel.lines if other.spread is not None]
    count = max(1, min(len(line.x), BARS) // len(rivals))
    step = len(line.x) / count
    rank = next(place for place, other in enumerate(rivals) if other is line)
    first = (rank + 0.5) / len(rivals) * step
    return np.unique(np.floor(first + step * np.arange(count)).astype(np.int64))


def band(line: Line, panel: Panel) -> tuple[FloatArray, FloatArray]:
    """Return y - spread and y + spread, within the panel's bounds.

    A logarithmic scale has no place for 0: there a band ends at half of the panel's lowest y.
    """
    spread = np.zeros_like(line.y) if line.spread is None else line.spread
    low, high = panel.bounds
    if "y" in panel.log:
        positive = [
            float(y[y > 0].min()) for y in (shown.y for shown in panel.lines) if (y > 0).any()
        ]
        low = max(low, min(positive, default=1.0) / 2)
    return np.clip(line.y - spread, low, high), np.clip(line.y + spread, low, high)


def y_ends(panel: Panel) -> tuple[float, float]:
    """Return the ends of the y axis: all that is drawn, and a little more.

    On a logarithmic scale they are exponents of 10.
    """
    drawn = [np.array([level.y for level in panel.levels]), *(line.y for line in panel.lines)]
    for line in panel.lines:
        places = slice(None) if has_bands(panel) else barred(panel, line)
        drawn += [end[places] for end in band(line, panel)]
    values = np.concatenate(drawn)
    values = np.clip(values[np.isfinite(values)], -LARGEST, LARGEST)
    if "y" in panel.log:
        values = np.log10(values[values > 0])
    low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)
    pad = PADDING * (high - low) or 0.1 * abs(high) or 0.5
    return low - pad, high + pad


def log_ticks(low: float, high: float) -> list[float]:
    """Return the ticks of a logarithmic axis between two exponents of 10.

    They are at 1, 2 and 5, or at powers of 10 where these would be many.
    """
    powers = range(math.floor(low), math.ceil(high) + 1)
    for steps in (STEPS, STEPS[:1]):
        ticks = [step * 10.0**power for power in powers for step in steps]
        ticks = [tick for tick in ticks if tick > 0 and low <= math.log10(tick) <= high]
        if len(ticks) <= MOST_TICKS:
            break
    return ticks


def end_names(chart: LineChart, panel: Panel, *, letters: int, room: float) -> list[EndName]:
    """Return the names at the ends of a panel's lines, none where they do not fit.

    What all names of the chart begin with is left out.

    Parameters
    ----------
    chart, panel : LineChart, Panel
        What is drawn.
    letters : int
        How many letters have room in a line of a name.
    room : float
        How many lines of text are as high as the axis.
    """
    if not panel.named:
        return []
    short = _without_beginning(list(chart.styles))
    low, high = y_ends(panel)
    ends = {level.label: (level.style, level.y) for level in panel.levels} | {
        line.label: (line.style, float(line.y[-1])) for line in panel.lines
    }
    for most in (LINES_OF_A_NAME, 1):
        texts = [_wrapped(short[label], letters, most) for label in ends]
        if sum(map(len, texts)) <= room:
            break
    else:
        return []
    log = "y" in panel.log
    values = [(math.log10(y) if y > 0 else low) if log else y for _, y in ends.values()]
    places = [room * (value - low) / (high - low) for value in values]
    middles = apart(places, [float(len(text)) for text in texts], 0.0, room)
    return [
        EndName(label, style, text, middle / room)
        for (label, (style, _)), text, middle in zip(ends.items(), texts, middles, strict=True)
    ]


def _wrapped(text: str, letters: int, most: int) -> tuple[str, ...]:
    return tuple(textwrap.wrap(text, letters, max_lines=most, placeholder=" ..."))


def _without_beginning(labels: Sequence[str]) -> dict[str, str]:
    """Return the labels without the parts, divided by commas, that all of them begin with."""
    parts = [label.split(", ") for label in labels]
    shared = 0
    while len({tuple(one[: shared + 1]) for one in parts}) == 1 and all(
        len(one) > shared + 1 for one in parts
    ):
        shared += 1
    return {label: ", ".join(one[shared:]) for label, one in zip(labels, parts, strict=True)}


def thinned(count: int, most: int = MAX_POINTS) -> NDArray[np.int64]:
    """Return at most ``most`` + 1 places of ``count``, evenly spaced, with the first and last."""
    step = max(1, -(-count // most))
    places = np.arange(0, count, step)
    if count and places[-1] != count - 1:
        places = np.append(places, count - 1)
    return places
