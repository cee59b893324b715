"""What the charts of an experiment share: methods with their styles, curves, published numbers."""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from fedquorum.metrics import metric_called
from fedquorum.records.reader import POPULATION, Run, read_parts, read_population
from fedquorum.records.round_record import MEAN_GROUP, TEST_GROUPS, UNSEEN_GROUP, RoundRecord

from server_app.report.charts import ANY, PERCENT, POSITIVE, Column, Level, Line, Panel
from server_app.report.groups import Group, brief, is_tested
from server_app.report.published import Published, published_values
from server_app.report.tables import METRIC_NAMES


@dataclass(frozen=True)
class Method:
    """A group as the charts show it: its name in legends, and its place among the styles."""

    group: Group
    label: str
    style: int

    @property
    def first(self) -> Run:
        """The run of the first seed."""
        return self.group.counted[0]


def methods_of(groups: Sequence[Group]) -> tuple[Method, ...]:
    """Return the groups that have rounds; what is not completed is said in the name."""
    return tuple(
        Method(group, brief(group.title_told), i)
        for i, group in enumerate(group for group in groups if group.counted)
    )


def tested_clients(methods: Sequence[Method]) -> tuple[str, ...]:
    """Return whose test parts are drawn: priority and the others, or all if all have priority.

    Clients that never train come last.
    """
    measured = {
        name
        for name in (*TEST_GROUPS, UNSEEN_GROUP)
        for method in methods
        for run in method.group.counted
        if any(is_tested(record, name) for record in run.rounds)
    }
    apart = "non_priority" in measured or "all" not in measured
    drawn = (*(("priority", "non_priority") if apart else ("all",)), UNSEEN_GROUP)
    return tuple(name for name in drawn if name in measured)


def models_tested(methods: Sequence[Method]) -> Mapping[str, str]:
    """Return the groups of ``tested_clients``, and the mean model if there is one, with names."""
    names = {clients: whose(clients) for clients in tested_clients(methods)}
    runs = [run for method in methods for run in method.group.counted]
    if any(record.test and MEAN_GROUP in record.test for run in runs for record in run.rounds):
        names[MEAN_GROUP] = "mean model"
    return names


def bounds_of(metrics: Collection[str]) -> tuple[float, float]:
    """Return the least and the greatest value of clients' metrics, as they are drawn."""
    known = [metric_called(metric) for metric in metrics]
    if any(metric.low < 0 for metric in known):
        return ANY
    return PERCENT if all(metric.is_share for metric in known) else POSITIVE


def over_rounds(
    methods: Sequence[Method],
    label: str,
    value: Callable[[RoundRecord], float | None],
    *,
    title: str = "",
    levels: tuple[Level, ...] = (),
    log: str = "",
    bounds: tuple[float, float] = POSITIVE,
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
        curve = method.group.curve(number)
        if not curve.rounds:
            continue
        mean = np.array([statistic.mean for statistic in curve.statistics])
        sd = np.array([statistic.sd or 0.0 for statistic in curve.statistics])
        rounds = np.array(curve.rounds, dtype=np.float64)
        lines.append(Line(method.label, method.style, rounds, mean, sd if sd.any() else None))
    if not lines:
        return None
    return Panel(title, "round", label, tuple(lines), levels, log=log, bounds=bounds)


def published(methods: Sequence[Method]) -> Iterator[tuple[Method, Published]]:
    """Yield what the papers report of each method."""
    for method in methods:
        for one in published_values(method.group.experiment, method.first.settings):
            yield method, one


def metric_label(metric: str) -> str:
    """Return a test metric with its unit, for an axis."""
    known = metric_called(metric)
    unit = ", unit of the target" if known.of_numbers and known.low == 0.0 else ""
    return f"test {METRIC_NAMES[metric]}{unit}"


def loss_label(methods: Sequence[Method], loss: str) -> str:
    """Return a loss with its unit: of predicted numbers it is their squared error."""
    numbers = any(method.group.of_numbers for method in methods)
    return f"{loss}, {'squared error' if numbers else 'nats'}"


def whose(clients: str) -> str:
    """Return a group of ``TEST_GROUPS`` in words, such as "priority clients"."""
    return f"{clients.replace('_', '-')} clients"


def sources(methods: Sequence[Method], values: str) -> str:
    """Return a sentence that names the papers, empty where there is nothing published."""
    found = sorted({one.source for _, one in published(methods)})
    return f" Dotted: published {values}, {'; '.join(found)}." if found else ""


def run_columns(run: Run, folder: str, names: Sequence[str]) -> dict[str, Column]:
    """Return columns of a run's table, null as NaN, booleans and whole numbers as floats.

    Columns that the table lacks are left out; without the table there are none.

    Raises
    ------
    RunError
        If the table is damaged.
    """
    if not (run.directory / folder).is_dir():
        return {}
    table = read_parts(run.directory / folder, names)
    return {
        name: (
            table[name].to_numpy()
            if pa.types.is_string(table[name].type)
            else table[name].cast(pa.float64()).to_numpy()
        )
        for name in table.column_names
    }


def rates_of(run: Run) -> dict[int, float | None]:
    """Return p_n by client id where the run's simulation knew it; empty without that record.

    Raises
    ------
    RunError
        If the record is damaged.
    """
    if not (run.directory / POPULATION).is_file():
        return {}
    table = read_population(run.directory)
    if "participation_rate" not in table.column_names:
        return {}
    rates = table["participation_rate"].to_pylist()
    return dict(zip(table["client"].to_pylist(), rates, strict=True))
