"""The terms of FedALIGN's Theorem 1 over epsilon: theta_T, rho_T and Gamma_k.

``benchmarks.bound`` defines and estimates these terms. Here w* is the best model among all
runs on the same data with the same seed.
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
from benchmarks.bound import (
    compute_optimality_gaps,
    compute_rho,
    compute_theta_terms,
    evaluate_training_losses,
    find_lowest_losses,
    read_non_priority_weights,
)
from server_app.runs.reload import reload_data

EPSILON_KEY = "strategy.epsilon"
RunKey = tuple[int | str, ...]
GapsByClient = Mapping[str, float]
"""A number for each client id, which is text in the log."""
RunValue = Callable[[LoggedRun], float]


def collect_bound_numbers(run: Run) -> Mapping[str, Any]:
    """Return the raw numbers behind the terms of the bound.

    These are FedALIGN's numbers, theta_T as the mean over rounds (``theta``) and by eq. 7
    (``theta_of_iterations``), F_k of the last model for each client (``losses``), the clients
    without priority (``others``), and the weights of the admitted ones, summed over rounds
    (``weights``). A run whose clients also train alone has their F_k, in nats (``lowest``).
    """
    data, settings = reload_data(run)
    mean, of_iterations = compute_theta_terms(run) or (math.nan, math.nan)
    lowest = find_lowest_losses([run])
    return {
        **collect_fedalign_numbers(run),
        **({"lowest": lowest} if lowest else {}),
        "theta": mean,
        "theta_of_iterations": of_iterations,
        "losses": evaluate_training_losses(run, settings, data),
        "others": [k for k in range(data.num_clients) if k not in data.priority],
        "weights": read_non_priority_weights(run)[0],
    }


def build_bound_tables(runs: Sequence[LoggedRun]) -> Mapping[str, ResultTable]:
    """Build two tables; runs of one round count only for their clients that train alone.

    ``terms`` has, for every method, theta_T; rho_T in units of 2 L / mu; the mean of Gamma_k over
    all clients without priority, and over the admitted ones by weight; and F(w) on the priority
    clients' training data at a quarter of the rounds and at the end. All but theta are in nats.
    ``steps`` has the change of theta_T and rho_T from one epsilon to the next, paired by seed.
    """
    gaps = _compute_gaps_by_key(runs)
    methods = group_methods([run for run in runs if run.rounds > 1])
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
        "terms": build_seed_table(methods, "strategy", values, digits=4),
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
                for smaller, larger in _find_neighbors(methods)
            ),
            digits=4,
        ),
    }


def _get_theta(run: LoggedRun) -> float:
    return run.get_number("theta")


def _get_run_key(run: LoggedRun) -> RunKey:
    """Return the seed, preset and data settings, which comparable runs share."""
    return run.seed, *(item for item in run.words if item.startswith(("experiment=", "data.")))


def _compute_gaps_by_key(runs: Sequence[LoggedRun]) -> Mapping[RunKey, GapsByClient]:
    """Return Gamma_k of the clients without priority, if a run with clients alone is logged.

    w* is the last model with the lowest F among the runs with the same seed and data.
    """
    global_runs: dict[RunKey, list[LoggedRun]] = defaultdict(list)
    lowest: dict[RunKey, GapsByClient] = {}
    for run in runs:
        if "lowest" in run.numbers:
            lowest[_get_run_key(run)] = run.numbers["lowest"]
        if run.rounds > 1:
            global_runs[_get_run_key(run)].append(run)
    return {
        key: _compute_gaps(min(group, key=partial(get_objective, moment="end")), lowest[key])
        for key, group in global_runs.items()
        if key in lowest
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
    """Return the weighted mean of Gamma_k, NaN if no client was admitted."""
    weight = sum(run.numbers["weights"].values())
    return _compute_rho(gaps, run) * run.rounds / weight if weight else math.nan


def _get_epsilon(method: MethodRuns) -> float:
    return float(method.select_overrides(EPSILON_KEY)[EPSILON_KEY])


def _find_neighbors(methods: Sequence[MethodRuns]) -> Iterator[tuple[MethodRuns, MethodRuns]]:
    """Yield pairs of methods that differ only in epsilon, each with the next larger epsilon."""
    ladders: dict[tuple[str, ...], list[MethodRuns]] = defaultdict(list)
    for method in (m for m in methods if EPSILON_KEY in m.runs[0].settings):
        overrides = method.runs[0].words
        key = tuple(item for item in overrides if not item.startswith((EPSILON_KEY, "seed=")))
        ladders[key].append(method)
    for ladder in ladders.values():
        yield from pairwise(sorted(ladder, key=_get_epsilon))
