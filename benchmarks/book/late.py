"""Compare ways to close a round with slow clients, where speed and data are unrelated or not."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from fedquorum.records.reader import Run, read_population
from fedquorum.report.chart_helpers import read_run_columns
from fedquorum.report.seed_groups import get_test_metric
from fedquorum.rules.types import FloatArray

from benchmarks.book.results import Cell, ResultTable, summarize_seeds
from benchmarks.book.runs_log import LoggedRun

NUM_AVERAGED = 9
"""The evaluations of one mean: an unstable run crosses a threshold early and falls back."""

THRESHOLDS = (75.0, 80.0)
CONFIDENCE = 0.95
NUM_SPEED_GROUPS = 5
WITH_MEMORY = ("mifa", "fedvarp")

REFERENCE = "25 replies, FedBuff"
WORLDS: Mapping[str, tuple[str, ...]] = {
    "speed unrelated to data": (),
    # The mean of each tenth of the other world's medians, so that speeds are about the same.
    "slow clients hold other classes": (
        "response_time.between=0",
        "response_time.by_class=[0.19,0.35,0.51,0.68,0.88,1.13,1.48,1.96,2.82,5.18]",
    ),
}
"""The overrides of each world."""

AVERAGE = "strategy=average_participating"
FEDAU = "strategy=fedau"
COUNT = "engine.late_replies=count"
BUFFER = "engine.quorum=25"
CONDITIONS: Mapping[str, tuple[str, ...]] = {
    REFERENCE: (AVERAGE, COUNT, BUFFER),
    "25 replies, FedBuff, server_lr 0.3": (AVERAGE, COUNT, BUFFER, "strategy.server_lr=0.3"),
    "25 replies, FedAU, a = 0, server_lr 0.3": (
        *(FEDAU, COUNT, BUFFER),
        *("engine.staleness_exponent=0", "strategy.server_lr=0.3"),
    ),
    "25 replies, FedAU, a = 0.25": (FEDAU, COUNT, BUFFER, "engine.staleness_exponent=0.25"),
    "25 replies, FedAU, a = 0.5": (FEDAU, COUNT, BUFFER),
    "25 replies, MIFA, server_lr 0.1": ("strategy=mifa", COUNT, BUFFER, "strategy.server_lr=0.1"),
    "0.2 of all, counted": (AVERAGE, COUNT, "engine.quorum=0.2"),
    "0.2 of all, discarded": (AVERAGE, "engine.quorum=0.2"),
    "0.5 of all, discarded": (AVERAGE, "engine.quorum=0.5"),
    "all": (AVERAGE,),
    "a random cohort of 25": (AVERAGE, "strategy.fraction=0.1"),
}
"""The overrides of each way to close a round."""


def collect_late_numbers(run: Run) -> Mapping[str, Any]:
    """Return the raw numbers of a run over all clients; metrics are fractions.

    ``test``, weighted by the clients' data, and ``worst10``, the mean of the worst tenth of the
    clients, are means of the last evaluations. ``reached`` has, for each threshold, the simulated
    seconds after which the mean of ``NUM_AVERAGED`` evaluations stays above it. ``weights`` has the
    summed weight of each fifth of the clients, from the fastest, relative to the mean.
    """
    evaluated = [record for record in run.rounds if record.test is not None]
    seconds = [record.simulated_seconds or math.nan for record in evaluated]
    accuracy = [get_test_metric(record, "all", "accuracy") for record in evaluated]
    worst = [get_test_metric(record, "all", "worst10") for record in evaluated]
    return {
        "test": statistics.mean(accuracy[-NUM_AVERAGED:]),
        "worst10": statistics.mean(worst[-NUM_AVERAGED:]),
        "reached": {
            f"{threshold:g}": find_stable_time(seconds, accuracy, threshold / 100)
            for threshold in THRESHOLDS
        },
        "weights": _compute_weights_by_speed(run),
    }


def find_stable_time(
    seconds: Sequence[float], values: Sequence[float], threshold: float
) -> float | None:
    """Return the time after which all means of ``NUM_AVERAGED`` values are above a threshold.

    The time of a mean is that of its last value; None if the last mean is not above.
    """
    if len(values) < NUM_AVERAGED:
        return None
    means = compute_running_means(values)
    below = np.flatnonzero(means <= threshold)
    first = int(below[-1]) + 1 if len(below) else 0
    return None if first == len(means) else seconds[first + NUM_AVERAGED - 1]


def compute_running_means(values: Sequence[float]) -> FloatArray:
    """Return the means of each ``NUM_AVERAGED`` consecutive values; of all if there are fewer."""
    width = min(NUM_AVERAGED, len(values))
    return np.convolve(values, np.full(width, 1 / width), "valid")


def _compute_weights_by_speed(run: Run) -> list[float]:
    """Return the mean summed weight of each fifth of the clients, fastest first, over that of all.

    The clients without any reply are taken for the slowest.
    """
    table = read_run_columns(run, "clients", ["client", "weight", "reply_seconds"])
    client, seconds = table["client"].astype(np.int64), table["reply_seconds"]
    count = read_population(run.directory).num_rows
    summed = np.bincount(client, np.nan_to_num(table["weight"]), minlength=count)
    order = np.lexsort((seconds, client))
    order = order[~np.isnan(seconds[order])]
    found, starts = np.unique(client[order], return_index=True)
    medians = np.full(count, math.inf)
    medians[found] = [np.median(part) for part in np.split(seconds[order], starts[1:])]
    groups = np.array_split(summed[np.argsort(medians, kind="stable")], NUM_SPEED_GROUPS)
    mean = summed.mean()
    return [float(group.mean() / mean) if mean > 0 else math.nan for group in groups]


def build_late_tables(runs: Sequence[LoggedRun]) -> Mapping[str, ResultTable]:
    """Build the tables: a row for each way to close a round, columns for both worlds.

    ``test`` and ``worst10``: percent at the end. ``*_differences``: those to FedBuff, paired by
    seed, with 95 % intervals of Student's t. ``seconds``: when accuracy stays above a threshold.
    ``weights``: how much the slowest fifth of the clients counts, relative to the mean client.
    """
    test = _group_values(runs, lambda run: 100 * run.get_number("test"))
    worst = _group_values(runs, lambda run: 100 * run.get_number("worst10"))
    slowest = _group_values(runs, lambda run: _get_weight(run, -1))
    fastest = _group_values(runs, lambda run: _get_weight(run, 0))
    reached = {
        f"{world}, {threshold:g} %": {
            condition: by_world.get(world, {}) for condition, by_world in values.items()
        }
        for threshold in THRESHOLDS
        for values in [_group_values(runs, lambda run, t=threshold: _get_time(run, t))]
        for world in WORLDS
    }
    return {
        "test": _build_table("accuracy at the end, %", test, summarize_seeds),
        "differences": _build_differences("accuracy: difference from FedBuff, points", test),
        "worst10": _build_table("worst tenth of the clients, %", worst, summarize_seeds),
        "worst10_differences": _build_differences(
            "worst tenth: difference from FedBuff, points", worst
        ),
        "seconds": ResultTable(
            ("simulated seconds until accuracy stays above", *reached),
            tuple(
                (name, *(_summarize_times([*times[name].values()]) for times in reached.values()))
                for name in test
            ),
            digits=0,
        ),
        "slowest": _build_table("weight of the slowest fifth", slowest, summarize_seeds),
        "fastest": _build_table("weight of the fastest fifth", fastest, summarize_seeds),
    }


def find_overrides(words: Sequence[str]) -> tuple[str, str]:
    """Return the world and the way to close a round: those of which a run has most overrides."""
    given = {*words}
    worlds, ways = (
        [name for name, overrides in known.items() if given.issuperset(overrides)]
        for known in (WORLDS, CONDITIONS)
    )
    return (
        max(worlds, key=lambda name: len(WORLDS[name])),
        max(ways, key=lambda name: len(CONDITIONS[name])),
    )


Values = Mapping[str, Mapping[str, Mapping[int, float]]]
"""A number by condition, world and seed."""


def _group_values(runs: Sequence[LoggedRun], value: Callable[[LoggedRun], float]) -> Values:
    found: dict[str, dict[str, dict[int, float]]] = {}
    for run in runs:
        world, condition = find_overrides(run.words)
        found.setdefault(condition, {}).setdefault(world, {})[run.seed] = value(run)
    return {name: found[name] for name in CONDITIONS if name in found}


def _get_weight(run: LoggedRun, group: int) -> float:
    # With a memory, stored updates count in every round, which the weights do not say.
    if run.strategy in WITH_MEMORY:
        return math.nan
    value = run.numbers["weights"][group]
    return math.nan if value is None else float(value)


def _get_time(run: LoggedRun, threshold: float) -> float:
    return run.get_number("reached", f"{threshold:g}")


def _build_table(
    title: str, values: Values, summarize: Callable[[Sequence[float]], Cell]
) -> ResultTable:
    rows = tuple(
        (name, *(summarize([*by_world.get(world, {}).values()]) for world in WORLDS))
        for name, by_world in values.items()
    )
    return ResultTable((title, *WORLDS), rows)


def _build_differences(title: str, values: Values) -> ResultTable:
    differences = {
        name: {
            world: {
                seed: value - other
                for seed, value in by_seed.items()
                if (other := values.get(REFERENCE, {}).get(world, {}).get(seed)) is not None
            }
            for world, by_seed in by_world.items()
        }
        for name, by_world in values.items()
        if name != REFERENCE
    }
    return _build_table(title, differences, _format_interval)


def _format_interval(differences: Sequence[float]) -> Cell:
    """Return the mean and its interval, a plain number for one seed."""
    from scipy import stats

    if len(differences) < 2:  # noqa: PLR2004
        return summarize_seeds(differences)
    mean, spread = statistics.mean(differences), statistics.stdev(differences)
    quantile = stats.t.ppf((1 + CONFIDENCE) / 2, len(differences) - 1)
    half = float(quantile) * spread / math.sqrt(len(differences))
    return f"{mean:.2f} [{mean - half:.2f}, {mean + half:.2f}]"


def _summarize_times(times: Sequence[float]) -> Cell:
    """Return mean and deviation if all seeds have a time, otherwise how many have one."""
    reached = [time for time in times if not math.isnan(time)]
    if not times:
        return None
    if len(reached) == len(times):
        return summarize_seeds(times)
    return f"in {len(reached)} of {len(times)} seeds" if reached else "never"
