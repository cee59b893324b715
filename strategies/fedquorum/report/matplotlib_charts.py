"""Draw charts as PNG, SVG and PDF with figure objects alone: no window, no shared state."""

import io
import math
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from PIL import Image

from .chart_spec import (
    BAND_OPACITY,
    EDGE_OPACITY,
    MAX_MARKED_POINTS,
    Chart,
    EndLabel,
    GridChart,
    GridLayer,
    Line,
    LineChart,
    Panel,
    compute_band,
    compute_log_ticks,
    compute_y_limits,
    get_line_style,
    has_bands,
    place_end_labels,
    select_bar_points,
)
from .figure_files import NotebookFigure
from .names import to_slug

LINE_STYLES = ("-", (0, (5, 2)), (0, (5, 1.5, 1.5, 1.5)), (0, (9, 2)))
"""As on the page: dots are for reference lines."""

PANEL_INCHES = (4.6, 3.5)
MIN_PANEL_INCHES, MIN_NAMED_PANEL_INCHES = 2.2, 3.0
LEGEND_LINE_INCHES = 0.24
MAX_LEGEND_CHARACTERS = 60
MAX_TITLE_CHARACTERS = 50
NAME_LETTERS, NAME_LETTERS_ON_PAPER = 20, 14
NAME_POINTS, LINE_SPACING, POINTS_PER_INCH = 8.5, 1.3, 72
AXIS_FRACTION = 0.7  # minimum height of the axis, of a panel's height
MAX_GRIDS = 6
PAGE_SCALE = 2 / 3
PAGE_QUALITY = 80


def draw_figure(chart: Chart, width: float | None = None) -> NotebookFigure:
    """Draw a chart; of a grid chart, the first six layers.

    Parameters
    ----------
    chart : Chart
    width : float, optional
        The whole figure's width in inches, for a paper's column, with letters of 8 points. None for
        a screen, with panels 4.6 inches wide.
    """
    with mpl.rc_context():
        if width is not None:
            _set_paper_fonts()
        return (
            _draw_grid_chart(chart, width)
            if isinstance(chart, GridChart)
            else _draw_line_chart(chart, width)
        )


def compress_picture(path: Path) -> bytes:
    """Return a PNG file as a smaller WebP image, for a page with many of them."""
    with Image.open(path) as picture:
        flat = picture.convert("RGB")
    size = (round(flat.width * PAGE_SCALE), round(flat.height * PAGE_SCALE))
    out = io.BytesIO()
    flat.resize(size, Image.Resampling.LANCZOS).save(out, "WEBP", quality=PAGE_QUALITY)
    return out.getvalue()


def _set_paper_fonts() -> None:
    mpl.rc("font", size=8)
    mpl.rc("axes", titlesize=8, labelsize=8)
    mpl.rc("xtick", labelsize=7)
    mpl.rc("ytick", labelsize=7)
    mpl.rc("legend", fontsize=7)


def split_for_paper(chart: Chart, width: float) -> Iterator[tuple[str, Chart]]:
    """Yield the charts for a paper's figure files, each with its file name.

    Panels that fit side by side stay in one file; otherwise each panel gets one, so that no figure
    is higher than a page.
    """
    parts = chart.layers if isinstance(chart, GridChart) else chart.panels
    if len(parts) == 1 or _count_fitting_panels(chart, width) > 1:
        yield chart.name, chart
        return
    for number, part in enumerate(parts, start=1):
        name = f"{chart.name}_{number}"
        if isinstance(chart, GridChart) and isinstance(part, GridLayer):
            yield f"{name}_{to_slug(part.label)}", replace(chart, layers=(part,))
        elif isinstance(chart, LineChart) and isinstance(part, Panel):
            words = to_slug(f"{part.y_label} {part.title}")
            yield f"{name}_{words}", replace(chart, panels=(part,))


def _count_fitting_panels(chart: Chart, width: float) -> int:
    """Count the panels that fit side by side; names beside the lines need more width."""
    grid = isinstance(chart, GridChart) or not any(panel.has_line_names for panel in chart.panels)
    return max(1, int(width / (MIN_PANEL_INCHES if grid else MIN_NAMED_PANEL_INCHES)))


