"""Render a study's result as one self-contained HTML page."""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from fedquorum.io import atomic_write
from fedquorum.records.data_facts import list_data_facts
from fedquorum.report.data import MAX_PAGE_NAMES
from fedquorum.report.page import encode_plotly, escape_script_json, get_templates
from fedquorum.report.tables import TextTable
from fedquorum.sanitize import sanitize
from markupsafe import Markup

from client_app.data.seed_draws import SeedDraws
from server_app.study.candidates import REASON_FOR_AUROC
from server_app.study.charts import (
    StudyChart,
    build_study_charts,
    build_tuning_charts,
    get_method_color,
)
from server_app.study.charts.helpers import MIDDLE
from server_app.study.looks import Look
from server_app.study.result import PAGE_FILE, RivalComparison, StudyResult
from server_app.study.tables import (
    MAX_SENTENCE_LENGTH,
    TUNED_HEADING,
    build_exclusion_table,
    build_result_table,
    build_seed_runs_table,
    rank_methods,
)
from server_app.study.text import (
    capitalize,
    count_seeds,
    describe_score_clients,
    format_duration,
    format_method_name,
    format_percent,
    format_question,
    format_verdict,
    get_unit,
    join_words,
)

STUDY_TEMPLATE = "study.html"


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
    """A method's row of the table, with its color in the charts."""

    name: str
    color: str
    marked: bool
    cells: tuple[str, ...]


@dataclass(frozen=True)
class _MethodTable:
    """The table of the methods."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[_Row, ...]


def render_study_page(result: StudyResult, *, engine: str = "") -> str:
    """Render a study's page as HTML.

    From top to bottom: the verdict, the methods, the caveats, the differences and other charts,
    how the study was done with which data, the commands that repeat each number, and the trials.

    Parameters
    ----------
    result : StudyResult
    engine : str
        The engine's name; omitted if empty.
    """
    return (
        get_templates()
        .get_template(STUDY_TEMPLATE)
        .render(
            data=sanitize(result.data),
            question=format_question(result),
            verdict=format_verdict(result),
            answers=_build_method_table(result),
            tuned=TUNED_HEADING,
            table_note=_format_table_note(result),
            left_out=build_exclusion_table(result),
            caveats=[sanitize(caveat, MAX_SENTENCE_LENGTH) for caveat in result.caveats],
            charts=[_build_plot(chart) for chart in build_study_charts(result)],
            tuning=[_build_plot(chart) for chart in build_tuning_charts(result)],
            tuning_note=_format_tuning_note(result),
            facts=dict(_list_facts(result, engine)),
            data_facts=list_data_facts(result.data_summary, limit=MAX_PAGE_NAMES),
            command=sanitize(result.command, MAX_SENTENCE_LENGTH),
            runs=build_seed_runs_table(result),
            plotly=encode_plotly(),
        )
    )


def write_page(result: StudyResult, directory: Path, *, engine: str = "") -> Path:
    """Write ``study.html`` and return its path.

    Raises
    ------
    OSError
        If the file cannot be written.
    """
    with atomic_write(directory / PAGE_FILE) as part:
        part.write_text(render_study_page(result, engine=engine), encoding="utf-8")
    return directory / PAGE_FILE


def _build_plot(chart: StudyChart) -> _Plot:
    return _Plot(
        f"chart-{chart.name}",
        chart.title,
        chart.note,
        chart.small,
        escape_script_json(json.dumps({"panels": [json.loads(chart.figure.to_json())]})),
    )


def _build_method_table(result: StudyResult) -> _MethodTable:
    table: TextTable = build_result_table(result)
    methods = rank_methods(result)
    rows = [
        _Row(
            name, get_method_color(result, method.name), method.name == result.verdict, tuple(cells)
        )
        for (name, *cells), method in zip(table.rows[: len(methods)], methods, strict=True)
    ]
    rivals = RivalComparison() if result.rivals is None else result.rivals
    rows += [
        _Row(name, MIDDLE, method.name in rivals.beats_all, tuple(cells))
        for (name, *cells), method in zip(table.rows[len(methods) :], rivals.methods, strict=True)
    ]
    return _MethodTable(table.title, table.headings, tuple(rows))


def _format_table_note(result: StudyResult) -> str:
    sentences = ["Scores are of test splits after the last round."]
    if result.decision is not None:
        level, baseline = format_percent(result.confidence), format_method_name(result.baseline)
        sentences += [
            f"The intervals hold simultaneously for all methods with a probability of {level}.",
            (
                f"Worse and better off: clients whose metric differs from that with {baseline} by "
                f"more than {get_unit(result).format_amount(result.min_effect)} within a seed, "
                "mean over seeds."
            ),
        ]
        if not math.isnan(next(m for m in result.methods if m.name == result.baseline).worse_off):
            sentences.append(
                f"In the row of {baseline}: itself with another start, in the first seed, so by "
                "chance."
            )
    if result.rivals is not None and result.rivals.methods:
        sentences.append(
            "Alone and fine-tuned are models of each client's own; their intervals hold with the "
            "same probability among themselves."
        )
    return " ".join([*sentences, "MB: all messages of a run, both ways."])


def _format_tuning_note(result: StudyResult) -> str:
    in_percent = ", %," if result.metric_info.is_fraction else ""
    return (
        f"{capitalize(get_unit(result).metric)}{in_percent} on validation splits by round; every "
        "curve is one choice of values. The best, which the comparison used, is in color; trials "
        "that were stopped early are pale. Hovering shows the values."
    )


def _list_facts(result: StudyResult, engine: str) -> Iterator[tuple[str, str]]:
    """Yield facts about the study's procedure, each with its name."""
    unit, spent = get_unit(result), result.spent
    clients = describe_score_clients(result)
    yield "Score", f"{unit.metric} of {clients}, on test splits that no tuning used"
    if result.is_metric_chosen:
        yield "Metric", f"chosen by the study: {REASON_FOR_AUROC}"
    shared = "every method has the same division of the data, initial model and samples"
    yield "Seeds", f"{count_seeds(result)}; with each, {shared}"
    yield "Each seed draws", _describe_draws(result.seed_draws)
    level = f"{format_percent(result.confidence)} simultaneously for all methods (Bonferroni)"
    yield "Intervals", f"of the differences paired by seed, {_describe_test(result)}, at {level}"
    if result.looks:
        yield "Looks", _describe_looks(result.looks)
    if result.guessing:
        score = f"{unit.format_number(fmean(result.guessing))} {unit.percent_or_unit}".rstrip()
        known = "that knows how frequent each target is, and no input"
        yield "Guessing", f"{unit.metric} {score} for {clients}: a model {known}"
    margin = f"±{unit.format_amount(result.min_effect)} of {unit.metric}"
    yield "No difference", f"means that no interval extends above {margin}"
    seeds = join_words([*map(str, result.tuning_seeds)])
    is_tuned = any(method.trials for method in result.methods)
    tuning = f"with seeds {seeds}, on validation splits, the same budget for each method"
    yield "Tuning", tuning if is_tuned else "none: no scores chose a method's values"
    amount, used = (format_duration(spent.unit, one) for one in (spent.amount, spent.spent))
    yield "Budget", f"{amount}, of which {used} were spent"
    if engine:
        yield "Engine", sanitize(engine)


