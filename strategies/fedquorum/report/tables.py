"""Build tables of results for the terminal, the page, CSV, Markdown and LaTeX."""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import pandas as pd
from rich.markup import escape
from rich.table import Table

from ..contrib import REPORTED_METRICS
from ..errors import RunError
from ..metrics.calibration import ECE
from ..records.reader import RUN_STATUSES, Run
from ..records.round_record import format_coverage
from ..records.settings import DATA_LOCATION_KEYS
from ..rules.metrics import AVERAGE_PRECISION, METRICS, get_metric
from ..sanitize import sanitize
from .final_metrics import (
    CLIENT_METRICS,
    RULE_METRICS,
    RUN_METRICS,
    compute_client_metrics,
    compute_run_metrics,
    list_evaluated_groups,
)
from .methods import is_baseline
from .names import CLIENTS_ONCE, NOT_WITH_MASKS, method_title
from .seed_groups import (
    MAX_VALUE_LENGTH,
    Group,
    Statistic,
    compute_mean_and_sd,
    format_setting_value,
    select_result_settings,
)

MAX_METHOD_WIDTH = 32
"""Terminal columns for the names of experiment and method, which wrap beyond that."""

MIXED_METRICS = "metric"
"""The heading of a column for several metrics."""

METRIC_NAMES = {name: metric.title for name, metric in METRICS.items()}
OPTIONAL_COLUMNS = {
    "r2": "R2, by data",
    AVERAGE_PRECISION: "average precision, by data, %",
    ECE: "calibration error (ECE), %",
    **{key: f"{text}, %" for one in REPORTED_METRICS for key, text in one.labels.items()},
    "regret": "regret",
    "regret_bound": "regret bound",
}
"""Columns of the fairness table that appear only with a value."""

COMPARED_PREFIXES = ("data.", "model.", "availability.", "response_time.", "evaluation.")
UNCOMPARED_SETTINGS = (*DATA_LOCATION_KEYS, "evaluation.requirement")
"""Settings in which compared runs may differ: a strategy may set the requirement itself."""


MISSING = "-"

SPREADS = ("average", "worst", "best", "worst10", "best10", "std", "gini", "jain")
"""The cell of a number that the records lack."""

NUM_NAME_COLUMNS = 3
"""The first columns of a table of numbers: the method, its clients or rounds, and its seeds."""


@dataclass(frozen=True)
class Row:
    """A table row: the metrics of one group of runs on one group of clients.

    Parameters
    ----------
    group : Group
        The runs.
    clients : str
        The clients' group: ``priority``, ``non_priority``, ``all`` or ``held_out``.
    by_seed : mapping
        By seed, the ``compute_client_metrics`` and ``compute_run_metrics`` of its counted run.
    """

    group: Group
    clients: str
    by_seed: Mapping[int, Mapping[str, float]]

    @property
    def statuses(self) -> Mapping[str, int]:
        """The number of runs by status, over all runs."""
        return Counter(run.status for run in self.group.runs)

    @property
    def rounds(self) -> tuple[int, int]:
        """The minimum and maximum number of complete rounds of the counted runs."""
        lengths = [len(run.rounds) for run in self.group.counted_runs] or [0]
        return min(lengths), max(lengths)

    @property
    def coverage(self) -> str:
        """Of how many clients the metric is, if some have none: ``format_coverage``."""
        found = {name: self.compute_statistic(name) for name in ("evaluated", "left_out")}
        return format_coverage({name: one.mean for name, one in found.items() if one is not None})

    @property
    def counts_clients_once(self) -> bool:
        """Whether each client counts once in all means, of which the records then have one kind."""
        return self.group.has_masks and self.compute_statistic("average") is not None

    def compute_statistic(self, name: str) -> Statistic | None:
        """Compute a metric's mean and standard deviation over seeds, or None without values."""
        return compute_mean_and_sd(values[name] for values in self.by_seed.values())


@dataclass(frozen=True)
class MethodDifference:
    """One method minus another, seed by seed.

    Parameters
    ----------
    one, other : Row
        The methods.
    by_seed : mapping
        The difference of each metric, by common seed.
    """

    one: Row
    other: Row
    by_seed: Mapping[int, Mapping[str, float]]

    def compute_statistic(self, name: str) -> Statistic | None:
        """Compute mean and standard deviation of a metric's differences."""
        return compute_mean_and_sd(values[name] for values in self.by_seed.values())

    def count_above(self, name: str) -> tuple[int, int]:
        """Count the seeds with a larger value of the first method, and all compared seeds."""
        gaps = [values[name] for values in self.by_seed.values()]
        defined = [gap for gap in gaps if not math.isnan(gap)]
        return sum(gap > 0 for gap in defined), len(defined)


