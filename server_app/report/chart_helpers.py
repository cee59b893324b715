"""What the charts of an experiment share: methods with their styles, curves, published numbers."""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from fedquorum.metrics import get_metric
from fedquorum.records.reader import POPULATION_FILE, Run, read_dataset, read_population
from fedquorum.records.round_record import MEAN_GROUP, TEST_GROUPS, UNSEEN_GROUP, RoundRecord

from server_app.report.chart_spec import (
    NO_BOUNDS,
    PERCENT_BOUNDS,
    POSITIVE_BOUNDS,
    ColumnArray,
    Line,
    Panel,
    ReferenceLine,
)
from server_app.report.published import PublishedResult, find_published_results
from server_app.report.seed_groups import Group, abbreviate_name, is_tested
from server_app.report.tables import METRIC_NAMES


@dataclass(frozen=True)
class PlottedMethod:
    """A group as the charts show it: its name in legends, and its place among the styles."""

    group: Group
    label: str
    style: int

    @property
    def first_run(self) -> Run:
        """The run of the first seed."""
        return self.group.counted_runs[0]


def select_plotted_methods(groups: Sequence[Group]) -> tuple[PlottedMethod, ...]:
    """Return the groups that have rounds; what is not completed is said in the name."""
    return tuple(
        PlottedMethod(group, abbreviate_name(group.title_with_status), i)
        for i, group in enumerate(group for group in groups if group.counted_runs)
    )


def select_tested_groups(methods: Sequence[PlottedMethod]) -> tuple[str, ...]:
    """Return whose test parts are drawn: priority and the others, or all if all have priority.

    Clients that never train come last.
    """
    measured = {
        name
        for name in (*TEST_GROUPS, UNSEEN_GROUP)
        for method in methods
        for run in method.group.counted_runs
        if any(is_tested(record, name) for record in run.rounds)
    }
    apart = "non_priority" in measured or "all" not in measured
    drawn = (*(("priority", "non_priority") if apart else ("all",)), UNSEEN_GROUP)
    return tuple(name for name in drawn if name in measured)


def name_tested_models(methods: Sequence[PlottedMethod]) -> Mapping[str, str]:
    """Return the groups of ``select_tested_groups``, and the mean model if there is one, with names."""
    names = {clients: format_group_label(clients) for clients in select_tested_groups(methods)}
    runs = [run for method in methods for run in method.group.counted_runs]
    if any(record.test and MEAN_GROUP in record.test for run in runs for record in run.rounds):
        names[MEAN_GROUP] = "mean model"
    return names


def get_metric_bounds(metrics: Collection[str]) -> tuple[float, float]:
    """Return the least and the greatest value of clients' metrics, as they are drawn."""
    known = [get_metric(metric) for metric in metrics]
    if any(metric.low < 0 for metric in known):
        return NO_BOUNDS
    return PERCENT_BOUNDS if all(metric.is_fraction for metric in known) else POSITIVE_BOUNDS


def build_round_panel(
    methods: Sequence[PlottedMethod],
    label: str,
    value: Callable[[RoundRecord], float | None],
    *,
    title: str = "",
    reference_lines: tuple[ReferenceLine, ...] = (),
    log: str = "",
    bounds: tuple[float, float] = POSITIVE_BOUNDS,
) -> Panel | None:
    """Return a panel with the mean over seeds and its band, None where nothing was measured.

    ``value`` reads a number from a round, None or NaN where there is none; ``bounds`` are the
    least and the greatest that there can be.
    """

    def number(record: RoundRecord) -> float:
        found = value(record)
        return math.nan if found is None else found

    lines = []
    for method in methods:
        curve = method.group.compute_curve(number)
        if not curve.rounds:
            continue
        mean = np.array([statistic.mean for statistic in curve.statistics])
        sd = np.array([statistic.sd or 0.0 for statistic in curve.statistics])
        rounds = np.array(curve.rounds, dtype=np.float64)
        lines.append(Line(method.label, method.style, rounds, mean, sd if sd.any() else None))
    if not lines:
        return None
    return Panel(title, "round", label, tuple(lines), reference_lines, log_axes=log, bounds=bounds)


def find_published(
    methods: Sequence[PlottedMethod],
) -> Iterator[tuple[PlottedMethod, PublishedResult]]:
    """Yield what the papers report of each method."""
    for method in methods:
        for one in find_published_results(method.group.experiment, method.first_run.settings):
            yield method, one


def format_metric_label(metric: str) -> str:
    """Return a test metric with its unit, for an axis."""
    known = get_metric(metric)
    unit = ", unit of the target" if known.is_regression and known.low == 0.0 else ""
    return f"test {METRIC_NAMES[metric]}{unit}"


def format_loss_label(methods: Sequence[PlottedMethod], loss: str) -> str:
    """Return a loss with its unit: of predicted numbers it is their squared error."""
    numbers = any(method.group.is_regression for method in methods)
    return f"{loss}, {'squared error' if numbers else 'nats'}"


def format_group_label(clients: str) -> str:
    """Return a group of ``TEST_GROUPS`` in words, such as "priority clients"."""
    return f"{clients.replace('_', '-')} clients"


def format_sources(methods: Sequence[PlottedMethod], values: str) -> str:
    """Return a sentence that names the papers, empty where there is nothing published."""
    found = sorted({one.source for _, one in find_published(methods)})
    return f" Dotted: published {values}, {'; '.join(found)}." if found else ""


def read_run_columns(run: Run, folder: str, names: Sequence[str]) -> dict[str, ColumnArray]:
    """Return columns of a run's table, null as NaN, booleans and whole numbers as floats.

    Columns that the table lacks are left out; without the table there are none.

    Raises
    ------
    RunError
        If the table is damaged.
    """
    if not (run.directory / folder).is_dir():
        return {}
    table = read_dataset(run.directory / folder, names)
    return {
        name: (
            table[name].to_numpy()
            if pa.types.is_string(table[name].type)
            else table[name].cast(pa.float64()).to_numpy()
        )
        for name in table.column_names
    }


def read_participation_rates(run: Run) -> dict[int, float | None]:
    """Return p_n by client id where the run's simulation knew it; empty without that record.

    Raises
    ------
    RunError
        If the record is damaged.
    """
    if not (run.directory / POPULATION_FILE).is_file():
        return {}
    table = read_population(run.directory)
    if "participation_rate" not in table.column_names:
        return {}
    rates = table["participation_rate"].to_pylist()
    return dict(zip(table["client"].to_pylist(), rates, strict=True))
