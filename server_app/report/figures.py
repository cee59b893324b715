"""Charts on paper: PNG and SVG. Built on figure objects alone: no window, no shared state."""

import io
import math
import textwrap
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from PIL import Image

from server_app.drawing import ShownFigure
from server_app.report.charts import (
    COLOURS,
    EDGE_OPACITY,
    FEW_POINTS,
    NUM_DASHES,
    Chart,
    GridChart,
    Layer,
    Line,
    LineChart,
    Panel,
    band,
    band_opacity,
    grid_shape,
)

LINE_STYLES = ("-", "--", ":", "-.")
PANEL_INCHES = (4.6, 3.5)
SMALLEST_PANEL_INCHES = 2.2
LEGEND_LINE_INCHES = 0.24
LEGEND_CHARACTERS = 60
GRIDS_IN_A_ROW = 3
MOST_GRIDS = 6
PAGE_SCALE = 2 / 3
PAGE_QUALITY = 80


def draw(chart: Chart, width: float | None = None) -> ShownFigure:
    """Return a chart's figure; of tables the first six, side by side.

    Parameters
    ----------
    chart : Chart
        What is drawn.
    width : float, optional
        Of the whole figure, in inches, for a paper's column: its letters have 8 points. None for a
        screen, where a panel is 4.6 inches wide.
    """
    with mpl.rc_context():
        if width is not None:
            _use_letters_of_papers()
        return _grids(chart, width) if isinstance(chart, GridChart) else _lines(chart, width)


def small_picture(path: Path) -> bytes:
    """Return a PNG file as WebP, smaller in pixels and in bytes, for a page that has many."""
    with Image.open(path) as picture:
        flat = picture.convert("RGB")
    size = (round(flat.width * PAGE_SCALE), round(flat.height * PAGE_SCALE))
    out = io.BytesIO()
    flat.resize(size, Image.Resampling.LANCZOS).save(out, "WEBP", quality=PAGE_QUALITY)
    return out.getvalue()


def _use_letters_of_papers() -> None:
    mpl.rc("font", size=8)
    mpl.rc("axes", titlesize=8, labelsize=8)
    mpl.rc("xtick", labelsize=7)
    mpl.rc("ytick", labelsize=7)
    mpl.rc("legend", fontsize=7)


