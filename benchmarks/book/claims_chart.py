"""Draw the claims of the papers as forest plots: measured and published effects, by verdict."""

from collections.abc import Sequence
from pathlib import Path

from fedquorum.report.figure_files import DPI, NotebookFigure, to_png
from matplotlib.axes import Axes
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D

from benchmarks.book.claims import Verdict
from benchmarks.book.verdicts import Outcome, compute_interval

COLORS = {
    Outcome.REPRODUCED: "#1b7837",
    Outcome.CONTRADICTED: "#b2182b",
    Outcome.UNDECIDED: "#878787",
}
PUBLISHED_COLOR = "#2166ac"
LINEAR_UP_TO = 1.0
"""The axis is linear up to one point and logarithmic beyond: effects span four powers of ten."""

ROW_INCHES, WIDTH_INCHES, OVERVIEW_INCHES = 0.17, 11.5, (9.0, 3.4)
MAX_LABEL = 125
OTHER_UNITS = "Losses, bounds and weights, each in its own unit"


def draw_claims(verdicts: Sequence[Verdict]) -> NotebookFigure:
    """Draw all measured claims with their texts, a panel for each paper."""
    panels = _group_by_panel(verdicts)
    heights = [len(panel) + 1 for panel in panels.values()]
    figure = NotebookFigure(
        figsize=(WIDTH_INCHES, ROW_INCHES * sum(heights) + 1.2),
        layout=ConstrainedLayoutEngine(h_pad=0.02),
    )
    axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
    for ax, (title, panel) in zip(axes, panels.items(), strict=True):
        _draw_panel(ax, title, panel)
        labels = [_shorten(verdict) for verdict in panel]
        ax.set_yticks(range(len(panel)), labels, fontsize=6)
    _add_legend(figure)
    return figure


def draw_overview(verdicts: Sequence[Verdict]) -> NotebookFigure:
    """Draw the same in little space: claims by effect without texts, and points alone."""
    panels = _group_by_panel(verdicts)
    panels.pop(OTHER_UNITS, None)
    figure = NotebookFigure(figsize=OVERVIEW_INCHES, layout=ConstrainedLayoutEngine())
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for ax, (title, panel) in zip(axes, panels.items(), strict=True):
        _draw_panel(ax, title, sorted(panel, key=_get_effect, reverse=True))
        ax.set_yticks([])
        ax.set_xlabel("points in the claimed direction", fontsize=7)
    _add_legend(figure)
    return figure


def write_claim_charts(verdicts: Sequence[Verdict], images: Path) -> None:
    """Write both plots into the folder of the documents' images."""
    images.mkdir(exist_ok=True)
    (images / "claims.png").write_bytes(to_png(draw_claims(verdicts), DPI))
    (images / "claims-overview.png").write_bytes(to_png(draw_overview(verdicts), DPI))


def _group_by_panel(verdicts: Sequence[Verdict]) -> dict[str, list[Verdict]]:
    """Return the measured claims by paper, those without percentage points last."""
    panels: dict[str, list[Verdict]] = {}
    for verdict in (v for v in verdicts if v.judgment is not None):
        if verdict.claim.is_in_points:
            panels.setdefault(verdict.claim.paper.partition(",")[0], []).append(verdict)
    others = [v for v in verdicts if v.judgment is not None and not v.claim.is_in_points]
    return panels | ({OTHER_UNITS: others} if others else {})


def _draw_panel(ax: Axes, title: str, panel: Sequence[Verdict]) -> None:
    ax.axvline(0.0, color="black", linewidth=0.6)
    for y, verdict in enumerate(panel):
        difference, judgment, sign = verdict.difference, verdict.judgment, verdict.claim.sign
        assert difference is not None
        assert judgment is not None
        color = COLORS[judgment.outcome]
        low, high = compute_interval(sign * difference.mean, difference.sd or 0.0, verdict.seeds)
        ax.plot([low, high], [y, y], color=color, linewidth=1.2, solid_capstyle="butt")
        ax.plot(sign * difference.mean, y, "o", color=color, markersize=3)
        if verdict.claim.published_difference is not None:
            published = sign * verdict.claim.published_difference
            ax.plot(published, y, "D", mfc="none", mec=PUBLISHED_COLOR, markersize=3.4)
    ax.set_ylim(len(panel) - 0.4, -0.6)
    ax.set_xscale("symlog", linthresh=LINEAR_UP_TO)
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    ax.tick_params(axis="x", labelsize=6)
    ax.grid(axis="x", color="#dddddd", linewidth=0.5)
    ax.set_axisbelow(True)
    ax.set_title(title, fontsize=8, loc="left")
    ax.spines[["top", "right", "left"]].set_visible(False)
    ax.tick_params(axis="y", length=0)


def _add_legend(figure: NotebookFigure) -> None:
    handles = [
        Line2D([], [], color=color, marker="o", markersize=3, label=str(outcome))
        for outcome, color in COLORS.items()
    ]
    handles.append(
        Line2D([], [], linestyle="", marker="D", mfc="none", mec=PUBLISHED_COLOR, label="published")
    )
    figure.legend(handles=handles, loc="outside lower center", ncols=4, fontsize=7, frameon=False)


def _get_effect(verdict: Verdict) -> float:
    assert verdict.difference is not None
    return verdict.claim.sign * verdict.difference.mean


def _shorten(verdict: Verdict) -> str:
    place = verdict.claim.paper.partition(", ")[2]
    text = f"{place}. {verdict.claim.claim.removesuffix('.')}"
    return text if len(text) <= MAX_LABEL else f"{text[: MAX_LABEL - 1]}…"
