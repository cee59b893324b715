"""Charts as Plotly figures, for the page."""

import html
import math
from collections.abc import Iterator, Sequence

import numpy as np
import plotly.graph_objects as go
from fedquorum.types import FloatArray
from plotly.subplots import make_subplots

from server_app.report.charts import (
    COLOURS,
    EDGE_OPACITY,
    FEW_POINTS,
    NUM_DASHES,
    Chart,
    GridChart,
    Layer,
    Level,
    Line,
    LineChart,
    Panel,
    band,
    band_opacity,
    grid_shape,
)

DASHES = ("solid", "dash", "dot", "dashdot")
SEQUENTIAL = "Cividis"
GREY = "#E5E5E5"
MANY_DECADES = 2.0
# Pixels.
PANEL_HEIGHT = 300
AXIS_SPACE = 50
TOP_SPACE = 40
LEGEND_LINE = 20
LEGEND_ENTRY = 45
LEGEND_WIDTH = 1000
LETTER = 7
ROW_HEIGHT = (4, 24)
GRID_HEIGHT = (220, 640)

LAYOUT = {
    "template": "none",
    "font": {"family": "system-ui, sans-serif", "size": 12},
    "margin": {"r": 20, "l": 60},
    "paper_bgcolor": "white",
    "plot_bgcolor": "white",
}
AXIS = {"gridcolor": GREY, "zeroline": False, "linecolor": "#444444", "ticks": "outside"}
"""How every figure and its axes look."""


def figure(chart: Chart) -> go.Figure:
    """Return a chart's interactive figure; a click on a legend entry hides a method."""
    drawn = _grids(chart) if isinstance(chart, GridChart) else _lines(chart)
    drawn.update_layout(LAYOUT)
    return drawn


