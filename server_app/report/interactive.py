"""Charts as Plotly figures, for the page."""

import html
import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from fedquorum.types import FloatArray

from server_app.report.charts import (
    BAND_OPACITY,
    EDGE_OPACITY,
    FEW_POINTS,
    Chart,
    EndName,
    GridChart,
    Layer,
    Level,
    Line,
    LineChart,
    Panel,
    band,
    barred,
    end_names,
    has_bands,
    log_ticks,
    look,
    y_ends,
)

DASHES = ("solid", "dash", "dashdot", "longdash")
"""Not "dot": that is how levels are drawn."""

SEQUENTIAL = "Cividis"
GREY = "#E5E5E5"
# Pixels.
PANEL_HEIGHT = 320
TOP, TOP_ALONE, BOTTOM, LEFT, RIGHT = 36, 14, 52, 60, 14
TEXT_LINE, LETTER = 14.0, 7.0
LETTERS = 20  # in a line of a name at the end of a curve
ROW_HEIGHT = (4, 24)
GRID_HEIGHT = (220, 640)

LAYOUT = {
    "template": "none",
    "font": {"family": "system-ui, sans-serif", "size": 12},
    "margin": {"r": 20, "l": LEFT},
    "paper_bgcolor": "white",
    "plot_bgcolor": "white",
}
AXIS = {"gridcolor": GREY, "zeroline": False, "linecolor": "#444444", "ticks": "outside"}
"""How every figure and its axes look."""


def specification(chart: Chart) -> dict[str, Any]:
    """Return a chart as the page's script draws it.

    ``panels`` are Plotly's figures; with ``choices``, one name for each, one of them is shown at a
    time. ``legend`` has the label, colour and dash of each method, or of each category ("box").
    """
    if isinstance(chart, GridChart):
        several = len(chart.layers) > 1
        choices = [layer.label for layer in chart.layers] if several else []
        panels = [layer_figure(chart, layer, titled=not several) for layer in chart.layers]
        legend = [
            {"label": name, "colour": colour, "dash": "box"} for _, name, colour in _present(chart)
        ]
    else:
        several = len(chart.styles) > 1
        panels = [panel_figure(chart, panel, named=several) for panel in chart.panels]
        legend = [_legend_entry(chart, label, style) for label, style in chart.styles.items()]
        choices = []
    return {
        "legend": legend,
        "choices": choices,
        "panels": [json.loads(panel.to_json()) for panel in panels],
    }


def _legend_entry(chart: LineChart, label: str, style: int) -> dict[str, str]:
    colour, dash = style_of(style)
    lines = [line for panel in chart.panels for line in panel.lines if line.label == label]
    if not lines:
        dash = "dot"
    elif all(line.points for line in lines):
        dash = "points"
    return {"label": label, "colour": colour, "dash": dash}


# --- lines ------------------------------------------------------------------------------------


def panel_figure(
    chart: LineChart, panel: Panel, height: int = PANEL_HEIGHT, *, named: bool = True
) -> go.Figure:
    """Return one of a chart's panels, ``named`` with the lines' names at their ends if they fit."""
    drawn = go.Figure(list(_traces(panel)))
    top = TOP if panel.title else TOP_ALONE
    room = (height - top - BOTTOM) / TEXT_LINE
    names = end_names(chart, panel, letters=LETTERS, room=room) if named else []
    for name in names:
        drawn.add_annotation(_written(name))
    for low, high in panel.shaded:
        drawn.add_vrect(low, high, fillcolor=GREY, opacity=0.5, line_width=0, layer="below")
    longest = max((len(line) for name in names for line in name.text), default=0)
    texts = () if panel.x_ticks is None else panel.x_ticks.texts
    bottom = BOTTOM + TEXT_LINE * max((text.count("\n") for text in texts), default=0)
    drawn.update_layout(
        LAYOUT,
        height=height,
        margin={"t": top, "b": bottom, "l": LEFT, "r": RIGHT + LETTER * longest},
        title=_title(panel.title),
        showlegend=False,
        hovermode="closest",
    )
    _axes(drawn, panel)
    return drawn


