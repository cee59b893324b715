"""Print the terms of FedALIGN's convergence bound: ``python -m benchmarks.bound DIR ...``.

The terms come from runs, and from the losses of clients that train alone in one of them
(``evaluation.alone_epochs``). They need the runs' data.

Theorem 1 bounds E F(w_T) - F* by (C_1 + C_2 theta_T Gamma) / (T + gamma) + rho_T. theta_T (eq. 7)
falls and rho_T (eq. 8) grows with what the gate admits::

    theta_T = mean over rounds of 1 / (1 + A_t)
    rho_T   = (2 L / mu) * mean over rounds of sum_{k not in P} p_k I_k,t Gamma_k / (1 + A_t)
    Gamma_k = F_k(w*) - F_k*

as means over rounds, which leave out the theorem's constant offset of the iterations. Beside the
mean stands theta_T as eq. 7 has it, over the T = E S local iterations of S rounds::

    theta_T = sum_{i=1}^{T-1} 1 / (1 + A_{round of i}) / (T + gamma - 2)

with E the local steps of a round, or its epochs, which the papers count as one step each, and
gamma = E, the least that max(8 L / mu, E) can be, so that this is the most that eq. 7 can be.
p_k I_k,t / (1 + A_t) is the weight in the clients table. L and mu are unknown, so rho_T is in units
of 2 L / mu, in nats.

Estimated from simulated runs of one experiment, seed, data and model: w* is the last model of any
run with the lowest F on the priority clients' training data; F_k* is the training loss of the model
that client k trains alone, or F_k(w*) where that is lower, so that Gamma_k >= 0. Both overestimate
their optimum unless trained to the end.
"""

import argparse
import json
import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
from fedquorum.errors import FedQuorumError
from fedquorum.records.reader import Run, read_dataset, read_runs
from fedquorum.records.settings import DATA_LOCATION_KEYS
from fedquorum.report.terminal import create_console
from fedquorum.rules.decisions import ALONE, EPOCH_SETTINGS
from fedquorum.sanitize import MAX_LINE_LENGTH, sanitize
from rich.markup import escape
from rich.table import Table

from client_app.data import FederatedData
from client_app.data.examples import Examples
from client_app.evaluation.evaluator import CachedEvaluator
from client_app.losses import build_task
from conf import Settings
from server_app.runs.build import build_population
from server_app.runs.reload import (
    REBUILD_PREFIXES,
    load_trained_model,
    reload_data,
)

Id = TypeVar("Id", int, str)


@dataclass(frozen=True)
class BoundTerms:
    """theta_T, rho_T and Gamma_k of one run.

    Parameters
    ----------
    run : Run
        The run whose gate is evaluated.
    optimum : Run
        The run whose last model stands for w*.
    theta : float
        theta_T in (0, 1], the mean over rounds.
    theta_of_iterations : float
        theta_T of eq. 7 with gamma = E, in [0, 1]; NaN with a single iteration.
    rho : float
        rho_T / (2 L / mu) >= 0, in nats.
    gamma : mapping of int to float
        Gamma_k >= 0 in nats, of every non-priority client.
    admitted_rounds : mapping of int to int
        The number of rounds in which a non-priority client had a weight, by client; only positive.
    """

    run: Run
    optimum: Run
    theta: float
    theta_of_iterations: float
    rho: float
    gamma: Mapping[int, float]
    admitted_rounds: Mapping[int, int]


def compute_bound_terms(runs: Iterable[Run]) -> tuple[BoundTerms, ...]:
    """Return the terms of every completed run in whose group clients also train alone.

    Runs form a group if experiment, seed, data and model agree. Runs without a gate's theta_T have
    no terms.

    Raises
    ------
    DataError
        If the data of the runs is missing.
    RunError
        If the settings of a run no longer compose to the recorded ones, or a record is damaged.
    """
    return tuple(terms for same in group_comparable_runs(runs) for terms in _compute_terms(same))


def group_comparable_runs(runs: Iterable[Run]) -> tuple[tuple[Run, ...], ...]:
    """Group the completed runs that agree in experiment, seed, data and model."""
    groups: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        if run.status == "completed":
            groups[_build_group_key(run)].append(run)
    return tuple(map(tuple, groups.values()))


def _build_group_key(run: Run) -> str:
    shared = {k: v for k, v in run.settings.items() if k.startswith(REBUILD_PREFIXES)}
    shared = {k: v for k, v in shared.items() if k not in DATA_LOCATION_KEYS}
    return json.dumps([run.experiment, run.seed, shared], sort_keys=True)


def _compute_terms(runs: Sequence[Run]) -> Iterable[BoundTerms]:
    lowest = find_lowest_losses(runs)
    if not lowest:
        return
    data, settings = reload_data(runs[0])
    losses = {run.directory: evaluate_training_losses(run, settings, data) for run in runs}
    population = build_population(settings, data)
    counts = {
        k: population.get_priority_weight(k) * len(data.get_client(k).y_train)
        for k in population.priority
    }
    optimum = min(
        runs, key=lambda run: sum(n * losses[run.directory][k] for k, n in counts.items())
    )
    at_optimum = losses[optimum.directory]
    others = (k for k in range(data.num_clients) if k not in population.priority)
    gamma = compute_optimality_gaps(at_optimum, lowest, others)
    for run in runs:
        theta = compute_theta_terms(run)
        if theta is not None:
            weights, admitted = read_non_priority_weights(run)
            rho = compute_rho(weights, gamma, len(run.rounds))
            yield BoundTerms(run, optimum, *theta, rho, gamma, admitted)