def _lines(chart: LineChart) -> go.Figure:
    rows, columns = grid_shape(len(chart.panels))
    height = rows * PANEL_HEIGHT
    drawn = make_subplots(
        rows=rows,
        cols=columns,
        subplot_titles=[plain_text(panel.title) for panel in chart.panels],
        horizontal_spacing=0.24 / columns if columns > 1 else 0.0,
        vertical_spacing=90 / height if rows > 1 else 0.0,
    )
    named: set[str] = set()
    for place, panel in enumerate(chart.panels):
        at = {"row": place // columns + 1, "col": place % columns + 1}
        for trace in _traces(panel, named):
            drawn.add_trace(trace, **at)
        for low, high in panel.shaded:
            drawn.add_vrect(
                low, high, fillcolor=GREY, opacity=0.5, line_width=0, layer="below", **at
            )
        _axes(drawn, panel, at)
    width = sum(LETTER * len(label) + LEGEND_ENTRY for label in named)
    legend = LEGEND_LINE * (1 + int(width / LEGEND_WIDTH))
    drawn.update_layout(
        height=height + AXIS_SPACE + legend + TOP_SPACE,
        legend={"orientation": "h", "y": -AXIS_SPACE / height, "yanchor": "top", "x": 0},
        hovermode="closest",
        margin={"t": TOP_SPACE, "b": AXIS_SPACE + legend},
    )
    return drawn


def _traces(panel: Panel, named: set[str]) -> Iterator[go.Scatter]:
    """Yield bands, lines and levels; each label enters the legend once, in ``named``."""
    for line in panel.lines:
        if line.spread is not None:
            yield _band(line, panel)
    if panel.diagonal:
        yield _diagonal(panel)
    for line in panel.lines:
        yield _line(line, shown=line.label not in named)
        named.add(line.label)
    ends = [float(x) for line in panel.lines for x in (line.x.min(), line.x.max())]
    for level in panel.levels:
        yield _level(level, min(ends), max(ends), shown=level.label not in named)
        named.add(level.label)


def _line(line: Line, *, shown: bool) -> go.Scatter:
    colour, dash = style_of(line.style)
    single = len(line.x) == 1  # a single round is no line
    few = len(line.x) <= FEW_POINTS
    mode = "markers" if line.points or single else "lines+markers" if few else "lines"
    said = [plain_text(text) for text in line.hover]
    return go.Scatter(
        x=compact(line.x),
        y=compact(line.y),
        mode=mode,
        name=plain_text(line.label),
        legendgroup=line.label,
        showlegend=shown,
        line={"color": colour, "dash": dash, "width": 2},
        marker={"color": colour, "size": 6, "opacity": 0.7 if line.points else 1.0},
        # one text for all points is told once
        text=said if len(set(said)) > 1 else (said[0] if said else None),
        hovertemplate="%{x}: %{y:.5g}" + ("<br>%{text}" if said else ""),
    )


def _band(line: Line, panel: Panel) -> go.Scatter:
    colour, _ = style_of(line.style)
    low, high = band(line, panel)
    return go.Scatter(
        x=compact(np.concatenate([line.x, line.x[::-1]])),
        y=compact(np.concatenate([high, low[::-1]])),
        fill="toself",
        fillcolor=transparent(colour, band_opacity(panel)),
        # where bands lie over each other, their edges tell them apart
        line={"width": 0.5, "color": transparent(colour, EDGE_OPACITY)},
        mode="lines",
        hoverinfo="skip",
        legendgroup=line.label,
        showlegend=False,
    )


def _level(level: Level, low: float, high: float, *, shown: bool) -> go.Scatter:
    colour, _ = style_of(level.style)
    return go.Scatter(
        x=[low, high],
        y=[level.y, level.y],
        mode="lines",
        name=plain_text(level.label),
        legendgroup=level.label,
        showlegend=shown,
        line={"color": colour, "dash": "dot", "width": 1.2},
        text=plain_text(level.text),
        hovertemplate="%{text}<extra></extra>",
    )


def _diagonal(panel: Panel) -> go.Scatter:
    ends = [
        float(f(np.concatenate([line.x, line.y]))) for f in (np.min, np.max) for line in panel.lines
    ]
    return go.Scatter(
        x=[min(ends), max(ends)],
        y=[min(ends), max(ends)],
        mode="lines",
        line={"color": "#000000", "dash": "dash", "width": 1},
        hoverinfo="skip",
        showlegend=False,
    )


def _axes(drawn: go.Figure, panel: Panel, at: dict[str, int]) -> None:
    ticks = {}
    if panel.x_ticks is not None:
        ticks = {
            "tickmode": "array",
            "tickvals": list(panel.x_ticks.positions),
            "ticktext": [plain_text(text) for text in panel.x_ticks.texts],
        }
    x_title, y_title = (
        {"text": plain_text(label), "standoff": 6} for label in (panel.x_label, panel.y_label)
    )
    x_log, y_log = (
        _log_ticks([getattr(line, axis) for line in panel.lines]) if axis in panel.log else {}
        for axis in "xy"
    )
    drawn.update_xaxes(title=x_title, **at, **AXIS, **ticks, **x_log)
    drawn.update_yaxes(title=y_title, automargin=True, **at, **AXIS, **y_log)


def _log_ticks(values: Sequence[FloatArray]) -> dict[str, object]:
    """Return a logarithmic axis: ticks at 1, 2 and 5, or Plotly's choice within a decade."""
    together = np.concatenate(values)
    positive = together[together > 0]
    decades = math.log10(positive.max() / positive.min()) if len(positive) else 0.0
    look: dict[str, object] = {"type": "log", "tickformat": "~g"}
    if decades > MANY_DECADES:
        return look | {"dtick": 1}
    return look | {"dtick": "D2"} if decades > 1.0 else look


def _grids(chart: GridChart) -> go.Figure:
    """Return one heat map, and a menu to choose where there are several."""
    drawn = go.Figure()
    for place, layer in enumerate(chart.layers):
        drawn.add_trace(_heat(chart, layer, visible=place == 0))
    tallest = max(len(layer.rows) for layer in chart.layers)
    low, high = ROW_HEIGHT
    per_row = min(high, max(low, GRID_HEIGHT[1] // max(tallest, 1)))
    height = min(GRID_HEIGHT[1], max(GRID_HEIGHT[0], per_row * tallest))
    drawn.update_layout(height=height + 130, margin={"t": 60, "b": 60})
    look = {"type": "category", "showgrid": False, "linecolor": "#444444", "ticks": "outside"}
    drawn.update_xaxes(title=plain_text(chart.x_label), nticks=20, **look)
    drawn.update_yaxes(title=plain_text(chart.y_label), autorange="reversed", nticks=25, **look)
    drawn.update_layout(shapes=_divider(chart.layers[0]))
    if len(chart.layers) > 1:
        buttons = [
            {
                "label": plain_text(layer.label),
                "method": "update",
                "args": [
                    {"visible": [other is layer for other in chart.layers]},
                    {"shapes": _divider(layer)},
                ],
            }
            for layer in chart.layers
        ]
        menu = {"buttons": buttons, "x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom"}
        drawn.update_layout(updatemenus=[menu])
    else:
        drawn.update_layout(title={"text": plain_text(chart.layers[0].label), "font": {"size": 13}})
    return drawn


def _divider(layer: Layer) -> list[dict[str, object]]:
    if not layer.divider:
        return []
    y = layer.divider - 0.5
    line = {"color": "#000000", "width": 1}
    return [{"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": y, "y1": y, "line": line}]


def _heat(chart: GridChart, layer: Layer, *, visible: bool) -> go.Heatmap:
    common = {
        "x": list(layer.columns),
        "y": list(layer.rows),
        "z": layer.values,
        "name": plain_text(layer.label),
        "visible": visible,
    }
    where = f"{plain_text(chart.x_label)} %{{x}}, {plain_text(chart.y_label)} %{{y}}"
    if not chart.categories:
        return go.Heatmap(
            **common,
            colorscale=SEQUENTIAL,
            colorbar={"title": plain_text(chart.value_label)},
            texttemplate="%{z:.4g}" if chart.written else None,
            hovertemplate=f"{where}: %{{z:.5g}}<extra></extra>",
        )
    count = len(chart.categories)
    steps = [
        [edge / count, colour]
        for place, (_, colour) in enumerate(chart.categories)
        for edge in (place, place + 1)
    ]
    return go.Heatmap(
        **common,
        colorscale=steps,
        zmin=-0.5,
        zmax=count - 0.5,
        colorbar={
            "tickvals": list(range(count)),
            "ticktext": [name for name, _ in chart.categories],
            "outlinecolor": "#444444",
        },
        # the page puts the names of the categories here: as text for each cell they are long
        meta=[name for name, _ in chart.categories],
        hovertemplate=f"{where}: %{{text}}<extra></extra>",
    )


def compact(values: FloatArray) -> FloatArray:
    """Return six digits of each number, in half the bytes."""
    return values.astype(np.float32)


def style_of(place: int) -> tuple[str, str]:
    """Return the colour and the dash of a method by its place."""
    dash = DASHES[place // len(COLOURS) % NUM_DASHES]
    return COLOURS[place % len(COLOURS)], dash


def transparent(colour: str, opacity: float) -> str:
    """Return a colour through which others are seen."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red}, {green}, {blue}, {opacity})"


def plain_text(words: str) -> str:
    """Return words as they are: Plotly reads HTML in texts."""
    return html.escape(words, quote=False)