def _title(text: str) -> dict[str, object]:
    return {"text": plain_text(text), "font": {"size": 13}, "x": 0, "xref": "paper"}


def _written(name: EndName) -> dict[str, object]:
    """Return a name beside the axes; the script hides it with the line of this label."""
    colour, _ = style_of(name.style)
    return {
        "name": name.label,
        "text": "<br>".join(map(plain_text, name.text)),
        "font": {"color": colour, "size": 11},
        "align": "left",
        "showarrow": False,
        "x": 1,
        "xref": "paper",
        "xanchor": "left",
        "xshift": 4,
        "y": name.place,
        "yref": "paper",
        "yanchor": "middle",
    }


def _traces(panel: Panel) -> Iterator[go.Scatter]:
    """Yield bands, lines and levels; solid lines first, since others can be seen on them."""
    if has_bands(panel):
        for line in panel.lines:
            if line.spread is not None:
                yield _band(line, panel)
    if panel.diagonal:
        yield _diagonal(panel)
    for line in sorted(panel.lines, key=lambda line: look(line.style)[1]):
        yield _line(line, panel)
    ends = [float(x) for line in panel.lines for x in (line.x.min(), line.x.max())]
    for level in panel.levels:
        yield _level(level, min(ends), max(ends))


def _line(line: Line, panel: Panel) -> go.Scatter:
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
        line={"color": colour, "dash": dash, "width": 2},
        error_y=_bars(line, panel),
        marker={"color": colour, "size": 6, "opacity": 0.7 if line.points else 1.0},
        # one text for all points is told once
        text=said if len(set(said)) > 1 else (said[0] if said else None),
        hovertemplate="%{x}: %{y:.5g}" + ("<br>%{text}" if said else ""),
    )


def _bars(line: Line, panel: Panel) -> dict[str, object]:
    places = barred(panel, line)
    if len(places) == 0:
        return {"visible": False}
    low, high = band(line, panel)
    up, down = np.full_like(line.y, np.nan), np.full_like(line.y, np.nan)
    up[places], down[places] = (high - line.y)[places], (line.y - low)[places]
    colour, _ = style_of(line.style)
    shape = {"color": colour, "thickness": 1.2, "width": 3}
    return {"type": "data", "array": compact(up), "arrayminus": compact(down), **shape}


def _band(line: Line, panel: Panel) -> go.Scatter:
    colour, _ = style_of(line.style)
    low, high = band(line, panel)
    return go.Scatter(
        x=compact(np.concatenate([line.x, line.x[::-1]])),
        y=compact(np.concatenate([high, low[::-1]])),
        fill="toself",
        fillcolor=transparent(colour, BAND_OPACITY),
        # where bands lie over each other, their edges tell them apart
        line={"width": 0.5, "color": transparent(colour, EDGE_OPACITY)},
        mode="lines",
        hoverinfo="skip",
        legendgroup=line.label,
    )


def _level(level: Level, low: float, high: float) -> go.Scatter:
    colour, _ = style_of(level.style)
    return go.Scatter(
        x=[low, high],
        y=[level.y, level.y],
        mode="lines",
        name=plain_text(level.label),
        legendgroup=level.label,
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
    )


def _axes(drawn: go.Figure, panel: Panel) -> None:
    ticks = {}
    if panel.x_ticks is not None:
        ticks = {
            "tickmode": "array",
            "tickvals": list(panel.x_ticks.positions),
            "ticktext": [plain_text(text).replace("\n", "<br>") for text in panel.x_ticks.texts],
        }
    x_title, y_title = (
        {"text": plain_text(label), "standoff": 6} for label in (panel.x_label, panel.y_label)
    )
    drawn.update_xaxes(title=x_title, **AXIS, **ticks)
    drawn.update_yaxes(title=y_title, automargin=True, **AXIS)
    if "x" in panel.log:
        drawn.update_xaxes(_log_axis(*_exponents([line.x for line in panel.lines])))
    if "y" in panel.log:
        drawn.update_yaxes(_log_axis(*y_ends(panel)))
    if not panel.diagonal:
        drawn.update_yaxes(range=y_ends(panel))