@dataclass(frozen=True)
class TextTable:
    """A table of formatted cells: a title, headings, and rows with one cell per heading."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def check_run_metric(run: Run) -> None:
    """Refuse a run with an unknown test metric.

    Raises
    ------
    RunError
        If ``evaluation.metric`` is unknown; the text names the file.
    """
    metric = str(run.settings.get("evaluation.metric", "accuracy"))
    if metric not in METRIC_NAMES:
        raise RunError(
            f"{run.directory}/config.yaml: evaluation.metric must be one of "
            f"{', '.join(METRIC_NAMES)}, got {sanitize(metric)}"
        )


def summarize_groups(groups: Iterable[Group]) -> tuple[Row, ...]:
    """Build the rows of each group, one for each evaluated group of clients.

    A group without evaluations has one row.

    Raises
    ------
    RunError
        If a table of a run is damaged.
    """
    return tuple(chain.from_iterable(map(_build_rows, groups)))


def _build_rows(group: Group) -> Iterator[Row]:
    for_run = {run.seed: compute_run_metrics(run) for run in group.counted_runs}
    for clients in list_evaluated_groups(group) or ("all",):
        for_clients = {run.seed: compute_client_metrics(run, clients) for run in group.counted_runs}
        yield Row(
            group, clients, {seed: {**for_clients[seed], **for_run[seed]} for seed in for_run}
        )


def compute_method_differences(rows: Sequence[Row]) -> tuple[MethodDifference, ...]:
    """Compute the paired differences of comparable methods.

    Each method of a paper is compared with each baseline; if there are only methods or only
    baselines, all others are compared with the first. Pairs without a common seed are left out.
    ``group_comparable_rows`` says which methods are comparable.
    """
    worlds = group_comparable_rows(rows)
    by_clients = [
        [row for row in world if row.clients == clients]
        for world in worlds
        for clients in dict.fromkeys(row.clients for row in world)
    ]
    return tuple(chain.from_iterable(map(_build_pairs, by_clients)))


def group_comparable_rows(rows: Iterable[Row]) -> list[list[Row]]:
    """Group rows that agree in experiment, data, model, availability, evaluation and rounds."""
    worlds: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        world = (row.group.experiment, *sorted(select_shared_settings(row.group).items()))
        worlds.setdefault(world, []).append(row)
    return list(worlds.values())


def select_shared_settings(group: Group) -> dict[str, str]:
    """Return the formatted settings in which compared methods must agree."""
    return {
        key: format_setting_value(value)
        for key, value in select_result_settings(group.runs[0]).items()
        if (key.startswith(COMPARED_PREFIXES) or key == "rounds") and key not in UNCOMPARED_SETTINGS
    }


def _build_pairs(rows: Sequence[Row]) -> Iterator[MethodDifference]:
    methods = [row for row in rows if not is_baseline(row.group.strategy)]
    baselines = [row for row in rows if is_baseline(row.group.strategy)]
    if not methods or not baselines:
        methods, baselines = list(rows[1:]), list(rows[:1])
    for one in methods:
        for other in baselines:
            seeds = sorted(one.by_seed.keys() & other.by_seed.keys())
            if seeds:
                yield MethodDifference(
                    one,
                    other,
                    {seed: _compute_gaps(one.by_seed[seed], other.by_seed[seed]) for seed in seeds},
                )


def _compute_gaps(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    return {name: value - other[name] for name, value in one.items()}


# --- formatted ------------------------------------------------------------------------------


def build_summary_table(rows: Sequence[Row], title: str) -> TextTable:
    """Build the main table, "mean ± standard deviation" over seeds.

    Rows of the same clients are adjacent, so that methods can be compared.
    """
    metric_name = _get_metric_name(rows)
    headings = {
        "test": "mean by data",
        "validation": "validation, by data",
        "constant_accuracy": "largest class always, %",
        "average": "average of clients",
        "worst": "worst client",
        "worst10": "worst 10 %",
        "best10": "best 10 %",
        "gini": "Gini, %",
    }
    for name in ("validation", "constant_accuracy"):
        if not _has_metric(rows, name):
            del headings[name]
    headings |= {
        name: OPTIONAL_COLUMNS[name]
        for name in ("r2", AVERAGE_PRECISION, ECE, *RULE_METRICS)
        if _has_metric(rows, name)
    }
    return TextTable(
        title=f"{title}: test {metric_name}, after the last evaluation",
        headings=("method", "clients", "seeds", *headings.values()),
        rows=_format_rows(rows, headings),
    )


def build_fairness_table(rows: Sequence[Row], title: str) -> TextTable:
    """Build the table of the clients' spread, "mean ± standard deviation" over seeds."""
    metric_name = _get_metric_name(rows)
    headings = {
        "test": f"test {metric_name}, by data",
        "average": "average, unweighted",
        "worst": "worst",
        "best": "best",
        "worst10": "worst 10 %, unweighted",
        "best10": "best 10 %, unweighted",
        "std": "sd",
        "gini": "Gini, %",
        "jain": "Jain",
        "left_out": "left out",
        "largest_training_loss": f"largest training loss, {get_loss_unit(rows)}",
    }
    headings |= {name: text for name, text in OPTIONAL_COLUMNS.items() if _has_metric(rows, name)}
    return TextTable(
        title=f"{title}: {metric_name}, all statistics over the clients' test splits",
        headings=("method", "clients", "seeds", *headings.values()),
        rows=_format_rows(rows, headings),
    )


