"""Draw charts as Plotly figures, for the page."""

import html
import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from ..rules.types import FloatArray
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
    ReferenceLine,
    compute_band,
    compute_log_ticks,
    compute_y_limits,
    get_line_style,
    has_bands,
    place_end_labels,
    select_bar_points,
)

DASHES = ("solid", "dash", "dashdot", "longdash")
"""Without "dot": that is for reference lines."""

COLOR_SCALE = "Cividis"
GRAY = "#E5E5E5"
# Pixels.
PANEL_HEIGHT = 320
TOP, TOP_ALONE, BOTTOM, LEFT, RIGHT = 36, 14, 52, 60, 14
TEXT_LINE, LETTER, CAPITAL = 14.0, 6.2, 8.8
END_LABEL_LETTERS = 20  # per line of a name at the end of a curve
ROW_HEIGHT_RANGE = (4, 24)
GRID_HEIGHT_RANGE = (220, 640)

LAYOUT = {
    "template": "none",
    "font": {"family": "system-ui, sans-serif", "size": 12},
    "margin": {"r": 20, "l": LEFT},
    "paper_bgcolor": "white",
    "plot_bgcolor": "white",
}
AXIS = {"gridcolor": GRAY, "zeroline": False, "linecolor": "#444444", "ticks": "outside"}
"""The style of every figure and its axes."""


def build_plotly_spec(chart: Chart) -> dict[str, Any]:
    """Build the JSON specification of a chart for the page's script.

    ``panels`` are Plotly figures; with ``choices``, one name per panel, the page shows one panel at
    a time. ``legend`` has the label, color and dash of each method, or of each category ("box").
    """
    if isinstance(chart, GridChart):
        several = len(chart.layers) > 1
        choices = [layer.label for layer in chart.layers] if several else []
        panels = [
            build_layer_figure(chart, layer, with_title=not several) for layer in chart.layers
        ]
        legend = [
            {"label": name, "color": color, "dash": "box"}
            for _, name, color in _list_used_categories(chart)
        ]
    else:
        several = len(chart.styles) > 1
        panels = [
            build_panel_figure(chart, panel, with_line_names=several) for panel in chart.panels
        ]
        legend = [_build_legend_entry(chart, label, style) for label, style in chart.styles.items()]
        choices = []
    return {
        "legend": legend,
        "choices": choices,
        "panels": [json.loads(panel.to_json()) for panel in panels],
    }


def _build_legend_entry(chart: LineChart, label: str, style: int) -> dict[str, str]:
    color, dash = get_plotly_style(style)
    lines = [line for panel in chart.panels for line in panel.lines if line.label == label]
    if not lines:
        dash = "dot"
    elif all(line.markers_only for line in lines):
        dash = "points"
    return {"label": label, "color": color, "dash": dash}


# --- lines ------------------------------------------------------------------------------------


def build_panel_figure(
    chart: LineChart, panel: Panel, height: int = PANEL_HEIGHT, *, with_line_names: bool = True
) -> go.Figure:
    """Build a panel's figure, ``with_line_names`` with names at the ends of lines if they fit."""
    drawn = go.Figure(list(_build_traces(panel)))
    top = TOP if panel.title else TOP_ALONE
    lines = (height - top - BOTTOM) / TEXT_LINE
    names = (
        place_end_labels(chart, panel, line_letters=END_LABEL_LETTERS, height_in_lines=lines)
        if with_line_names
        else []
    )
    for name in names:
        drawn.add_annotation(_build_annotation(name))
    for low, high in panel.shaded_ranges:
        drawn.add_vrect(low, high, fillcolor=GRAY, opacity=0.5, line_width=0, layer="below")
    beside = max((_estimate_width(line) for name in names for line in name.text_lines), default=0.0)
    texts = () if panel.x_ticks is None else panel.x_ticks.labels
    bottom = BOTTOM + TEXT_LINE * max((text.count("\n") for text in texts), default=0)
    drawn.update_layout(
        LAYOUT,
        height=height,
        margin={"t": top, "b": bottom, "l": LEFT, "r": RIGHT + beside},
        title=_build_title(panel.title),
        showlegend=False,
        hovermode="closest",
    )
    _set_axes(drawn, panel)
    return drawn


def _build_title(text: str) -> dict[str, object]:
    return {"text": escape_html(text), "font": {"size": 13}, "x": 0, "xref": "paper"}


def _estimate_width(text: str) -> float:
    return sum(CAPITAL if letter.isupper() or letter in "+=" else LETTER for letter in text)


