"""What a report draws, as plain values: one description, drawn interactively and on paper.

``interactive`` makes the page's plots of these, ``figures`` PNG and SVG.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from fedquorum.types import FloatArray
from numpy.typing import NDArray

# Okabe and Ito's colours, told apart with any colour vision; without yellow, too pale on white.
COLOURS = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#8C564B"),
)
NUM_DASHES = 4
MAX_POINTS = 400
FEW_POINTS = 12  # each is marked: between them nothing was measured
BAND_OPACITY = 0.18
EDGE_OPACITY = 0.45
ALL_BANDS = 0.6  # shared by the bands of a panel, which lie over each other
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
        Which colour and dash: colours first.
    x, y : arrays, shape (n,)
        The points.
    spread : array, shape (n,), optional
        Half the width of the band around y.
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
    can have: bands end there.
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


@dataclass(frozen=True)
class LineChart:
    """Panels side by side with one legend.

    ``name`` is a file name without ending, ``note`` what a reader has to know.
    """

    name: str
    title: str
    note: str
    panels: tuple[Panel, ...]


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


def grid_shape(panels: int) -> tuple[int, int]:
    """Return in how many rows and columns panels stand: at most three side by side, four by two."""
    columns = 2 if panels == 4 else min(3, panels)  # noqa: PLR2004
    return -(-panels // columns), columns


def band_opacity(panel: Panel) -> float:
    """Return how opaque the bands are: less where many lie over each other."""
    bands = sum(line.spread is not None for line in panel.lines)
    return min(BAND_OPACITY, ALL_BANDS / max(1, bands))


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


def thinned(count: int, most: int = MAX_POINTS) -> NDArray[np.int64]:
    """Return at most ``most`` + 1 places of ``count``, evenly spaced, with the first and last."""
    step = max(1, -(-count // most))
    places = np.arange(0, count, step)
    if count and places[-1] != count - 1:
        places = np.append(places, count - 1)
    return places