def _get_metric_name(rows: Iterable[Row]) -> str:
    metrics = {row.group.metric for row in rows}
    return METRIC_NAMES[metrics.pop()] if len(metrics) == 1 else "metric as configured"


def get_loss_unit(rows: Iterable[Row]) -> str:
    """Return the unit of losses: that of scaled targets for regression, nats otherwise."""
    is_regression = any(row.group.is_regression for row in rows)
    return "squared error, scaled target" if is_regression else "nats"


def _format_rows(rows: Sequence[Row], headings: Iterable[str]) -> tuple[tuple[str, ...], ...]:
    order = list(dict.fromkeys(row.clients for row in rows))
    return tuple(
        (
            row.group.title_with_status,
            row.clients.replace("_", "-"),
            str(len(row.by_seed)),
            *(_format_fairness_cell(row, name) for name in headings),
        )
        for row in sorted(rows, key=lambda row: order.index(row.clients))
    )


def _format_fairness_cell(row: Row, name: str) -> str:
    """Format a metric; a regret bound that is not proven for the run is marked."""
    text = format_cell(row.compute_statistic(name), name, row.group.metric)
    if text == MISSING and name in SPREADS and row.group.has_masks:
        return NOT_WITH_MASKS
    notes = [row.coverage] if name == "test" and row.coverage else []
    if name in ("test", "validation") and row.counts_clients_once:
        notes.append(CLIENTS_ONCE)
    if notes and text != MISSING:
        return f"{text} ({', '.join(notes)})"
    proven = row.compute_statistic("regret_bound_proven")
    unproven = name == "regret_bound" and text != "-" and (proven is None or proven.mean < 1.0)
    return f"{text} (not proven here)" if unproven else text


def build_differences_table(pairs: Sequence[MethodDifference], title: str) -> TextTable:
    """Build the table of paired differences, "mean ± standard deviation (k/n)"."""
    metric_name = _get_metric_name(pair.one for pair in pairs)
    loss_unit = get_loss_unit(pair.one for pair in pairs)
    headings = {
        "test": f"test {metric_name}, by data",
        "average": "average, unweighted",
        "worst": "worst",
        "worst10": "worst 10 %, unweighted",
        "gini": "Gini, %",
        "largest_training_loss": f"largest training loss, {loss_unit}",
    }
    reported = [name for name in RULE_METRICS if any(p.compute_statistic(name) for p in pairs)]
    headings |= {name: OPTIONAL_COLUMNS[name] for name in reported}
    return TextTable(
        title=f"{title}: differences, paired by seed (k/n: above 0 in k of n seeds)",
        headings=("difference", "clients", "seeds", *headings.values()),
        rows=tuple(
            (
                f"{pair.one.group.title} minus {pair.other.group.title}",
                pair.one.clients.replace("_", "-"),
                str(len(pair.by_seed)),
                *(_format_difference_cell(pair, name) for name in headings),
            )
            for pair in pairs
        ),
    )