def _build_annotation(end_label: EndLabel) -> dict[str, object]:
    """Build a name beside the axes; the script hides it together with its line."""
    color, _ = get_plotly_style(end_label.style)
    return {
        "name": end_label.label,
        "text": "<br>".join(map(escape_html, end_label.text_lines)),
        "font": {"color": color, "size": 11},
        "align": "left",
        "showarrow": False,
        "x": 1,
        "xref": "paper",
        "xanchor": "left",
        "xshift": 4,
        "y": end_label.position,
        "yref": "paper",
        "yanchor": "middle",
    }


def _build_traces(panel: Panel) -> Iterator[go.Scatter]:
    """Yield bands, lines and reference lines; solid lines first, below dashed ones."""
    if has_bands(panel):
        for line in panel.lines:
            if line.half_width is not None:
                yield _build_band(line, panel)
    if panel.has_diagonal:
        yield _build_diagonal(panel)
    for line in sorted(panel.lines, key=lambda line: get_line_style(line.style)[1]):
        yield _build_line(line, panel)
    ends = [float(x) for line in panel.lines for x in (line.x.min(), line.x.max())]
    for level in panel.reference_lines:
        yield _build_reference_line(level, min(ends), max(ends))


def _build_line(line: Line, panel: Panel) -> go.Scatter:
    color, dash = get_plotly_style(line.style)
    single = len(line.x) == 1  # one point needs a marker
    few = len(line.x) <= MAX_MARKED_POINTS
    mode = "markers" if line.markers_only or single else "lines+markers" if few else "lines"
    texts = [escape_html(text) for text in line.hover_texts]
    return go.Scatter(
        x=cast_to_float32(line.x),
        y=cast_to_float32(line.y),
        mode=mode,
        name=escape_html(line.label),
        legendgroup=line.label,
        line={"color": color, "dash": dash, "width": 2},
        error_y=_build_error_bars(line, panel),
        marker={"color": color, "size": 6, "opacity": 0.7 if line.markers_only else 1.0},
        # a text shared by all points is stored once
        text=texts if len(set(texts)) > 1 else (texts[0] if texts else None),
        hovertemplate="%{x}: %{y:.5g}" + ("<br>%{text}" if texts else ""),
    )


def _build_error_bars(line: Line, panel: Panel) -> dict[str, object]:
    indices = select_bar_points(panel, line)
    if len(indices) == 0:
        return {"visible": False}
    low, high = compute_band(line, panel)
    up, down = np.full_like(line.y, np.nan), np.full_like(line.y, np.nan)
    up[indices], down[indices] = (high - line.y)[indices], (line.y - low)[indices]
    color, _ = get_plotly_style(line.style)
    shape = {"color": color, "thickness": 1.2, "width": 3}
    return {
        "type": "data",
        "array": cast_to_float32(up),
        "arrayminus": cast_to_float32(down),
        **shape,
    }


def _build_band(line: Line, panel: Panel) -> go.Scatter:
    color, _ = get_plotly_style(line.style)
    low, high = compute_band(line, panel)
    return go.Scatter(
        x=cast_to_float32(np.concatenate([line.x, line.x[::-1]])),
        y=cast_to_float32(np.concatenate([high, low[::-1]])),
        fill="toself",
        fillcolor=add_opacity(color, BAND_OPACITY),
        # edges keep overlapping bands distinct
        line={"width": 0.5, "color": add_opacity(color, EDGE_OPACITY)},
        mode="lines",
        hoverinfo="skip",
        legendgroup=line.label,
    )


def _build_reference_line(reference_line: ReferenceLine, low: float, high: float) -> go.Scatter:
    color, _ = get_plotly_style(reference_line.style)
    return go.Scatter(
        x=[low, high],
        y=[reference_line.y, reference_line.y],
        mode="lines",
        name=escape_html(reference_line.label),
        legendgroup=reference_line.label,
        line={"color": color, "dash": "dot", "width": 1.2},
        text=escape_html(reference_line.hover_text),
        hovertemplate="%{text}<extra></extra>",
    )


def _build_diagonal(panel: Panel) -> go.Scatter:
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


def _set_axes(figure: go.Figure, panel: Panel) -> None:
    ticks = {}
    if panel.x_ticks is not None:
        ticks = {
            "tickmode": "array",
            "tickvals": list(panel.x_ticks.positions),
            "ticktext": [escape_html(text).replace("\n", "<br>") for text in panel.x_ticks.labels],
        }
    x_title, y_title = (
        {"text": escape_html(label), "standoff": 6} for label in (panel.x_label, panel.y_label)
    )
    figure.update_xaxes(title=x_title, **AXIS, **ticks)
    figure.update_yaxes(title=y_title, automargin=True, **AXIS)
    if "x" in panel.log_axes:
        figure.update_xaxes(
            _build_log_axis(*_compute_exponent_range([line.x for line in panel.lines]))
        )
    if "y" in panel.log_axes:
        figure.update_yaxes(_build_log_axis(*compute_y_limits(panel)))
    if not panel.has_diagonal:
        figure.update_yaxes(range=compute_y_limits(panel))


