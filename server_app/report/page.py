"""One HTML page with all figures and tables, which needs nothing else to be opened."""

import base64
import gzip
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import jinja2
import yaml
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from server_app.report.charts import LineChart, grid_shape
from server_app.report.experiment import Experiment
from server_app.report.groups import word
from server_app.report.interactive import figure
from server_app.report.lead import lead
from server_app.report.sweep_charts import slug
from server_app.report.tables import TextTable, experiment_tables, runs_table

TEMPLATE = "page.html"
FILES = ("report/page.yaml", "report/watch/page.yaml", "study/page.yaml")


@dataclass(frozen=True)
class _Plot:
    """A chart on the page: its interactive description, and the picture that stands for it."""

    id: str
    title: str
    note: str
    json: Markup
    picture: str
    columns: int
    narrow: bool


@dataclass(frozen=True)
class _Section:
    """An experiment on the page."""

    name: str
    anchor: str
    warnings: tuple[str, ...]
    lead: tuple[tuple[str, ...], ...]
    first: TextTable
    plots: tuple[_Plot, ...]
    tables: tuple[TextTable, ...]
    shared: tuple[str, ...]
    runs: TextTable


def page(
    experiments: Sequence[Experiment],
    pictures: Mapping[tuple[str, str], bytes],
    warnings: Sequence[str],
) -> str:
    """Return the page as HTML.

    Parameters
    ----------
    experiments : sequence of Experiment
        What to tell.
    pictures : mapping
        A WebP by experiment and chart name, shown until and unless the page's script draws.
    warnings : sequence of str
        What could not be read.
    """
    return (
        templates()
        .get_template(TEMPLATE)
        .render(
            runs=sum(len(group.runs) for one in experiments for group in one.groups),
            experiments=[_section(one, pictures) for one in experiments],
            warnings=warnings,
            plotly=packed_plotly(),
        )
    )


def _section(one: Experiment, pictures: Mapping[tuple[str, str], bytes]) -> _Section:
    anchor = slug(one.name)
    first, *tables = experiment_tables(one.groups, one.rows, one.differences, one.name)
    return _Section(
        name=one.name,
        anchor=anchor,
        warnings=tuple(_warnings(one)),
        lead=tuple(lead(one.rows)),
        first=first,
        plots=tuple(
            _Plot(
                id=f"{anchor}_{chart.name}",
                title=chart.title,
                note=chart.note,
                json=script_json(figure(chart).to_json()),
                picture=base64.b64encode(pictures[one.name, chart.name]).decode(),
                columns=grid_shape(len(chart.panels))[1] if isinstance(chart, LineChart) else 2,
                narrow=isinstance(chart, LineChart) and len(chart.panels) == 1,
            )
            for chart in one.charts
        ),
        tables=tuple(tables),
        shared=_shared(one),
        runs=runs_table([run for group in one.groups for run in group.runs], one.name),
    )


def _warnings(one: Experiment) -> list[str]:
    """Say which runs did not get to their end, and whether they count."""
    warnings = []
    for group in one.groups:
        counted = {run.directory for run in group.counted}
        for run in group.runs:
            if run.status != "completed":
                rounds = f"{len(run.rounds)} of {run.planned or '?'} rounds"
                state = "running, or was killed" if run.status == "running" else run.status
                use = "in the statistics" if run.directory in counted else "not in the statistics"
                error = f" ({run.error})" if run.error else ""
                warnings.append(f"{group.title}, seed {run.seed}: {state}, {rounds}, {use}{error}")
    return warnings


def _shared(one: Experiment) -> tuple[str, ...]:
    """Return the settings that are the same in all groups that have them."""
    values: dict[str, set[str]] = {}
    for group in one.groups:
        for key, value in group.runs[0].settings.items():
            values.setdefault(key, set()).add(word(value))
    return tuple(f"{key}={min(v)}" for key, v in values.items() if len(v) == 1 and key != "seed")


def script_json(text: str) -> Markup:
    """Return JSON for a script element, which "</" would end."""
    return Markup(text.replace("<", "\\u003c"))  # noqa: S704


@cache
def templates() -> jinja2.Environment:
    """Return the templates of pages, and the style and script that they share."""
    folder = Path(__file__).parent.parent
    texts = [yaml.safe_load((folder / name).read_text(encoding="utf-8")) for name in FILES]
    return jinja2.Environment(
        loader=jinja2.ChoiceLoader([jinja2.DictLoader(text) for text in texts]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
    )


@cache
def packed_plotly() -> str:
    """Return Plotly.js as a page has it: gzip, to a third, in base64."""
    return base64.b64encode(gzip.compress(get_plotlyjs().encode(), mtime=0)).decode()
