"""FedAU's cutoff K: the weight error of Theorem 3, measured against the shape of its bound."""

import math
import statistics
from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np
from fedquorum.participation import MeanInterval
from fedquorum.types import BoolArray, Call, FloatArray, Population, Responses

from benchmarks.book.measured import Cell, Number, Table, differences, numbers
from client_app.availability import client_processes, simulated_rates
from client_app.data import load_data
from conf import compose

CUTOFFS = (1, 2, 5, 10, 20, 50, 100, 1000, math.inf)
PROCESSES = ("bernoulli", "markov", "cyclic")


def cutoff_tables(
    seeds: Sequence[int], rounds: Sequence[int], cutoffs: Sequence[float] = CUTOFFS
) -> Mapping[str, Table]:
    """Return a table for each process of participation: for each K the weight error.

    Plays the rule alone, without training, for the 250 clients of experiment=fedau/fmnist: p_n and
    the processes as the simulation has them. The error is the mean over rounds of
    (1 / N) sum_n (p_n omega_n - 1)^2, for each number T of ``rounds``. The table of Bernoulli
    participation, of which Theorem 3 is, has the bias term (1 / N) sum_n (1 - p_n)^(2K) and the
    shape of the variance term K log T / T for the first T. ``over_none`` has for the same the
    error of each K minus that of no cutoff, seed by seed. Corollary 4's K is in every table.
    """
    chosen = {corollary_cutoff(seeds, total): total for total in rounds}
    every = sorted({*cutoffs, math.inf, *chosen})
    errors = {process: _errors(process, seeds, rounds, every) for process in PROCESSES}
    tables = {
        process: Table(
            (process, *(f"T = {t:,}" for t in rounds)),
            tuple((_name(k, chosen), *map(numbers, found[k])) for k in every),
            digits=3,
        )
        for process, found in errors.items()
    }
    rates = [probabilities(seed) for seed in seeds]
    terms = [_terms(rates, cutoff, rounds[0]) for cutoff in every]
    plain = tables.pop(PROCESSES[0])
    headings = (*plain.headings[1:], "bias term", f"K log T / T, T = {rounds[0]:,}")
    rows = tuple((*row, *more) for row, more in zip(plain.rows, terms, strict=True))
    return {
        "weight_error": Table(("K", *headings), rows, digits=3),
        "over_none": _over_none(errors[PROCESSES[0]], plain.headings[1:]),
        **tables,
    }


def corollary_cutoff(seeds: Sequence[int], total: int) -> float:
    """Return Corollary 4's K = log_c T, rounded, c = 1 / (1 - p)^2 of the least p_n there is."""
    least = min(float(probabilities(seed).min()) for seed in seeds)
    return float(round(math.log(total) / (-2 * math.log1p(-least))))


def _name(cutoff: float, chosen: Mapping[float, int]) -> str:
    mark = f" (Corollary 4, T = {chosen[cutoff]:,})" if cutoff in chosen else ""
    return f"{cutoff:g}{mark}"


def _errors(
    process: str, seeds: Sequence[int], rounds: Sequence[int], cutoffs: Sequence[float]
) -> Mapping[float, list[list[float]]]:
    """Return by cutoff, for each number of rounds, the weight error of each seed."""
    played = [participation(process, seed, max(rounds)) for seed in seeds]
    return {
        cutoff: [[weight_error(p, cutoff, there[:t]) for p, there in played] for t in rounds]
        for cutoff in cutoffs
    }


def _over_none(errors: Mapping[float, list[list[float]]], headings: Sequence[str]) -> Table:
    """Return the error of each cutoff minus that of none."""
    rows = tuple(
        (
            f"{cutoff:g} - inf",
            *(
                differences([a - b for a, b in zip(ours, none, strict=True)])
                for ours, none in zip(found, errors[math.inf], strict=True)
            ),
        )
        for cutoff, found in errors.items()
        if cutoff < math.inf
    )
    return Table(("difference of the weight error", *headings), rows, digits=3)


def _terms(rates: Sequence[FloatArray], cutoff: float, total: int) -> tuple[Cell, Cell]:
    bias = statistics.mean(float(np.mean((1 - p) ** (2 * cutoff))) for p in rates)
    variance = cutoff * math.log(total) / total
    shape = Number(round(variance, 6)) if math.isfinite(variance) else "inf"
    return Number(round(bias, 6)), shape


@cache
def probabilities(seed: int) -> FloatArray:
    """Return p_n of the experiment, shape (N,)."""
    settings = compose("fedau/fmnist", f"seed={seed}").settings
    rates = simulated_rates(settings, load_data(settings.data, seed))
    if rates is None:
        raise TypeError("fedau/fmnist must have rates that the simulation knows")
    return rates.mean


def participation(process: str, seed: int, total: int) -> tuple[FloatArray, BoolArray]:
    """Return p_n, shape (N,), and who is there in each round, shape (T, N)."""
    p = probabilities(seed)
    settings = compose("fedau/fmnist", f"seed={seed} availability={process}").settings
    process_of = client_processes(settings, load_data(settings.data, seed))
    if process_of is None:
        raise TypeError(f"{process} must be a process of participation")
    there = np.empty((total, len(p)), dtype=np.bool_)
    for client in range(len(p)):
        rng, rule, state = np.random.default_rng([seed, 3, client]), process_of(client), None
        for t in range(total):
            state = rule.advance(state, t + 1, rng)
            there[t, client] = rule.available(state)
    return p, there


def weight_error(p: FloatArray, cutoff: float, there: BoolArray) -> float:
    """Return (1 / NT) sum_t sum_n (p_n omega_n - 1)^2 of one history, shape (T, N)."""
    n = len(p)
    clients = np.arange(n)
    rule = MeanInterval(cutoff)
    state = rule.init(Population(tuple(range(n)), frozenset(range(n))))
    error = 0.0
    for present in map(np.flatnonzero, there):
        error += float(np.mean((p * state.omega - 1) ** 2))
        empty = np.empty(0)
        responses = Responses(present, empty, empty, empty, empty, clients)
        state, _ = rule.weigh(state, Call(()), responses, np.ones(len(present)))
    return error / len(there)
