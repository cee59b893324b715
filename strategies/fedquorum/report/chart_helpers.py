"""Build what all charts share: plotted methods, curves over rounds, published results."""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ..records.reader import POPULATION_FILE, Run, read_dataset, read_population
from ..records.round_record import (
    FREE_GROUP,
    MEAN_GROUP,
    TEST_GROUPS,
    UNSEEN_GROUP,
    RoundRecord,
)
from ..rules.metrics import get_metric
from .chart_spec import (
    NO_BOUNDS,
    PERCENT_BOUNDS,
    POSITIVE_BOUNDS,
    ColumnArray,
    Line,
    Panel,
    ReferenceLine,
)
from .published import PublishedResult, find_published_results
from .seed_groups import Group, abbreviate_name, is_tested
from .tables import METRIC_NAMES


@dataclass(frozen=True)
class PlottedMethod:
    """A group with its legend name and the index of its style."""

    group: Group
    label: str
    style: int

    @property
    def first_run(self) -> Run:
        """The run of the first seed."""
        return self.group.counted_runs[0]


def select_plotted_methods(groups: Sequence[Group]) -> tuple[PlottedMethod, ...]:
    """Return the groups that have rounds; the label names an incomplete status."""
    return tuple(
        PlottedMethod(group, abbreviate_name(group.title_with_status), i)
        for i, group in enumerate(group for group in groups if group.counted_runs)
    )


def select_tested_groups(methods: Sequence[PlottedMethod]) -> tuple[str, ...]:
    """Return the client groups to draw: priority and non-priority, or all if all have priority.

    Then come those on free nodes, where others trained during an evaluation; held-out clients come
    last.
    """
    tested = {
        name
        for name in (*TEST_GROUPS, FREE_GROUP, UNSEEN_GROUP)
        for method in methods
        for run in method.group.counted_runs
        if any(is_tested(record, name) for record in run.rounds)
    }
    is_split = "non_priority" in tested or "all" not in tested
    names = (*(("priority", "non_priority") if is_split else ("all", FREE_GROUP)), UNSEEN_GROUP)
    return tuple(name for name in names if name in tested)


def has_other_clients(methods: Sequence[PlottedMethod]) -> bool:
    """Return whether a run has clients without priority; yes if it has no record of its clients.

    Raises
    ------
    RunError
        If the record is damaged.
    """
    return any(_has_other_clients(method.first_run) for method in methods)


def _has_other_clients(run: Run) -> bool:
    if not (run.directory / POPULATION_FILE).is_file():
        return True
    table = read_population(run.directory)
    names = [name for name in ("priority", "held_out") if name in table.column_names]
    rows = table.select(names).to_pylist()
    return any(not row["priority"] and not row.get("held_out") for row in rows)


def name_tested_models(methods: Sequence[PlottedMethod]) -> Mapping[str, str]:
    """Return display names of the tested groups, and of the mean model if it was tested."""
    names = {clients: format_group_label(clients) for clients in select_tested_groups(methods)}
    runs = [run for method in methods for run in method.group.counted_runs]
    if any(record.test and MEAN_GROUP in record.test for run in runs for record in run.rounds):
        names[MEAN_GROUP] = "mean model"
    return names


def get_metric_bounds(metrics: Collection[str]) -> tuple[float, float]:
    """Return the lowest and highest possible displayed value of these metrics."""
    specs = [get_metric(metric) for metric in metrics]
    if any(spec.low < 0 for spec in specs):
        return NO_BOUNDS
    return PERCENT_BOUNDS if all(spec.is_fraction for spec in specs) else POSITIVE_BOUNDS


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
    """Build a panel with the mean over seeds and its band, or None if no seed has a value.

    ``value`` reads a number from a round and returns None or NaN for a missing one; ``bounds``
    are its lowest and highest possible value.
    """

    def get_number(record: RoundRecord) -> float:
        found = value(record)
        return math.nan if found is None else found

    lines = []
    for method in methods:
        curve = method.group.compute_curve(get_number)
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
    """Yield the results that papers report for each method."""
    for method in methods:
        for one in find_published_results(method.group.experiment, method.first_run.settings):
            yield method, one


def format_metric_label(metric: str) -> str:
    """Return a test metric with its unit, for an axis."""
    spec = get_metric(metric)
    unit = ", unit of the target" if spec.is_regression and spec.low == 0.0 else ""
    return f"test {METRIC_NAMES[metric]}{unit}"


def format_loss_label(methods: Sequence[PlottedMethod], loss: str) -> str:
    """Return a loss with its unit: that of scaled targets for regression, nats otherwise."""
    is_regression = any(method.group.is_regression for method in methods)
    return f"{loss}, {'squared error, scaled target' if is_regression else 'nats'}"


def format_group_label(clients: str) -> str:
    """Return the display name of a client group, such as "priority clients"."""
    return f"{clients.replace('_', '-')} clients"


def format_sources(methods: Sequence[PlottedMethod], values: str) -> str:
    """Return a sentence that names the papers, or an empty text without published results."""
    found = sorted({one.source for _, one in find_published(methods)})
    return f" Dotted: published {values}, {'; '.join(found)}." if found else ""


def read_run_columns(run: Run, folder: str, names: Sequence[str]) -> dict[str, ColumnArray]:
    """Read columns of a run's table, with null as NaN and booleans and integers as floats.

    Texts and bytes are objects, with null as None.

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
            if pa.types.is_string(table[name].type) or pa.types.is_binary(table[name].type)
            else table[name].cast(pa.float64()).to_numpy()
        )
        for name in table.column_names
    }


def read_participation_rates(run: Run) -> dict[int, float | None]:
    """Return the simulated p_n by client id; empty if the run recorded none.

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
