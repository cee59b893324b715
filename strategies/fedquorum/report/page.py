"""Render a self-contained HTML page with all charts and tables."""

import base64
import gzip
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import jinja2
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from ..records.reader import POPULATION_FILE, Run, read_population
from ..sanitize import sanitize
from .chart_spec import GridChart
from .data import list_experiment_facts
from .experiment import Experiment
from .headline import format_headline
from .names import format_value, to_slug
from .plotly_charts import build_plotly_spec
from .seed_groups import format_setting_value
from .tables import TextTable, build_experiment_tables, build_runs_table, format_rounds
from .templates_generated import TEMPLATES

REPORT_TEMPLATE = "page.html"
EMPTY_TABLE = TextTable("", (), ())


@dataclass(frozen=True)
class _Plot:
    """A chart on the page: its interactive description, and a picture as fallback."""

    id: str
    title: str
    note: str
    json: Markup
    picture: str
    full: bool


@dataclass(frozen=True)
class _Section:
    """An experiment on the page."""

    name: str
    anchor: str
    world: str
    data: tuple[tuple[str, str], ...]
    warnings: tuple[str, ...]
    lead: tuple[tuple[str, ...], ...]
    first: TextTable
    plots: tuple[_Plot, ...]
    tables: tuple[TextTable, ...]
    shared: tuple[str, ...]
    runs: TextTable


def render_report_page(
    experiments: Sequence[Experiment],
    pictures: Mapping[tuple[str, str], bytes],
    warnings: Sequence[str],
) -> str:
    """Render the page as HTML.

    Parameters
    ----------
    experiments : sequence of Experiment
    pictures : mapping
        WebP images by experiment and chart name, shown until the page's script draws.
    warnings : sequence of str
        Records that could not be read.
    """
    sections = [_build_section(one, pictures) for one in experiments]
    return _render(REPORT_TEMPLATE, experiments, sections, warnings, plotly=encode_plotly())


def render_content(
    experiments: Sequence[Experiment],
    warnings: Sequence[str],
    progress: Sequence[str] = (),
    clients: TextTable = EMPTY_TABLE,
) -> str:
    """Render the page's content as HTML, without pictures and scripts.

    Parameters
    ----------
    experiments, warnings : sequences
        As in ``render_report_page``.
    progress : sequence of str
        The progress of each running run, in place of a warning that it runs.
    clients : TextTable
        Each client's last status.
    """
    sections = [_build_section(one, {}, left_out=("running",)) for one in experiments]
    return _render(
        "content.html", experiments, sections, warnings, progress=progress, clients=clients
    )


def _render(
    template: str,
    experiments: Sequence[Experiment],
    sections: Sequence[_Section],
    warnings: Sequence[str],
    **further: object,
) -> str:
    values = {"progress": (), "clients": EMPTY_TABLE, **further}
    return (
        get_templates()
        .get_template(template)
        .render(
            runs=sum(len(group.runs) for one in experiments for group in one.groups),
            experiments=sections,
            warnings=warnings,
            **values,
        )
    )


def _build_section(
    experiment: Experiment,
    pictures: Mapping[tuple[str, str], bytes],
    left_out: Collection[str] = (),
) -> _Section:
    anchor = to_slug(experiment.name)
    first, *tables = build_experiment_tables(
        experiment.groups, experiment.rows, experiment.differences, experiment.name
    )
    return _Section(
        name=experiment.name,
        anchor=anchor,
        world=_describe_shared_setup(experiment),
        data=tuple(list_experiment_facts(experiment)),
        warnings=tuple(_list_warnings(experiment, left_out)),
        lead=tuple(
            tuple(map(_add_no_break_spaces, sentences))
            for sentences in format_headline(experiment.rows)
        ),
        first=first,
        plots=tuple(
            _Plot(
                id=f"{anchor}_{chart.name}",
                title=chart.title,
                note=chart.note,
                json=escape_script_json(json.dumps(build_plotly_spec(chart))),
                picture=base64.b64encode(pictures.get((experiment.name, chart.name), b"")).decode(),
                full=isinstance(chart, GridChart),
            )
            for chart in experiment.charts
        ),
        tables=tuple(tables),
        shared=_list_shared_settings(experiment),
        runs=build_runs_table(
            [run for group in experiment.groups for run in group.runs], experiment.name
        ),
    )


def _list_warnings(experiment: Experiment, left_out: Collection[str]) -> list[str]:
    """Describe each incomplete run and whether it counts, except for the statuses ``left_out``."""
    warnings = []
    for group in experiment.groups:
        counted = {run.directory for run in group.counted_runs}
        for run in group.runs:
            if run.status not in ("completed", *left_out):
                rounds = f"{format_rounds(run)} rounds"
                state = "running, or was killed" if run.status == "running" else run.status
                use = "in the statistics" if run.directory in counted else "not in the statistics"
                error = f" ({run.error})" if run.error else ""
                warnings.append(f"{group.title}, seed {run.seed}: {state}, {rounds}, {use}{error}")
    return warnings


def _add_no_break_spaces(sentence: str) -> str:
    """Keep numbers on one line with their sign or unit."""
    return sentence.replace(" ± ", "\u00a0±\u00a0").replace(" %", "\u00a0%")


def _describe_shared_setup(experiment: Experiment) -> str:
    """Describe the data, population, model and rounds that all runs share."""
    runs = [run for group in experiment.groups for run in group.counted_runs]
    populations = [_describe_population(run) for run in runs]
    descriptions = [
        {f"data {name}" for run in runs if (name := _format_option(run, "data"))},
        {text for text in populations if text},
        {format_value("model.name", str(run.settings.get("model.name", ""))) for run in runs},
        {f"{len(run.rounds)} rounds" for run in runs},
    ]
    return ", ".join(text for texts in descriptions if len(texts) == 1 for text in texts if text)


def _describe_data(run: Run) -> str:
    """Return the name of the data file, or of the data set."""
    path = run.settings.get("data.path")
    return sanitize(Path(path).name) if isinstance(path, str) else _format_option(run, "data")


def _format_option(run: Run, group: str) -> str:
    return format_value(f"{group}.name", str(run.settings.get(f"{group}.name", "")))


def _describe_population(run: Run) -> str:
    """Describe the number of clients; empty without that record."""
    if not (run.directory / POPULATION_FILE).is_file():
        return ""
    priority = read_population(run.directory)["priority"].to_pylist()
    num_priority = sum(map(bool, priority))
    return f"{len(priority)} clients" + (
        f", {num_priority} with priority" if num_priority < len(priority) else ""
    )


def _list_shared_settings(experiment: Experiment) -> tuple[str, ...]:
    """List the settings that are equal in all groups that have them."""
    values: dict[str, set[str]] = {}
    for group in experiment.groups:
        for key, value in group.runs[0].settings.items():
            values.setdefault(key, set()).add(format_setting_value(value))
    return tuple(f"{key}={min(v)}" for key, v in values.items() if len(v) == 1 and key != "seed")


def escape_script_json(text: str) -> Markup:
    """Escape JSON for a script element, which "</" would end."""
    return Markup(text.replace("<", "\\u003c"))  # noqa: S704


@cache
def get_templates() -> jinja2.Environment:
    """Return the environment with all page templates."""
    return jinja2.Environment(
        loader=jinja2.DictLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
    )


@cache
def encode_plotly() -> str:
    """Return Plotly.js for a page: gzip, a third of the size, in base64."""
    return base64.b64encode(compress_plotly()).decode()


@cache
def compress_plotly() -> bytes:
    """Return Plotly.js compressed with gzip."""
    return gzip.compress(get_plotlyjs().encode(), mtime=0)