def _exponents(values: Sequence[FloatArray]) -> tuple[float, float]:
    positive = np.concatenate(values)
    positive = positive[positive > 0]
    return float(np.log10(positive.min())), float(np.log10(positive.max()))


def _log_axis(low: float, high: float) -> dict[str, object]:
    """Return a logarithmic axis between two exponents of 10; with few ticks they are Plotly's."""
    ticks = log_ticks(low, high)
    chosen = {"tickmode": "array", "tickvals": ticks} if len(ticks) > 1 else {}
    return {"type": "log", "tickformat": "~g", **chosen}


# --- tables -----------------------------------------------------------------------------------


def layer_figure(chart: GridChart, layer: Layer, *, titled: bool) -> go.Figure:
    """Return one of a chart's tables as a heat map, ``titled`` with its label."""
    drawn = go.Figure(_heat(chart, layer))
    low, high = ROW_HEIGHT
    rows = len(layer.rows)
    per_row = min(high, max(low, GRID_HEIGHT[1] // max(rows, 1)))
    height = min(GRID_HEIGHT[1], max(GRID_HEIGHT[0], per_row * rows))
    top = TOP if titled else TOP_ALONE
    drawn.update_layout(
        LAYOUT,
        height=height + top + BOTTOM,
        margin={"t": top, "b": BOTTOM, "l": LEFT, "r": RIGHT},
        title=_title(layer.label if titled else ""),
    )
    axis = {"type": "category", "showgrid": False, "linecolor": "#444444", "ticks": "outside"}
    x_title, y_title = (
        {"text": plain_text(label), "standoff": 6} for label in (chart.x_label, chart.y_label)
    )
    drawn.update_xaxes(title=x_title, nticks=20, **axis)
    drawn.update_yaxes(title=y_title, autorange="reversed", nticks=25, automargin=True, **axis)
    if layer.divider:
        y = layer.divider - 0.5
        drawn.add_shape(
            type="line", xref="paper", x0=0, x1=1, y0=y, y1=y, line={"color": "black", "width": 1}
        )
    return drawn


def _present(chart: GridChart) -> list[tuple[int, str, str]]:
    """Return code, name and colour of the categories that a chart has."""
    codes = {code for layer in chart.layers for code in np.unique(layer.values).tolist()}
    return [
        (code, name, colour)
        for code, (name, colour) in enumerate(chart.categories)
        if code in codes
    ]


def _heat(chart: GridChart, layer: Layer) -> go.Heatmap:
    common = {
        "x": list(layer.columns),
        "y": list(layer.rows),
        "z": layer.values,
        "name": plain_text(layer.label),
    }
    where = f"{plain_text(chart.x_label)} %{{x}}, {plain_text(chart.y_label)} %{{y}}"
    if not chart.categories:
        return go.Heatmap(
            **common,
            colorscale=SEQUENTIAL,
            colorbar={"title": plain_text(chart.value_label), "thickness": 18},
            texttemplate="%{z:.4g}" if chart.written else None,
            hovertemplate=f"{where}: %{{z:.5g}}<extra></extra>",
        )
    steps = [
        [edge / len(chart.categories), colour]
        for place, (_, colour) in enumerate(chart.categories)
        for edge in (place, place + 1)
    ]
    return go.Heatmap(
        **common,
        colorscale=steps,
        zmin=-0.5,
        zmax=len(chart.categories) - 0.5,
        showscale=False,
        # the page puts the names of the categories here: as text for each cell they are long
        meta=[name for name, _ in chart.categories],
        hovertemplate=f"{where}: %{{text}}<extra></extra>",
    )


def compact(values: FloatArray) -> FloatArray:
    """Return six digits of each number, in half the bytes."""
    return values.astype(np.float32)


def style_of(place: int) -> tuple[str, str]:
    """Return the colour and the dash of a method by its place."""
    colour, dash = look(place)
    return colour, DASHES[dash]


def transparent(colour: str, opacity: float) -> str:
    """Return a colour through which others are seen."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red}, {green}, {blue}, {opacity})"


def plain_text(words: str) -> str:
    """Return words as they are: Plotly reads HTML in texts."""
    return html.escape(words, quote=False)
