"""Save figures as files, and show them in notebooks."""

import io
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

DPI = 150
NOTEBOOK_DPI = 80


class NotebookFigure(Figure):
    """A figure that a notebook shows, without pyplot and its backends."""

    def _repr_png_(self) -> bytes:
        return to_png(self, NOTEBOOK_DPI)


def to_png(figure: Figure, dpi: int) -> bytes:
    """Encode a figure as PNG."""
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=dpi)
    return out.getvalue()


def save_paper_figure(figure: Figure, folder: Path, name: str) -> Path:
    """Write ``name.pdf`` with embedded fonts; the same figure gives the same bytes.

    Raises
    ------
    OSError
        If the file cannot be written.
    """
    pdf = folder / f"{name}.pdf"
    with mpl.rc_context({"pdf.fonttype": 42}):  # TrueType: publishers refuse Type 3
        figure.savefig(pdf, metadata={"CreationDate": None})
    return pdf


def save_figure(figure: Figure, folder: Path, name: str) -> tuple[Path, Path]:
    """Write ``name.png`` (150 dpi) and ``name.svg``; the same figure gives the same bytes.

    Raises
    ------
    OSError
        If a file cannot be written.
    """
    png, svg = folder / f"{name}.png", folder / f"{name}.svg"
    figure.savefig(png, dpi=DPI)
    figure.set_layout_engine(None)  # both formats use the same layout
    with mpl.rc_context({"svg.hashsalt": "fedquorum", "svg.fonttype": "none"}):  # text, not shapes
        figure.savefig(svg, metadata={"Date": None})
    return png, svg