def _shape(rows: int, columns: int, width: float | None) -> tuple[int, int, float, float]:
    """Return rows and columns as they fit into a width, and a panel's width and height."""
    if width is None:
        return rows, columns, *PANEL_INCHES
    fitting = max(1, min(columns, int(width / SMALLEST_PANEL_INCHES)))
    panel = width / fitting
    return -(-rows * columns // fitting), fitting, panel, panel * PANEL_INCHES[1] / PANEL_INCHES[0]


def _figure(size: tuple[float, float]) -> ShownFigure:
    figure = ShownFigure(figsize=size, layout=ConstrainedLayoutEngine(wspace=0.05))
    FigureCanvasAgg(figure)
    return figure


# --- lines ------------------------------------------------------------------------------------


def _lines(chart: LineChart, whole: float | None) -> ShownFigure:
    labels = {line.label: line.style for panel in chart.panels for line in panel.lines}
    labels |= {level.label: level.style for panel in chart.panels for level in panel.levels}
    rows, columns, width, height = _shape(*grid_shape(len(chart.panels)), whole)
    letters = int(LEGEND_CHARACTERS * width / PANEL_INCHES[0])
    longest = min(max(map(len, labels)), letters)
    entries = max(1, min(len(labels), int(columns * letters / (longest + 6))))
    legend = LEGEND_LINE_INCHES * (1 + math.ceil(len(labels) / entries))
    figure = _figure((columns * width, rows * height + legend))
    all_axes = figure.subplots(rows, columns, squeeze=False).ravel()
    handles: dict[str, Artist] = {}
    for axes, panel in zip(all_axes, chart.panels, strict=False):
        handles |= _panel(axes, panel)
    for axes in all_axes[len(chart.panels) :]:
        axes.set_visible(False)
    texts = [textwrap.fill(label, letters) for label in handles]
    figure.legend(
        list(handles.values()),
        texts,
        loc="outside lower center",
        frameon=False,
        ncols=entries,
    )
    return figure


def _panel(axes: Axes, panel: Panel) -> dict[str, Artist]:
    """Draw one panel and return what stands for each label in the legend."""
    handles: dict[str, Artist] = {}
    for low, high in panel.shaded:
        axes.axvspan(low, high, color="#E5E5E5", alpha=0.5, linewidth=0)
    for line in panel.lines:
        handles[line.label] = _line(axes, line, panel)
    for level in panel.levels:
        colour, _ = _style(level.style)
        drawn = axes.axhline(level.y, color=colour, linestyle=":", linewidth=1.1)
        handles.setdefault(level.label, drawn)
    if panel.diagonal:
        axes.axline((1.0, 1.0), (2.0, 2.0), color="black", linestyle="--", linewidth=0.8)
    if panel.x_ticks is not None:
        axes.set_xticks(panel.x_ticks.positions, panel.x_ticks.texts)
    elif "x" not in panel.log:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if "x" in panel.log:
        axes.set_xscale("log")
    if "y" in panel.log:
        axes.set_yscale("log")
    axes.set(xlabel=panel.x_label, ylabel=panel.y_label, title=panel.title)
    axes.grid(visible=True, alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    return handles


def _line(axes: Axes, line: Line, panel: Panel) -> Artist:
    colour, dash = _style(line.style)
    marker = "o" if line.points or len(line.x) <= FEW_POINTS else None
    (drawn,) = axes.plot(
        line.x,
        line.y,
        "" if line.points else dash,
        color=colour,
        marker=marker,
        markersize=3 if line.points else 4,
        alpha=0.6 if line.points else 1.0,
        linewidth=1.3,
    )
    if line.spread is not None:
        low, high = band(line, panel)
        # where bands lie over each other, their edges tell them apart
        axes.fill_between(
            line.x,
            low,
            high,
            facecolor=(colour, band_opacity(panel)),
            edgecolor=(colour, EDGE_OPACITY),
            linewidth=0.5,
        )
    return drawn


# --- tables -----------------------------------------------------------------------------------


def _grids(chart: GridChart, whole: float | None) -> ShownFigure:
    layers = chart.layers[:MOST_GRIDS]
    columns = min(GRIDS_IN_A_ROW, len(layers))
    rows, columns, width, height = _shape(math.ceil(len(layers) / columns), columns, whole)
    figure = _figure((columns * width, rows * height + LEGEND_LINE_INCHES))
    all_axes = figure.subplots(rows, columns, squeeze=False).ravel()
    finite = [layer.values[np.isfinite(layer.values)] for layer in layers]
    together = not chart.written
    ends = np.concatenate(finite) if together else np.empty(0)
    for axes, layer in zip(all_axes, layers, strict=False):
        _grid(axes, chart, layer, (float(ends.min()), float(ends.max())) if len(ends) else None)
    for axes in all_axes[len(layers) :]:
        axes.set_visible(False)
    if chart.categories:
        present = set(np.concatenate([layer.values.ravel() for layer in layers]).tolist())
        patches = [
            Patch(facecolor=colour, edgecolor="#444444", label=name)
            for code, (name, colour) in enumerate(chart.categories)
            if code in present
        ]
        figure.legend(
            handles=patches, loc="outside lower center", frameon=False, ncols=len(patches)
        )
    elif together:
        figure.colorbar(all_axes[0].images[0], ax=list(all_axes), label=chart.value_label)
    return figure


def _grid(axes: Axes, chart: GridChart, layer: Layer, ends: tuple[float, float] | None) -> None:
    low, high = ends or (None, None)
    if chart.categories:
        colours = ListedColormap([colour for _, colour in chart.categories])
        norm = BoundaryNorm(np.arange(len(chart.categories) + 1) - 0.5, len(chart.categories))
        axes.imshow(layer.values, cmap=colours, norm=norm, aspect="auto", interpolation="nearest")
    else:
        axes.imshow(
            layer.values,
            cmap="cividis",
            vmin=low,
            vmax=high,
            aspect="auto",
            interpolation="nearest",
        )
    if chart.written:
        for row, column in np.argwhere(np.isfinite(layer.values)):
            text = axes.text(
                column, row, f"{layer.values[row, column]:.4g}", ha="center", va="center"
            )
            text.set_bbox({"facecolor": "white", "alpha": 0.7, "linewidth": 0, "pad": 1})
    if layer.divider:
        axes.axhline(layer.divider - 0.5, color="black", linewidth=0.8)
    _name_ticks(axes, layer.columns, layer.rows)
    axes.set(xlabel=chart.x_label, ylabel=chart.y_label)
    axes.set_title("\n".join(textwrap.wrap(layer.label, LEGEND_CHARACTERS)), fontsize=9)


def _name_ticks(axes: Axes, columns: Sequence[str], rows: Sequence[str]) -> None:
    for axis, names, most in ((axes.xaxis, columns, 8), (axes.yaxis, rows, 12)):
        step = max(1, math.ceil(len(names) / most))
        places = list(range(0, len(names), step))
        axis.set_ticks(places, [names[i] for i in places])


def _style(place: int) -> tuple[str, str]:
    return COLOURS[place % len(COLOURS)], LINE_STYLES[place // len(COLOURS) % NUM_DASHES]
