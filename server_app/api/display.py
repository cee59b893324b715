"""How runs and sweeps show themselves in a notebook: a table of facts, and the report's figure."""

import base64
import html
from collections.abc import Mapping
from pathlib import Path

from fedquorum.sanitize import sanitize
from matplotlib.figure import Figure

from server_app.figure_files import to_png

MAX_FACT_LENGTH = 500
PREVIEW_DPI = 70


def format_facts_table(facts: Mapping[str, object]) -> str:
    """Return facts as an HTML table of two columns, whatever a record has put into them."""
    rows = "".join(
        f"<tr><th style='text-align: left'>{_escape(name)}</th>"
        f"<td style='text-align: left'>{_escape(fact)}</td></tr>"
        for name, fact in facts.items()
    )
    return f"<table>{rows}</table>"


def format_image(figure: Figure) -> str:
    """Return a figure as an HTML image that holds its own bytes."""
    content = base64.b64encode(to_png(figure, PREVIEW_DPI)).decode()
    return f"<img src='data:image/png;base64,{content}'/>"


def format_directory(directory: Path) -> str:
    """Return a folder as one would type it from here."""
    here = Path.cwd()
    return str(directory.relative_to(here) if directory.is_relative_to(here) else directory)


def _escape(text: object) -> str:
    return html.escape(sanitize(text, MAX_FACT_LENGTH))