def _compute_exponent_range(values: Sequence[FloatArray]) -> tuple[float, float]:
    positive = np.concatenate(values)
    positive = positive[positive > 0]
    if len(positive) == 0:
        return 0.0, 1.0
    return float(np.log10(positive.min())), float(np.log10(positive.max()))


def _build_log_axis(low: float, high: float) -> dict[str, object]:
    """Build a logarithmic axis between two exponents of 10; with one tick, Plotly chooses."""
    ticks = compute_log_ticks(low, high)
    chosen = {"tickmode": "array", "tickvals": ticks} if len(ticks) > 1 else {}
    return {"type": "log", "tickformat": "~g", **chosen}


# --- tables -----------------------------------------------------------------------------------


def build_layer_figure(chart: GridChart, layer: GridLayer, *, with_title: bool) -> go.Figure:
    """Build a layer's heat map, ``with_title`` with its label as title."""
    drawn = go.Figure(_build_heat_map(chart, layer))
    low, high = ROW_HEIGHT_RANGE
    rows = len(layer.rows)
    per_row = min(high, max(low, GRID_HEIGHT_RANGE[1] // max(rows, 1)))
    height = min(GRID_HEIGHT_RANGE[1], max(GRID_HEIGHT_RANGE[0], per_row * rows))
    top = TOP if with_title else TOP_ALONE
    drawn.update_layout(
        LAYOUT,
        height=height + top + BOTTOM,
        margin={"t": top, "b": BOTTOM, "l": LEFT, "r": RIGHT},
        title=_build_title(layer.label if with_title else ""),
    )
    axis = {"type": "category", "showgrid": False, "linecolor": "#444444", "ticks": "outside"}
    x_title, y_title = (
        {"text": escape_html(label), "standoff": 6} for label in (chart.x_label, chart.y_label)
    )
    drawn.update_xaxes(title=x_title, nticks=20, **axis)
    drawn.update_yaxes(title=y_title, autorange="reversed", nticks=25, automargin=True, **axis)
    if layer.divider:
        y = layer.divider - 0.5
        drawn.add_shape(
            type="line", xref="paper", x0=0, x1=1, y0=y, y1=y, line={"color": "black", "width": 1}
        )
    return drawn


def _list_used_categories(chart: GridChart) -> list[tuple[int, str, str]]:
    """Return code, name and color of each category that occurs in a chart."""
    codes = {code for layer in chart.layers for code in np.unique(layer.values).tolist()}
    return [
        (code, name, color) for code, (name, color) in enumerate(chart.categories) if code in codes
    ]


def _build_heat_map(chart: GridChart, layer: GridLayer) -> go.Heatmap:
    common = {
        "x": list(layer.columns),
        "y": [escape_html(name) for name in layer.rows],
        "z": layer.values,
        "name": escape_html(layer.label),
    }
    where = f"{escape_html(chart.x_label)} %{{x}}, {escape_html(chart.y_label)} %{{y}}"
    if not chart.categories:
        return go.Heatmap(
            **common,
            colorscale=COLOR_SCALE,
            colorbar={"title": escape_html(chart.value_label), "thickness": 18},
            texttemplate="%{z:.4g}" if chart.annotate else None,
            hovertemplate=f"{where}: %{{z:.5g}}<extra></extra>",
        )
    steps = [
        [edge / len(chart.categories), color]
        for code, (_, color) in enumerate(chart.categories)
        for edge in (code, code + 1)
    ]
    return go.Heatmap(
        **common,
        colorscale=steps,
        zmin=-0.5,
        zmax=len(chart.categories) - 0.5,
        showscale=False,
        # the page's script writes the category names per cell: as text here they would be long
        meta=[name for name, _ in chart.categories],
        hovertemplate=f"{where}: %{{text}}<extra></extra>",
    )


def cast_to_float32(values: FloatArray) -> FloatArray:
    """Cast to float32, clipped to its range, to halve the bytes."""
    limit = np.finfo(np.float32).max
    return np.clip(values, -limit, limit).astype(np.float32)


def get_plotly_style(style: int) -> tuple[str, str]:
    """Return the color and the Plotly dash of a style."""
    color, dash = get_line_style(style)
    return color, DASHES[dash]


def add_opacity(color: str, opacity: float) -> str:
    """Return a hex color as rgba with an opacity in [0, 1]."""
    red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red}, {green}, {blue}, {opacity})"


def escape_html(text: str) -> str:
    """Escape a text, because Plotly interprets HTML in texts."""
    return html.escape(text, quote=False)