def _select_first_rows(rows: Sequence[Row]) -> list[Row]:
    """Return the first row of each group of runs."""
    first = {id(row.group): row for row in reversed(rows)}
    return [row for row in rows if first[id(row.group)] is row]


def build_costs_table(rows: Sequence[Row], title: str) -> TextTable:
    """Build the table of admissions and costs, one row per group."""
    headings = {
        "admitted": "updates admitted a round",
        "theta": "theta_T",
        "duration_seconds": "seconds a round",
        "megabytes": "MB a round, both ways",
        "state_bytes": "server state, bytes",
        "simulated_seconds": "simulated seconds, all rounds",
    }
    shown = {name: text for name, text in headings.items() if _has_metric(rows, name)}
    if not has_inclusion(rows):
        shown.pop("theta", None)
    return TextTable(
        title=f"{title}: admissions and costs",
        headings=("method", "seeds", "rounds", *shown.values()),
        rows=tuple(
            (
                row.group.title_with_status,
                str(len(row.by_seed)),
                _format_range(row.rounds),
                *(
                    format_cell(row.compute_statistic(name), name, row.group.metric)
                    for name in shown
                ),
            )
            for row in _select_first_rows(rows)
        ),
    )


def build_experiment_tables(
    groups: Sequence[Group], rows: Sequence[Row], pairs: Sequence[MethodDifference], title: str
) -> tuple[TextTable, ...]:
    """Build all tables of one experiment that have rows, in the report's order."""
    tables = (
        build_summary_table(rows, title),
        build_differences_table(pairs, title),
        build_fairness_table(rows, title),
        build_costs_table(rows, title),
        build_privacy_table(groups, title),
        build_settings_table(groups, title),
    )
    measured = (_drop_empty_columns(table) for table in tables)
    return tuple(table for table in measured if table.rows)


def _drop_empty_columns(table: TextTable) -> TextTable:
    """Leave out what no row has, and all rows of a table that has nothing but names.

    The records of a drop-in strategy have no test metrics.
    """
    kept = [
        index
        for index in range(len(table.headings))
        if index < NUM_NAME_COLUMNS or not all(_is_missing(row[index]) for row in table.rows)
    ]
    if len(kept) == len(table.headings):
        return table
    rows = table.rows if len(kept) > NUM_NAME_COLUMNS else ()
    return TextTable(
        table.title,
        tuple(table.headings[index] for index in kept),
        tuple(tuple(row[index] for index in kept) for row in rows),
    )


def has_inclusion(rows: Iterable[Row]) -> bool:
    """Return whether a gate, or clients without priority, could make theta differ from 1."""
    return any(
        record.epsilon is not None or (record.inclusion_mass or 0.0) > 0.0
        for row in rows
        for run in row.group.counted_runs
        for record in run.rounds
    )


def build_privacy_table(groups: Sequence[Group], title: str) -> TextTable:
    """Build the table of the privacy spent by each private run; no rows without such runs."""
    facts = ("mechanism", "noise_multiplier", "sampling_rate", "releases", "delta", "epsilon")
    private = [(group.title, run) for group in groups for run in group.runs if run.privacy]
    rows = (
        (method, str(run.seed), *(_format_fact(run.privacy.get(name, "-")) for name in facts))
        for method, run in private
    )
    headings = ("method", "seed", *(name.replace("_", " ") for name in facts))
    return TextTable(f"{title}: differential privacy", headings, tuple(rows))


