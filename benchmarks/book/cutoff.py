"""FedAU's cutoff K: the weight error of Theorem 3, measured against the shape of its bound."""

import math
import statistics
from collections.abc import Mapping, Sequence

import numpy as np
from fedquorum.participation import MeanInterval
from fedquorum.types import Call, FloatArray, Population, Responses

from benchmarks.book.measured import Cell, Number, Table, numbers
from client_app.availability import simulated_rates
from client_app.data import load_data
from conf import compose

CUTOFFS = (1, 2, 5, 10, 20, 50, 100, 1000, math.inf)


def cutoff_tables(
    seeds: Sequence[int], rounds: Sequence[int], cutoffs: Sequence[float] = CUTOFFS
) -> Mapping[str, Table]:
    """Return one table: for each K the weight error and the terms of its bound.

    Plays the rule alone, without training, for the 250 clients of experiment=fedau/fmnist: p_n as
    the simulation has them, Bernoulli participation. The error is the mean over rounds of
    (1 / N) sum_n (p_n omega_n - 1)^2, for each number T of ``rounds``; the bias term is
    (1 / N) sum_n (1 - p_n)^(2K), the shape of the variance term K log T / T for the first T.
    """
    rates = {seed: probabilities(seed) for seed in seeds}
    first = rounds[0]
    rows: list[tuple[Cell, ...]] = []
    for cutoff in cutoffs:
        errors = [
            numbers([weight_error(p, cutoff, total, seed) for seed, p in rates.items()])
            for total in rounds
        ]
        bias = statistics.mean(float(np.mean((1 - p) ** (2 * cutoff))) for p in rates.values())
        variance = cutoff * math.log(first) / first
        shape = Number(round(variance, 6)) if math.isfinite(variance) else "inf"
        rows.append((f"{cutoff:g}", *errors, Number(round(bias, 6)), shape))
    lengths = [f"T = {total:,}" for total in rounds]
    headings = ("K", *lengths, "bias term", f"K log T / T, {lengths[0]}")
    return {"weight_error": Table(headings, tuple(rows), digits=3)}


def probabilities(seed: int) -> FloatArray:
    """Return p_n of the experiment, shape (N,)."""
    settings = compose("fedau/fmnist", f"seed={seed}").settings
    rates = simulated_rates(settings, load_data(settings.data, seed))
    if rates is None:
        raise TypeError("fedau/fmnist must have rates that the simulation knows")
    return rates.mean


def weight_error(p: FloatArray, cutoff: float, total: int, seed: int) -> float:
    """Return (1 / NT) sum_t sum_n (p_n omega_n - 1)^2 of one history."""
    n = len(p)
    clients = np.arange(n)
    rng = np.random.default_rng([seed, 3])
    rule = MeanInterval(cutoff)
    state = rule.init(Population(tuple(range(n)), frozenset(range(n))))
    error = 0.0
    for _ in range(total):
        error += float(np.mean((p * state.omega - 1) ** 2))
        present = np.flatnonzero(rng.random(n) < p)
        empty = np.empty(0)
        responses = Responses(present, empty, empty, empty, empty, clients)
        state, _ = rule.weigh(state, Call(()), responses, np.ones(len(present)))
    return error / total
