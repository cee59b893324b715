"""FedAU's cutoff K: the weight error of Theorem 3 beside the terms of its bound."""

import math
import statistics
from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np
from fedquorum.rules.participation import FedAUCorrection
from fedquorum.rules.types import BoolArray, ClientUpdates, FloatArray, Population, RoundPlan

from benchmarks.book.results import (
    Cell,
    ResultTable,
    SeedStatistic,
    summarize_differences,
    summarize_seeds,
)
from client_app.data import load_data
from client_app.simulation.availability import build_processes, compute_participation_rates
from conf import compose_settings

CUTOFFS = (1, 2, 5, 10, 20, 50, 100, 1000, math.inf)
PROCESSES = ("bernoulli", "markov", "cyclic")


def build_cutoff_tables(
    seeds: Sequence[int], rounds: Sequence[int], cutoffs: Sequence[float] = CUTOFFS
) -> Mapping[str, ResultTable]:
    """Build a table of the weight error for each participation process and K.

    Runs only the rule, without training, for the 250 clients of experiment=fedau/fmnist, with the
    p_n and processes of the simulation. The error is the mean over rounds of
    (1 / N) sum_n (p_n omega_n - 1)^2, for each number T of ``rounds``. Theorem 3 assumes Bernoulli
    participation; its table also has the bias term (1 / N) sum_n (1 - p_n)^(2K) and the shape of
    the variance term K log T / T for the first T. ``over_none`` has the error of each K minus that
    of no cutoff under Bernoulli participation, paired by seed. Every table includes Corollary 4's
    K.
    """
    # All processes of a seed in succession: load_data keeps the data of one seed.
    histories = [
        {process: sample_participation(process, seed, max(rounds)) for process in PROCESSES}
        for seed in seeds
    ]
    corollary = {compute_corollary_cutoff(seeds, total): total for total in rounds}
    all_cutoffs = sorted({*cutoffs, math.inf, *corollary})
    errors = {
        process: _compute_errors([h[process] for h in histories], rounds, all_cutoffs)
        for process in PROCESSES
    }
    tables = {
        process: ResultTable(
            (process, *(f"T = {t:,}" for t in rounds)),
            tuple(
                (_format_name(k, corollary), *map(summarize_seeds, by_cutoff[k]))
                for k in all_cutoffs
            ),
            digits=3,
        )
        for process, by_cutoff in errors.items()
    }
    rates = [get_probabilities(seed) for seed in seeds]
    terms = [_compute_terms(rates, cutoff, rounds[0]) for cutoff in all_cutoffs]
    bernoulli = tables.pop(PROCESSES[0])
    headings = (*bernoulli.headings[1:], "bias term", f"K log T / T, T = {rounds[0]:,}")
    rows = tuple((*row, *pair) for row, pair in zip(bernoulli.rows, terms, strict=True))
    return {
        "weight_error": ResultTable(("K", *headings), rows, digits=3),
        "over_none": _build_differences(errors[PROCESSES[0]], bernoulli.headings[1:]),
        **tables,
    }


def compute_corollary_cutoff(seeds: Sequence[int], total: int) -> float:
    """Return Corollary 4's K = log_c T, rounded, with c = 1 / (1 - min p_n)^2."""
    smallest = min(float(get_probabilities(seed).min()) for seed in seeds)
    return float(round(math.log(total) / (-2 * math.log1p(-smallest))))


def _format_name(cutoff: float, corollary: Mapping[float, int]) -> str:
    mark = f" (Corollary 4, T = {corollary[cutoff]:,})" if cutoff in corollary else ""
    return f"{cutoff:g}{mark}"


def _compute_errors(
    histories: Sequence[tuple[FloatArray, BoolArray]],
    rounds: Sequence[int],
    cutoffs: Sequence[float],
) -> Mapping[float, list[list[float]]]:
    """Return the weight errors by cutoff, number of rounds and history (one for each seed)."""
    return {
        cutoff: [
            [compute_cutoff_error(p, cutoff, available[:t]) for p, available in histories]
            for t in rounds
        ]
        for cutoff in cutoffs
    }


def _build_differences(
    errors: Mapping[float, list[list[float]]], headings: Sequence[str]
) -> ResultTable:
    """Return the error of each cutoff minus that of no cutoff."""
    rows = tuple(
        (
            f"{cutoff:g} - inf",
            *(
                summarize_differences([a - b for a, b in zip(ours, none, strict=True)])
                for ours, none in zip(by_rounds, errors[math.inf], strict=True)
            ),
        )
        for cutoff, by_rounds in errors.items()
        if cutoff < math.inf
    )
    return ResultTable(("difference of the weight error", *headings), rows, digits=3)


def _compute_terms(rates: Sequence[FloatArray], cutoff: float, total: int) -> tuple[Cell, Cell]:
    bias = statistics.mean(float(np.mean((1 - p) ** (2 * cutoff))) for p in rates)
    variance = cutoff * math.log(total) / total
    shape = SeedStatistic(round(variance, 6)) if math.isfinite(variance) else "inf"
    return SeedStatistic(round(bias, 6)), shape


@cache
def get_probabilities(seed: int) -> FloatArray:
    """Return p_n of the experiment, shape (N,)."""
    settings = compose_settings("fedau/fmnist", f"seed={seed}").settings
    rates = compute_participation_rates(settings, load_data(settings.data, seed))
    if rates is None:
        raise TypeError("fedau/fmnist must have participation rates known to the simulation")
    return rates.mean_rates


def sample_participation(process: str, seed: int, total: int) -> tuple[FloatArray, BoolArray]:
    """Return p_n, shape (N,), and the availability in each round, shape (T, N)."""
    p = get_probabilities(seed)
    settings = compose_settings("fedau/fmnist", f"seed={seed} availability={process}").settings
    make_process = build_processes(settings, load_data(settings.data, seed))
    if make_process is None:
        raise TypeError(f"availability={process} must be a participation process")
    available = np.empty((total, len(p)), dtype=np.bool_)
    for client in range(len(p)):
        rng, rule, state = np.random.default_rng([seed, 3, client]), make_process(client), None
        for t in range(total):
            state = rule.advance(state, t + 1, rng)
            available[t, client] = rule.is_available(state)
    return p, available


def compute_cutoff_error(p: FloatArray, cutoff: float, available: BoolArray) -> float:
    """Return (1 / NT) sum_t sum_n (p_n omega_n - 1)^2; ``available`` has shape (T, N)."""
    n = len(p)
    clients = np.arange(n)
    rule = FedAUCorrection(cutoff)
    state = rule.init(Population(tuple(range(n)), frozenset(range(n))))
    error = 0.0
    for participants in map(np.flatnonzero, available):
        error += float(np.mean((p * state.omega - 1) ** 2))
        empty = np.empty(0)
        updates = ClientUpdates(participants, empty, empty, empty, empty, clients)
        state, _ = rule.weigh(state, RoundPlan(()), updates, np.ones(len(participants)))
    return error / len(available)
