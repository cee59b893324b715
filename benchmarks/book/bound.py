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

from benchmarks.book.fedalign import fedalign_numbers, objective_at, of_methods
from benchmarks.book.kept import KeptRun
from benchmarks.book.measured import Table, differences
from benchmarks.book.methods import Method, methods, paired
from server_app.report.bound import (
    lowest_losses,
    non_priority_weights,
    optimality_gaps,
    rho_of,
    theta_terms,
    training_losses,
)
from server_app.report.data import run_data
from server_app.report.methods import trains_alone

EPSILON = "strategy.epsilon"
World = tuple[int | str, ...]
Gaps = Mapping[str, float]
"""A number of each client, by its id as the runs kept have it."""
Value = Callable[[KeptRun], float]


def bound_numbers(run: Run) -> Mapping[str, Any]:
    """Return the raw numbers that the terms of a chapter's runs are made of.

    Of clients that train alone ``lowest``, the lowest F_k by client, in nats. Of other runs
    FedALIGN's numbers, theta_T as the mean over rounds (``theta``) and by eq. 7
    (``theta_of_iterations``), by client F_k of the last model (``losses``), the clients without
    priority (``others``) and, of those admitted, the sum over rounds of their weights
    (``weights``).
    """
    if trains_alone(run.strategy):
        return {"lowest": lowest_losses([run])}
    data, settings = run_data(run)
    mean, of_iterations = theta_terms(run) or (math.nan, math.nan)
    return {
        **fedalign_numbers(run),
        "theta": mean,
        "theta_of_iterations": of_iterations,
        "losses": training_losses(run, settings, data),
        "others": [k for k in range(data.num_clients) if k not in data.priority],
        "weights": non_priority_weights(run)[0],
    }


def bound_tables(runs: Sequence[KeptRun]) -> Mapping[str, Table]:
    """Return two tables.

    ``terms``: of every method theta_T, rho_T in units of 2 L / mu, and the mean of Gamma_k over all
    clients without priority and over the admitted ones by their weights; and F(w) on the priority
    clients' training data at a quarter of the rounds and at the end, all but theta in nats.
    ``steps``: what theta_T and rho_T gain with the next larger epsilon, seed by seed.
    """
    gaps = _gaps(runs)
    found = [one for one in methods(runs) if not trains_alone(one.strategy)]
    rho: Value = partial(_rho, gaps)
    values: dict[str, Value] = {
        "theta_T": _theta,
        "theta_T, eq. 7": lambda run: run.number("theta_of_iterations"),
        "rho_T": rho,
        "Gamma_k, mean": partial(_mean_gap, gaps),
        "Gamma_k, admitted": partial(_admitted_gap, gaps),
        "F at a quarter": partial(objective_at, moment="a quarter"),
        "F at the end": partial(objective_at, moment="end"),
    }
    steps: dict[str, Value] = {"theta_T": _theta, "rho_T": rho}
    return {
        "terms": of_methods(found, "strategy", values, digits=4),
        "steps": Table(
            ("with the next larger epsilon", *steps),
            tuple(
                (
                    f"{larger.name} - {_epsilon(smaller):g}",
                    *(differences(paired(larger, smaller, value)) for value in steps.values()),
                )
                for smaller, larger in _neighbours(found)
            ),
            digits=4,
        ),
    }


def _theta(run: KeptRun) -> float:
    return run.number("theta")


def _world(run: KeptRun) -> World:
    """Return what runs share whose terms follow from each other: seed, preset and data."""
    return run.seed, *(w for w in run.words if w.startswith(("experiment=", "data.")))


def _gaps(runs: Sequence[KeptRun]) -> Mapping[World, Gaps]:
    """Return Gamma_k of the clients without priority, where a run in which all train alone is kept.

    w* is the last model with the lowest F, of any run with the same seed and data.
    """
    together: dict[World, list[KeptRun]] = defaultdict(list)
    lowest: dict[World, Gaps] = {}
    for run in runs:
        if trains_alone(run.strategy):
            lowest[_world(run)] = run.numbers["lowest"]
        else:
            together[_world(run)].append(run)
    return {
        world: _gaps_at(min(of, key=partial(objective_at, moment="end")), lowest[world])
        for world, of in together.items()
        if world in lowest
    }


def _gaps_at(optimum: KeptRun, lowest: Gaps) -> Gaps:
    others = map(str, optimum.numbers["others"])
    return optimality_gaps(optimum.numbers["losses"], lowest, others)


def _rho(gaps: Mapping[World, Gaps], run: KeptRun) -> float:
    gamma = gaps.get(_world(run))
    return math.nan if gamma is None else rho_of(run.numbers["weights"], gamma, run.rounds)


def _mean_gap(gaps: Mapping[World, Gaps], run: KeptRun) -> float:
    gamma = gaps.get(_world(run))
    return math.nan if gamma is None else statistics.mean(gamma.values())


def _admitted_gap(gaps: Mapping[World, Gaps], run: KeptRun) -> float:
    """Return the mean of Gamma_k by weight, NaN where nobody was admitted."""
    weight = sum(run.numbers["weights"].values())
    return _rho(gaps, run) * run.rounds / weight if weight else math.nan


def _epsilon(method: Method) -> float:
    return float(method.with_words(EPSILON)[EPSILON])


def _neighbours(found: Sequence[Method]) -> Iterator[tuple[Method, Method]]:
    """Yield methods that differ in epsilon alone, each with the one of the next larger epsilon."""
    ladders: dict[tuple[str, ...], list[Method]] = defaultdict(list)
    for method in (one for one in found if EPSILON in one.runs[0].settings):
        words = method.runs[0].words
        ladders[tuple(w for w in words if not w.startswith((EPSILON, "seed=")))].append(method)
    for ladder in ladders.values():
        yield from pairwise(sorted(ladder, key=_epsilon))
