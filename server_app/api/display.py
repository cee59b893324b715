"""Format runs and sweeps for a notebook: a table of facts, and the report's figure."""

import base64
import html
from collections.abc import Mapping
from pathlib import Path

from fedquorum.report.figure_files import to_png
from fedquorum.sanitize import sanitize
from matplotlib.figure import Figure

MAX_FACT_LENGTH = 500
PREVIEW_DPI = 70


def format_facts_table(facts: Mapping[str, object]) -> str:
    """Return facts as an HTML table of two columns, with all text escaped."""
    rows = "".join(
        f"<tr><th style='text-align: left'>{_escape(name)}</th>"
        f"<td style='text-align: left'>{_escape(fact)}</td></tr>"
        for name, fact in facts.items()
    )
    return f"<table>{rows}</table>"


def format_image(figure: Figure) -> str:
    """Return a figure as an HTML image with embedded bytes."""
    content = base64.b64encode(to_png(figure, PREVIEW_DPI)).decode()
    return f"<img src='data:image/png;base64,{content}'/>"


def format_directory(directory: Path) -> str:
    """Return a folder's path, relative to the working directory if the folder is below it."""
    cwd = Path.cwd()
    return str(directory.relative_to(cwd) if directory.is_relative_to(cwd) else directory)


def _escape(text: object) -> str:
    return html.escape(sanitize(text, MAX_FACT_LENGTH))