def compute_optimality_gaps(
    at_optimum: Mapping[Id, float],
    lowest: Mapping[Id, float],
    clients: Iterable[Id],
) -> dict[Id, float]:
    """Return Gamma_k = F_k(w*) - F_k* >= 0 of these clients, by F_k(w*) and the estimates of F_k*.

    A client without an estimate has Gamma_k = 0.
    """
    return {k: at_optimum[k] - min(lowest.get(k, at_optimum[k]), at_optimum[k]) for k in clients}


def compute_rho(weights: Mapping[Id, float], gamma: Mapping[Id, float], rounds: int) -> float:
    """Return rho_T / (2 L / mu), of non-priority clients' weights summed over the rounds."""
    return sum(weight * gamma[k] for k, weight in weights.items()) / rounds


def compute_theta_terms(run: Run) -> tuple[float, float] | None:
    """Return theta_T as the mean over rounds and by eq. 7, or None for a run without A."""
    thetas = [record.theta for record in run.rounds if record.theta is not None]
    if not thetas:
        return None
    return sum(thetas) / len(thetas), compute_theta_of_iterations(thetas, _get_local_steps(run))


def compute_theta_of_iterations(thetas: Sequence[float], steps: int) -> float:
    """Return theta_T by eq. 7 from each round's 1 / (1 + A) and its number of local iterations.

    The sum begins with iteration 1, so the first round counts one iteration less. A single
    iteration has no sum: NaN.
    """
    total = steps * len(thetas)
    below = total + steps - 2
    return (steps * sum(thetas) - thetas[0]) / below if total > 1 else math.nan


def _get_local_steps(run: Run) -> int:
    """Return E in local steps, or in epochs if rounds are counted in epochs."""
    steps = run.settings.get("client.local_steps")
    return int(steps or run.settings["client.local_epochs"])


def evaluate_training_losses(run: Run, settings: Settings, data: FederatedData) -> dict[int, float]:
    """Return F_k of a run's last model for every client."""
    model = load_trained_model(run, settings, data)
    all_clients = range(data.num_clients)
    examples = Examples(data.get_pooled_split("train", all_clients), torch.device("cpu"))
    evaluator = CachedEvaluator(model, {"train": examples}, build_task(settings, data))
    arrays = [tensor.numpy() for tensor in model.state_dict().values()]
    evaluator.prepare(arrays, "train", all_clients)
    return {k: evaluator.evaluate(arrays, "train", k).loss for k in all_clients}


def find_lowest_losses(runs: Iterable[Run]) -> dict[int, float]:
    """Return the lowest training loss of each client's models alone, empty without any."""
    lowest: dict[int, float] = {}
    for run in (run for run in runs if run.settings.get(EPOCH_SETTINGS[ALONE])):
        table = read_dataset(run.directory / "evaluations", ["client", f"{ALONE}_loss"])
        for client, loss in (row.values() for row in table.to_pylist()):
            if loss is not None:
                lowest[client] = min(lowest.get(client, loss), loss)
    return lowest


def read_non_priority_weights(run: Run) -> tuple[dict[int, float], dict[int, int]]:
    """Return each non-priority client's summed weight and its number of rounds with a weight."""
    weights: dict[int, float] = defaultdict(float)
    admitted: dict[int, int] = defaultdict(int)
    table = read_dataset(run.directory / "clients", ["client", "priority", "weight"])
    for row in table.to_pylist():
        if not row["priority"] and row["weight"] != 0.0:
            weights[row["client"]] += row["weight"]
            admitted[row["client"]] += 1
    return dict(weights), dict(admitted)


def build_bound_table(terms: Sequence[BoundTerms]) -> Table:
    """Build the table of bound terms, one row per run."""
    table = Table(
        title="Terms of FedALIGN's bound (rho_T in units of 2 L / mu, nats)", title_justify="left"
    )
    for heading in ("experiment", "strategy", "variant", "w* from"):
        table.add_column(heading, overflow="fold")
    for heading in (
        "seed",
        "theta_T",
        "theta_T, eq. 7",
        "rho_T",
        "Gamma_k, mean",
        "Gamma_k, admitted",
    ):
        table.add_column(heading, justify="right")
    for one in terms:
        inside = [one.gamma[k] for k, n in one.admitted_rounds.items() for _ in range(n)]
        table.add_row(
            escape(one.run.experiment),
            escape(one.run.strategy),
            escape(sanitize(" ".join(w for w in one.run.overrides if w.startswith("strategy.")))),
            escape(one.optimum.strategy),
            str(one.run.seed),
            f"{one.theta:.3f}",
            f"{one.theta_of_iterations:.3f}",
            f"{one.rho:.4f}",
            f"{_average(list(one.gamma.values())):.4f}",
            f"{_average(inside):.4f}" if inside else "-",
        )
    return table


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table of all runs below the folders beside which clients also train alone."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.bound", description="Print the terms of FedALIGN's bound."
    )
    parser.add_argument("directories", nargs="+", type=Path, metavar="DIR", help="runs, or folders")
    runs, damaged = read_runs(parser.parse_args(argv).directories)
    problems = [f"left out: {problem}" for problem in damaged]
    terms: list[BoundTerms] = []
    for comparable in group_comparable_runs(runs):
        try:
            terms += compute_bound_terms(comparable)
        except FedQuorumError as error:
            problems.append(f"left out: {error}")
    for problem in problems:
        print(sanitize(problem, MAX_LINE_LENGTH), file=sys.stderr)
    if not terms:
        sys.exit("no run has one with evaluation.alone_epochs of its experiment and data beside it")
    create_console().print(build_bound_table(terms))


def _average(values: Sequence[float]) -> float:
    return sum(values) / len(values)


if __name__ == "__main__":
    main()