def _compute_grid_shape(
    chart: Chart, panels: int, width: float | None
) -> tuple[int, int, float, float]:
    """Return rows and columns that fit into a width, and a panel's width and height in inches.

    At most three panels are side by side; four are two by two.
    """
    columns = 2 if panels == 4 else min(3, panels)  # noqa: PLR2004
    if width is None:
        return -(-panels // columns), columns, *PANEL_INCHES
    columns = min(columns, _count_fitting_panels(chart, width))
    panel = width / columns
    height = min(1.0, panel / PANEL_INCHES[0]) * PANEL_INCHES[1]
    return -(-panels // columns), columns, panel, height


def _create_figure(size: tuple[float, float]) -> NotebookFigure:
    figure = NotebookFigure(figsize=size, layout=ConstrainedLayoutEngine(wspace=0.05))
    FigureCanvasAgg(figure)
    return figure


# --- lines ------------------------------------------------------------------------------------


def _draw_line_chart(chart: LineChart, paper_width: float | None) -> NotebookFigure:
    """Draw the panels, with a legend if some lines have no names at their ends."""
    rows, columns, width, height = _compute_grid_shape(chart, len(chart.panels), paper_width)
    letters = NAME_LETTERS if paper_width is None else NAME_LETTERS_ON_PAPER
    size = mpl.rcParams["legend.fontsize"] if paper_width is not None else NAME_POINTS
    height_in_lines = AXIS_FRACTION * height * POINTS_PER_INCH / (LINE_SPACING * size)
    names = [
        place_end_labels(chart, panel, line_letters=letters, height_in_lines=height_in_lines)
        if len(chart.styles) > 1
        else []
        for panel in chart.panels
    ]
    is_named = all(
        _has_all_names(found, panel) for found, panel in zip(names, chart.panels, strict=True)
    )
    legend = 0.0 if is_named else _compute_legend_height(list(chart.styles), columns, width)
    figure = _create_figure((columns * width, rows * height + legend))
    all_axes = figure.subplots(rows, columns, squeeze=False).ravel()
    handles: dict[str, Artist] = {}
    for axes, panel, found in zip(all_axes, chart.panels, names, strict=False):
        handles |= _draw_panel(axes, panel)
        for name in found:
            _write_end_label(axes, name, size)
    for axes in all_axes[len(chart.panels) :]:
        axes.set_visible(False)
    if not is_named:
        letters, entries = _compute_legend_shape(list(handles), columns, width)
        figure.legend(
            list(handles.values()),
            [textwrap.fill(label, letters) for label in handles],
            loc="outside lower center",
            frameon=False,
            ncols=entries,
            handlelength=3.2,  # a dash is seen with its gaps
        )
    return figure


def _has_all_names(names: Sequence[EndLabel], panel: Panel) -> bool:
    """Return whether every line of a panel has its name."""
    return {name.label for name in names} >= {line.label for line in panel.lines}


def _compute_legend_shape(labels: Sequence[str], columns: int, width: float) -> tuple[int, int]:
    """Return the letters per line of an entry, and the entries per row."""
    letters = int(MAX_LEGEND_CHARACTERS * width / PANEL_INCHES[0])
    max_letters = min(max(map(len, labels)), letters)
    return letters, max(1, min(len(labels), int(columns * letters / (max_letters + 6))))


def _compute_legend_height(labels: Sequence[str], columns: int, width: float) -> float:
    _, entries = _compute_legend_shape(labels, columns, width)
    return LEGEND_LINE_INCHES * (1 + math.ceil(len(labels) / entries))


def _write_end_label(axes: Axes, end_label: EndLabel, size: float) -> None:
    """Write a name beside the axes."""
    color, _ = get_line_style(end_label.style)
    axes.annotate(
        "\n".join(end_label.text_lines),
        (1.0, end_label.position),
        xycoords="axes fraction",
        xytext=(4, 0),
        textcoords="offset points",
        color=color,
        fontsize=size,
        linespacing=LINE_SPACING - 0.1,
        va="center",
        annotation_clip=False,
        parse_math=False,
    )


def _draw_panel(axes: Axes, panel: Panel) -> dict[str, Artist]:
    """Draw one panel and return its legend handles by label."""
    drawn: dict[str, Artist] = {}
    for low, high in panel.shaded_ranges:
        axes.axvspan(low, high, color="#E5E5E5", alpha=0.5, linewidth=0)
    # solid lines first: dashed ones remain visible on top
    for line in sorted(panel.lines, key=lambda line: get_line_style(line.style)[1]):
        drawn[line.label] = _draw_line(axes, line, panel)
    handles = {line.label: drawn[line.label] for line in panel.lines}
    for level in panel.reference_lines:
        color, _ = get_line_style(level.style)
        dotted = axes.axhline(level.y, color=color, linestyle=":", linewidth=1.1)
        handles.setdefault(level.label, dotted)
    if panel.has_diagonal:
        axes.axline((1.0, 1.0), (2.0, 2.0), color="black", linestyle="--", linewidth=0.8)
    if panel.x_ticks is not None:
        axes.set_xticks(panel.x_ticks.positions, panel.x_ticks.labels)
    elif "x" not in panel.log_axes:
        axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True, steps=[1, 2, 5, 10]))
    if "x" in panel.log_axes:
        axes.set_xscale("log")
    low, high = compute_y_limits(panel)
    if "y" in panel.log_axes:
        axes.set_yscale("log")
        _set_log_ticks(axes.yaxis, low, high)
        low, high = 10.0**low, 10.0**high
    if not panel.has_diagonal:
        axes.set_ylim(low, high)
    axes.set(xlabel=panel.x_label, ylabel=panel.y_label)
    axes.set_title(panel.title, loc="left", fontsize="medium")
    axes.grid(visible=True, alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    return handles


def _set_log_ticks(axis: Axis, low: float, high: float) -> None:
    """Write full numbers on a logarithmic axis, if it has more than one tick."""
    ticks = compute_log_ticks(low, high)
    if len(ticks) > 1:
        axis.set_ticks(ticks, [f"{tick:g}" for tick in ticks])
        axis.set_ticks([], minor=True)


def _draw_line(axes: Axes, line: Line, panel: Panel) -> Artist:
    color, dash = get_line_style(line.style)
    marker = "o" if line.markers_only or len(line.x) <= MAX_MARKED_POINTS else None
    (drawn,) = axes.plot(
        line.x,
        line.y,
        linestyle="" if line.markers_only else LINE_STYLES[dash],
        color=color,
        marker=marker,
        markersize=3 if line.markers_only and not panel.has_bars else 4,
        alpha=0.6 if line.markers_only and not panel.has_bars else 1.0,
        linewidth=1.3,
    )
    if line.half_width is None:
        return drawn
    low, high = compute_band(line, panel)
    if has_bands(panel):
        # edges keep overlapping bands distinct
        axes.fill_between(
            line.x,
            low,
            high,
            facecolor=(color, BAND_OPACITY),
            edgecolor=(color, EDGE_OPACITY),
            linewidth=0.5,
        )
        return drawn
    indices = select_bar_points(panel, line)
    lengths = ((line.y - low)[indices], (high - line.y)[indices])
    axes.errorbar(
        line.x[indices],
        line.y[indices],
        lengths,
        fmt="none",
        ecolor=color,
        elinewidth=0.9,
        capsize=1.5,
    )
    return drawn


# --- tables -----------------------------------------------------------------------------------


def _draw_grid_chart(chart: GridChart, paper_width: float | None) -> NotebookFigure:
    layers = chart.layers[:MAX_GRIDS]
    rows, columns, width, height = _compute_grid_shape(chart, len(layers), paper_width)
    figure = _create_figure((columns * width, rows * height + LEGEND_LINE_INCHES))
    all_axes = figure.subplots(rows, columns, squeeze=False).ravel()
    finite = [layer.values[np.isfinite(layer.values)] for layer in layers]
    shares_scale = not chart.annotate
    ends = np.concatenate(finite) if shares_scale else np.empty(0)
    for axes, layer in zip(all_axes, layers, strict=False):
        _draw_layer(
            axes, chart, layer, (float(ends.min()), float(ends.max())) if len(ends) else None
        )
        letters = int(MAX_TITLE_CHARACTERS * width / PANEL_INCHES[0])
        axes.set_title("\n".join(textwrap.wrap(layer.label, letters)), fontsize="medium")
    for axes in all_axes[len(layers) :]:
        axes.set_visible(False)
    if chart.categories:
        present = set(np.concatenate([layer.values.ravel() for layer in layers]).tolist())
        patches = [
            Patch(facecolor=color, edgecolor="#444444", label=name)
            for code, (name, color) in enumerate(chart.categories)
            if code in present
        ]
        figure.legend(
            handles=patches, loc="outside lower center", frameon=False, ncols=len(patches)
        )
    elif shares_scale:
        figure.colorbar(all_axes[0].images[0], ax=list(all_axes), label=chart.value_label)
    return figure


def _draw_layer(
    axes: Axes, chart: GridChart, layer: GridLayer, value_range: tuple[float, float] | None
) -> None:
    low, high = value_range or (None, None)
    if chart.categories:
        color_map = ListedColormap([color for _, color in chart.categories])
        norm = BoundaryNorm(np.arange(len(chart.categories) + 1) - 0.5, len(chart.categories))
        axes.imshow(layer.values, cmap=color_map, norm=norm, aspect="auto", interpolation="nearest")
    else:
        axes.imshow(
            layer.values,
            cmap="cividis",
            vmin=low,
            vmax=high,
            aspect="auto",
            interpolation="nearest",
        )
    if chart.annotate:
        for row, column in np.argwhere(np.isfinite(layer.values)):
            text = axes.text(
                column, row, f"{layer.values[row, column]:.4g}", ha="center", va="center"
            )
            text.set_bbox({"facecolor": "white", "alpha": 0.7, "linewidth": 0, "pad": 1})
    if layer.divider:
        axes.axhline(layer.divider - 0.5, color="black", linewidth=0.8)
    _set_tick_names(axes, layer.columns, layer.rows)
    axes.set(xlabel=chart.x_label, ylabel=chart.y_label)


def _set_tick_names(axes: Axes, columns: Sequence[str], rows: Sequence[str]) -> None:
    for axis, names, max_ticks in ((axes.xaxis, columns, 8), (axes.yaxis, rows, 12)):
        step = max(1, math.ceil(len(names) / max_ticks))
        positions = list(range(0, len(names), step))
        axis.set_ticks(positions, [names[i] for i in positions], parse_math=False)