def _format_fact(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else sanitize(value, MAX_VALUE_LENGTH)


def format_rounds(run: Run) -> str:
    """Return how many rounds a run has, and how many it should have, if their number is fixed."""
    fixed = bool(run.planned) and run.simulated_end is None
    return f"{len(run.rounds)} of {run.planned}" if fixed else str(len(run.rounds))


def build_runs_table(runs: Sequence[Run], title: str) -> TextTable:
    """Build the table of runs with status and directory."""
    return TextTable(
        title=f"{title}: runs",
        headings=("strategy", "seed", "status", "rounds", "started", "directory", "error"),
        rows=tuple(
            (
                run.strategy,
                str(run.seed),
                run.status,
                format_rounds(run),
                run.started,
                sanitize(run.directory, MAX_VALUE_LENGTH),
                run.error,
            )
            for run in sorted(runs, key=lambda run: (run.strategy, run.seed, run.started))
        ),
    )


def build_settings_table(groups: Sequence[Group], title: str) -> TextTable:
    """Build the table of the settings in which groups of an experiment differ.

    A setting that only one option of its group has is left out: the option's name implies it.
    """
    settings = [
        {
            key: format_setting_value(value)
            for key, value in select_result_settings(group.runs[0]).items()
        }
        for group in groups
    ]
    keys = dict.fromkeys(key for values in settings for key in values)
    distinguishing_keys = [
        key for key in keys if len({values[key] for values in settings if key in values}) > 1
    ]
    return TextTable(
        title=f"{title}: settings that differ",
        headings=("method", "settings"),
        rows=tuple(
            (group.title, " ".join(f"{k}={values[k]}" for k in distinguishing_keys if k in values))
            for group, values in zip(groups, settings, strict=True)
            if distinguishing_keys
        ),
    )


def _has_metric(rows: Iterable[Row], name: str) -> bool:
    return any(row.compute_statistic(name) is not None for row in rows)


def _format_range(numbers: tuple[int, int]) -> str:
    low, high = numbers
    return str(high) if low == high else f"{low} to {high}"


def format_cell(statistic: Statistic | None, name: str, metric: str, separator: str = " ") -> str:
    """Format "mean ± sd" in the units of the headings."""
    if statistic is None:
        return MISSING
    factor, digits = _get_unit(name, metric)
    # An error of a target such as 1e-9 has no digit among three decimals.
    is_error = name in _SCORES and factor == 1
    form = _format_error if is_error else _format_decimals
    mean = form(factor * statistic.mean, digits)
    if statistic.sd is None or name in ("left_out", "state_bytes"):
        return mean
    if name == "constant_accuracy" and statistic.sd == 0:
        return mean
    return f"{mean}{separator}± {form(factor * statistic.sd, digits)}"


def _format_decimals(value: float, digits: int) -> str:
    return f"{value:.{digits}f}"


def _format_error(value: float, digits: int) -> str:
    """Return the decimals, or two digits of a number that is smaller than they show."""
    is_tiny = 0 < abs(value) < 0.5 * 10**-digits
    return f"{value:.2g}" if is_tiny else _format_decimals(value, digits)


def _format_difference_cell(pair: MethodDifference, name: str) -> str:
    above, seeds = pair.count_above(name)
    if seeds == 0:
        return MISSING
    if name == "test" and pair.one.counts_clients_once != pair.other.counts_clients_once:
        return NOT_WITH_MASKS  # one mean is by data, the other is not
    text = format_cell(pair.compute_statistic(name), name, pair.one.group.metric)
    return f"{text} ({above}/{seeds})"


def _get_unit(name: str, metric: str) -> tuple[float, int]:
    """Return the display factor and the number of decimals of a metric."""
    if name in _FRACTIONS:
        return 100.0, 2
    if name in _SCORES:
        spec = get_metric(metric)
        return spec.scale, 2 if spec.is_fraction else 3
    digits = {"left_out": 0, "state_bytes": 0, "admitted": 1}
    return 1.0, digits.get(name, 3)


_SCORES = (
    *("test", "average", "worst", "best", "worst10", "best10", "std"),
    *("validation", "validation_worst10"),
)
_FRACTIONS = frozenset({"gini", AVERAGE_PRECISION, ECE, "constant_accuracy", *RULE_METRICS})


def build_overview_table(rows: Sequence[Row]) -> Table:
    """Build the overview table for the terminal, with one row per group.

    The least important columns come last: a narrow terminal omits them.
    """
    table = Table(
        title="Runs, mean ± standard deviation over seeds", title_justify="left", show_lines=True
    )
    by_group: dict[int, list[Row]] = {}
    for row in rows:
        by_group.setdefault(id(row.group), []).append(row)
    several = _format_metric_heading(rows) == MIXED_METRICS
    lines = [[*_format_overview_cells(same, show_metric=several)] for same in by_group.values()]
    headings = (
        *("experiment\nmethod", "clients", f"test\n{_format_metric_heading(rows)}"),
        *("worst\nclient", "runs", "worst\n10 %", "Gini, %", "updates\nper round", "theta_T"),
    )
    kept = [
        index
        for index, heading in enumerate(headings)
        if (heading != "theta_T" or has_inclusion(rows))
        and not (lines and all(_is_missing(line[index]) for line in lines))
    ]
    for heading in (headings[index] for index in kept):
        if heading == headings[0]:
            table.add_column(heading, overflow="fold", max_width=MAX_METHOD_WIDTH)
        else:
            is_text = heading in {"clients", "runs"}
            table.add_column(heading, justify="left" if is_text else "right", no_wrap=True)
    for line in lines:
        table.add_row(*(line[index] for index in kept))
    return table


def _is_missing(cell: str) -> bool:
    return all(line in (MISSING, NOT_WITH_MASKS) for line in cell.split("\n"))


def _format_metric_heading(rows: Sequence[Row]) -> str:
    """Return the name of the metric, or ``MIXED_METRICS`` for several."""
    metrics = {row.group.metric for row in rows}
    return METRIC_NAMES[metrics.pop()] if len(metrics) == 1 else MIXED_METRICS


def _format_overview_cells(rows: Sequence[Row], *, show_metric: bool) -> Iterator[str]:
    first = rows[0]
    group = first.group
    method = (
        method_title(group.strategy),
        *map(group.format_setting, group.variant),
    )
    yield escape("\n".join((group.experiment, *method)))
    yield "\n".join(row.clients.replace("_", "-") for row in rows)
    yield "\n".join(_format_fairness_cell(row, "test") for row in rows)
    worst = (row.compute_statistic("worst") for row in rows)
    yield "\n".join(format_cell(statistic, "worst", group.metric) for statistic in worst)
    statuses = [f"{first.statuses[s]} {s}" for s in RUN_STATUSES if first.statuses.get(s)]
    rounds = f"rounds: {_format_range(first.rounds)}"
    metric = (METRIC_NAMES[group.metric],) if show_metric else ()
    yield "\n".join((*statuses, f"seeds: {len(first.by_seed)}", rounds, *metric))
    for name in ("worst10", "gini"):
        yield "\n".join(
            format_cell(row.compute_statistic(name), name, group.metric) for row in rows
        )
    for name in ("admitted", "theta"):
        yield format_cell(first.compute_statistic(name), name, group.metric, separator="\n")


# --- files ------------------------------------------------------------------------------------


def write_summary_csv(rows: Sequence[Row], path: Path) -> None:
    """Write the rows as CSV in UTF-8 with a header: fractions, full precision, empty for None.

    Columns: experiment, strategy, variant, clients, metric, runs, one per status, seeds (the number
    in the statistics), rounds_min, rounds_max, and ``_mean`` and ``_sd`` of every final metric
    (``fedquorum.report.final_metrics``).

    Raises
    ------
    OSError
        If the file cannot be written.
    """
    _write_csv_rows(
        path,
        [
            {
                **_get_name_columns(row),
                "runs": len(row.group.runs),
                **{status: row.statuses.get(status, 0) for status in RUN_STATUSES},
                "seeds": len(row.by_seed),
                "rounds_min": row.rounds[0],
                "rounds_max": row.rounds[1],
                **_compute_statistic_columns(row.compute_statistic),
            }
            for row in rows
        ],
    )


def write_differences_csv(pairs: Sequence[MethodDifference], path: Path) -> None:
    """Write the paired differences as CSV, one line per pair, units as in ``write_summary_csv``.

    Columns: experiment, strategy, variant, clients, metric, other_strategy, other_variant, seeds,
    and ``_mean``, ``_sd`` and ``_above`` (the number of seeds above 0) of every final metric.

    Raises
    ------
    OSError
        If the file cannot be written.
    """
    _write_csv_rows(
        path,
        [
            {
                **_get_name_columns(pair.one),
                "other_strategy": pair.other.group.strategy,
                "other_variant": ", ".join(pair.other.group.variant),
                "seeds": len(pair.by_seed),
                **_compute_statistic_columns(pair.compute_statistic),
                **{
                    f"{name}_above": pair.count_above(name)[0]
                    for name in (*CLIENT_METRICS, *RUN_METRICS)
                },
            }
            for pair in pairs
        ],
    )


def _get_name_columns(row: Row) -> dict[str, str | int | float | None]:
    return {
        "experiment": row.group.experiment,
        "strategy": row.group.strategy,
        "variant": ", ".join(row.group.variant),
        "clients": row.clients,
        "metric": row.group.metric,
    }


def _compute_statistic_columns(
    statistic: Callable[[str], Statistic | None],
) -> dict[str, str | int | float | None]:
    columns: dict[str, str | int | float | None] = {}
    for name in (*CLIENT_METRICS, *RUN_METRICS):
        found = statistic(name)
        columns[f"{name}_mean"] = None if found is None else found.mean
        columns[f"{name}_sd"] = None if found is None else found.sd
    return columns


def _write_csv_rows(path: Path, lines: Sequence[Mapping[str, str | float | None]]) -> None:
    """Write lines of CSV with numbers formatted by Python, so that no digit is lost."""
    cells = [{name: escape_csv_cell(cell) for name, cell in line.items()} for line in lines]
    pd.DataFrame(cells).to_csv(path, index=False, lineterminator="\r\n")


def escape_csv_cell(cell: str | float | None) -> str:
    """Prefix a text with an apostrophe if a spreadsheet would take it for a formula."""
    if isinstance(cell, str):
        return f"'{cell}" if cell.startswith(_FORMULA_PREFIXES) else cell
    return "" if cell is None else str(cell)


def format_markdown(tables: Iterable[TextTable]) -> str:
    """Format the tables in GitHub's Markdown, each under its title."""
    return "\n".join(map(_format_markdown_table, tables))


def _format_markdown_table(table: TextTable) -> str:
    def format_line(cells: Iterable[str]) -> str:
        return (
            "| " + " | ".join(_escape_markdown(cell).replace("|", "\\|") for cell in cells) + " |\n"
        )

    head = f"### {_escape_markdown(table.title)}\n\n{format_line(table.headings)}"
    rule = "|" + " --- |" * len(table.headings) + "\n"
    return f"{head}{rule}{''.join(map(format_line, table.rows))}"


def _escape_markdown(text: str) -> str:
    """Escape a text so that Markdown finds no HTML, link, image or code."""
    return " ".join(_MARKDOWN_SPECIALS.sub(r"\\\g<0>", text).split())


_MARKDOWN_SPECIALS = re.compile(r"[\\`<>&\[\]]")
_FORMULA_PREFIXES = ("=", "+", "-", "@", "\t", "\r")

_LATEX_ESCAPES = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "±": r"$\pm$",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        **{character: f"\\{character}" for character in "&%$#_{}"},
    }
)


