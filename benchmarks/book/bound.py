"""The terms of FedALIGN's Theorem 1 over epsilon: theta_T, rho_T and Gamma_k.

What they are, and how they are estimated, is in ``server_app.report.bound``; here w* is looked for
among all runs on the same data with the same seed.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

from fedquorum.records.reader import Run

from benchmarks.book.fedalign import build_seed_table, collect_fedalign_numbers, get_objective
from benchmarks.book.methods import MethodRuns, compute_paired_differences, group_methods
from benchmarks.book.results import ResultTable, summarize_differences
from benchmarks.book.runs_log import LoggedRun
from server_app.report.bound import (
    compute_optimality_gaps,
    compute_rho,
    compute_theta_terms,
    evaluate_training_losses,
    find_lowest_losses,
    read_non_priority_weights,
)
from server_app.report.methods import is_local_only
from server_app.report.rebuild import reload_data

EPSILON_KEY = "strategy.epsilon"
RunKey = tuple[int | str, ...]
GapsByClient = Mapping[str, float]
"""A number of each client, by its id as the runs kept have it."""
RunValue = Callable[[LoggedRun], float]


def collect_bound_numbers(run: Run) -> Mapping[str, Any]:
    """Return the raw numbers that the terms of a chapter's runs are made of.

    Of clients that train alone ``lowest``, the lowest F_k by client, in nats. Of other runs
    FedALIGN's numbers, theta_T as the mean over rounds (``theta``) and by eq. 7
    (``theta_of_iterations``), by client F_k of the last model (``losses``), the clients without
    priority (``others``) and, of those admitted, the sum over rounds of their weights
    (``weights``).
    """
    if is_local_only(run.strategy):
        return {"lowest": find_lowest_losses([run])}
    data, settings = reload_data(run)
    mean, of_iterations = compute_theta_terms(run) or (math.nan, math.nan)
    return {
        **collect_fedalign_numbers(run),
        "theta": mean,
        "theta_of_iterations": of_iterations,
        "losses": evaluate_training_losses(run, settings, data),
        "others": [k for k in range(data.num_clients) if k not in data.priority],
        "weights": read_non_priority_weights(run)[0],
    }


def build_bound_tables(runs: Sequence[LoggedRun]) -> Mapping[str, ResultTable]:
    """Return two tables.

    ``terms``: of every method theta_T, rho_T in units of 2 L / mu, and the mean of Gamma_k over all
    clients without priority and over the admitted ones by their weights; and F(w) on the priority
    clients' training data at a quarter of the rounds and at the end, all but theta in nats.
    ``steps``: what theta_T and rho_T gain with the next larger epsilon, seed by seed.
    """
    gaps = _compute_gaps_by_key(runs)
    found = [one for one in group_methods(runs) if not is_local_only(one.strategy)]
    rho: RunValue = partial(_compute_rho, gaps)
    values: dict[str, RunValue] = {
        "theta_T": _get_theta,
        "theta_T, eq. 7": lambda run: run.get_number("theta_of_iterations"),
        "rho_T": rho,
        "Gamma_k, mean": partial(_compute_mean_gap, gaps),
        "Gamma_k, admitted": partial(_compute_admitted_gap, gaps),
        "F at a quarter": partial(get_objective, moment="a quarter"),
        "F at the end": partial(get_objective, moment="end"),
    }
    steps: dict[str, RunValue] = {"theta_T": _get_theta, "rho_T": rho}
    return {
        "terms": build_seed_table(found, "strategy", values, digits=4),
        "steps": ResultTable(
            ("with the next larger epsilon", *steps),
            tuple(
                (
                    f"{larger.name} - {_get_epsilon(smaller):g}",
                    *(
                        summarize_differences(compute_paired_differences(larger, smaller, value))
                        for value in steps.values()
                    ),
                )
                for smaller, larger in _find_neighbors(found)
            ),
            digits=4,
        ),
    }


def _get_theta(run: LoggedRun) -> float:
    return run.get_number("theta")


def _get_run_key(run: LoggedRun) -> RunKey:
    """Return what runs share whose terms follow from each other: seed, preset and data."""
    return run.seed, *(w for w in run.words if w.startswith(("experiment=", "data.")))


def _compute_gaps_by_key(runs: Sequence[LoggedRun]) -> Mapping[RunKey, GapsByClient]:
    """Return Gamma_k of the clients without priority, where a run in which all train alone is kept.

    w* is the last model with the lowest F, of any run with the same seed and data.
    """
    together: dict[RunKey, list[LoggedRun]] = defaultdict(list)
    lowest: dict[RunKey, GapsByClient] = {}
    for run in runs:
        if is_local_only(run.strategy):
            lowest[_get_run_key(run)] = run.numbers["lowest"]
        else:
            together[_get_run_key(run)].append(run)
    return {
        world: _compute_gaps(min(of, key=partial(get_objective, moment="end")), lowest[world])
        for world, of in together.items()
        if world in lowest
    }


def _compute_gaps(optimum: LoggedRun, lowest: GapsByClient) -> GapsByClient:
    others = map(str, optimum.numbers["others"])
    return compute_optimality_gaps(optimum.numbers["losses"], lowest, others)


def _compute_rho(gaps: Mapping[RunKey, GapsByClient], run: LoggedRun) -> float:
    gamma = gaps.get(_get_run_key(run))
    return math.nan if gamma is None else compute_rho(run.numbers["weights"], gamma, run.rounds)


def _compute_mean_gap(gaps: Mapping[RunKey, GapsByClient], run: LoggedRun) -> float:
    gamma = gaps.get(_get_run_key(run))
    return math.nan if gamma is None else statistics.mean(gamma.values())


def _compute_admitted_gap(gaps: Mapping[RunKey, GapsByClient], run: LoggedRun) -> float:
    """Return the mean of Gamma_k by weight, NaN where nobody was admitted."""
    weight = sum(run.numbers["weights"].values())
    return _compute_rho(gaps, run) * run.rounds / weight if weight else math.nan


def _get_epsilon(method: MethodRuns) -> float:
    return float(method.select_overrides(EPSILON_KEY)[EPSILON_KEY])


def _find_neighbors(found: Sequence[MethodRuns]) -> Iterator[tuple[MethodRuns, MethodRuns]]:
    """Yield methods that differ in epsilon alone, each with the one of the next larger epsilon."""
    ladders: dict[tuple[str, ...], list[MethodRuns]] = defaultdict(list)
    for method in (one for one in found if EPSILON_KEY in one.runs[0].settings):
        words = method.runs[0].words
        ladders[tuple(w for w in words if not w.startswith((EPSILON_KEY, "seed=")))].append(method)
    for ladder in ladders.values():
        yield from pairwise(sorted(ladder, key=_get_epsilon))