def _describe_draws(draws: SeedDraws) -> str:
    """Say what a seed draws anew."""
    if draws.data:
        return "new rows, all generated, and another start"
    kinds = {
        "rows to train on": draws.train_rows,
        "test rows": draws.test_rows,
        "their division among clients": draws.division,
    }
    names = join_words([name for name, is_drawn in kinds.items() if is_drawn] or ["no other rows"])
    source = ", as the settings say: devices show no rows" if draws.is_assumed else ""
    return f"{names} from the same data{source}, and another start"


def _describe_test(result: StudyResult) -> str:
    draws = result.seed_draws
    if draws.correction:
        return (
            "by the corrected resampled t test (Nadeau and Bengio 2003): seeds share rows, with "
            f"{draws.test_to_train:.2g} test rows for each row trained on"
        )
    if result.row_weights:
        return (
            "by Student's t, with the variance of the test rows, which all seeds share, by "
            f"{result.row_weights} sets of Poisson weights (a bootstrap within each client)"
            f"{'; for models of a client on its own, on these test rows' if result.rivals else ''}"
        )
    return "by Student's t" if draws.data else "by Student's t, for these test rows"


def _describe_looks(looks: Sequence[Look]) -> str:
    """Say how much of the level the looks at the scores take."""
    planned, last = looks[0].planned, looks[-1]
    so_far = join_words([str(look.seeds) for look in looks])
    return (
        f"at {so_far} of {max(planned, last.seeds)} seeds planned, by an O'Brien-Fleming type "
        f"spending function; a fifth of the level is kept for seeds beyond the plan"
        if last.seeds <= planned
        else f"at {so_far} seeds, beyond the {planned} planned, from the level kept for that"
    )