_LATEX_PACKAGES = "% needs \\usepackage{booktabs,graphicx}"
_NUMBER_CELL = re.compile(r"\(?-?\d")
_MINUS = re.compile(r"(?<![\w.])-(?=\d)")
_LATEX_COLUMNS = 8
"""More columns than a page is wide are printed smaller."""


def format_latex(tables: Iterable[TextTable]) -> str:
    r"""Format the tables in LaTeX, each a ``table`` with its title as caption.

    A table that is wider than the page is scaled to its width. The first line names the packages.
    """
    return "\n".join([_LATEX_PACKAGES, *map(_format_latex_table, tables)])


def _format_latex_table(table: TextTable) -> str:
    cells = [[*map(_format_latex_cell, row)] for row in table.rows]
    headings = [heading.translate(_LATEX_ESCAPES) for heading in table.headings]
    written: str = (
        pd.DataFrame(cells, columns=headings)
        .style.hide(axis="index")
        .to_latex(
            column_format="l" * 2 + "r" * (len(headings) - 2),
            hrules=True,
            caption=table.title.translate(_LATEX_ESCAPES),
            position_float="centering",
        )
    )
    if len(headings) <= _LATEX_COLUMNS:
        return written
    scaled = written.replace(r"\begin{tabular}", r"\resizebox{\linewidth}{!}{\begin{tabular}")
    return scaled.replace(r"\end{tabular}", r"\end{tabular}}")


def _format_latex_cell(cell: str) -> str:
    """Return a cell's text in LaTeX, in which a hyphen is no minus sign."""
    if cell == "-":
        return "--"
    escaped = cell.translate(_LATEX_ESCAPES)
    return _MINUS.sub("$-$", escaped) if _NUMBER_CELL.match(cell) else escaped
