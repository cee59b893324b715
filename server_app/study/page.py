"""A study's answer as one HTML page, which needs nothing else to be opened."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fedquorum.intake import shown
from fedquorum.records.files import replacing
from markupsafe import Markup

from server_app.report.page import packed_plotly, script_json, templates
from server_app.report.tables import TextTable
from server_app.study.answer import PAGE_FILE, Answer
from server_app.study.charts import StudyChart, colour_of, study_charts, tuning_charts
from server_app.study.tables import (
    LONGEST_TEXT,
    TUNED,
    answer_table,
    left_out_table,
    ranked,
    runs_table,
)
from server_app.study.words import (
    capital,
    duration,
    listed,
    num_seeds,
    percent,
    question_words,
    title,
    unit_of,
    verdict_sentence,
    whose,
)

TEMPLATE = "study.html"


@dataclass(frozen=True)
class _Plot:
    """A chart on the page."""

    id: str
    title: str
    note: str
    small: bool
    json: Markup


@dataclass(frozen=True)
class _Row:
    """A method's row of the table, with its colour in the charts."""

    name: str
    colour: str
    marked: bool
    cells: tuple[str, ...]


@dataclass(frozen=True)
class _Answers:
    """The table of the methods."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[_Row, ...]


def page(answer: Answer, *, engine: str = "") -> str:
    """Return a study's page as HTML.

    From top to bottom: the verdict, the methods, the caveats, the differences and other charts,
    the tuning, and what repeats each number.

    Parameters
    ----------
    answer : Answer
        What the study says.
    engine : str
        What ran it, in words; left out if empty.
    """
    return (
        templates()
        .get_template(TEMPLATE)
        .render(
            data=shown(answer.data),
            question=question_words(answer),
            verdict=verdict_sentence(answer),
            answers=_answers(answer),
            tuned=TUNED,
            table_note=_table_note(answer),
            left_out=left_out_table(answer),
            caveats=[shown(caveat, LONGEST_TEXT) for caveat in answer.caveats],
            charts=[_plot(chart) for chart in study_charts(answer)],
            tuning=[_plot(chart) for chart in tuning_charts(answer)],
            tuning_note=_tuning_note(answer),
            facts=dict(_facts(answer, engine)),
            command=shown(answer.command, LONGEST_TEXT),
            runs=runs_table(answer),
            plotly=packed_plotly(),
        )
    )


def write_page(answer: Answer, directory: Path, *, engine: str = "") -> Path:
    """Write ``study.html`` and return its path.

    Raises
    ------
    OSError
        If it cannot be written.
    """
    with replacing(directory / PAGE_FILE) as part:
        part.write_text(page(answer, engine=engine), encoding="utf-8")
    return directory / PAGE_FILE


def _plot(chart: StudyChart) -> _Plot:
    return _Plot(
        f"chart-{chart.name}",
        chart.title,
        chart.note,
        chart.small,
        script_json(json.dumps({"panels": [json.loads(chart.drawn.to_json())]})),
    )


def _answers(answer: Answer) -> _Answers:
    table: TextTable = answer_table(answer)
    rows = (
        _Row(name, colour_of(answer, method.name), method.name == answer.verdict, tuple(cells))
        for (name, *cells), method in zip(table.rows, ranked(answer), strict=True)
    )
    return _Answers(table.title, table.headings, tuple(rows))


def _table_note(answer: Answer) -> str:
    said = ["Scores are of test parts after the last round."]
    if answer.decision is not None:
        level = percent(answer.confidence)
        than = f"whose metric, mean over seeds, is worse than with {title(answer.baseline)}"
        said += [
            f"The intervals hold together for all methods with a probability of {level}.",
            f"Worse off: clients {than}.",
        ]
    return " ".join([*said, "MB: all messages of a run, both ways."])


def _tuning_note(answer: Answer) -> str:
    in_percent = ", %," if answer.measured.is_share else ""
    return (
        f"{capital(unit_of(answer).metric)}{in_percent} on validation parts by round; every curve "
        "is one choice of values. In colour the best, with which the method was compared; pale the "
        "trials that were stopped early. Hovering tells the values."
    )


def _facts(answer: Answer, engine: str) -> Iterator[tuple[str, str]]:
    """Yield how the study was done, each fact with its name."""
    unit, spent = unit_of(answer), answer.spent
    yield "Score", f"{unit.metric} of {whose(answer)}, on test parts that nothing was tuned on"
    shared = "every method has the same division of the data, start and draws"
    yield "Seeds", f"{num_seeds(answer)}; with each, {shared}"
    level = f"{percent(answer.confidence)} for all methods together (Bonferroni)"
    yield "Intervals", f"of the differences paired by seed, by Student's t, at {level}"
    margin = f"±{unit.amount(answer.min_effect)} of {unit.metric}"
    yield "No difference", f"means that no interval reaches above {margin}"
    budget = "the same budget for each method"
    yield (
        "Tuning",
        f"with seeds {listed([*map(str, answer.tuning_seeds)])}, on validation parts, {budget}",
    )
    amount, used = (duration(spent.unit, one) for one in (spent.amount, spent.spent))
    yield "Budget", f"{amount}, of which {used} were spent"
    if engine:
        yield "Engine", shown(engine)
