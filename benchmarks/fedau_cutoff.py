"""FedAU's cutoff K: the weight error of Theorem 3, measured against the shape of its bound.

    python benchmarks/fedau_cutoff.py [--seeds 1 2 3] [--rounds 1000 10000]

plays the rule alone, without training, for the 250 clients of experiment=fedau/fmnist: p_n as the
simulation has them, Bernoulli participation. Prints Markdown: for each K the mean over rounds of
(1 / N) sum_n (p_n omega_n - 1)^2, mean and standard deviation over seeds, the bias term
(1 / N) sum_n (1 - p_n)^(2K) and the variance term's shape K log T / T.
"""

import argparse
import math
import statistics

import numpy as np

from client_app.availability import participation_probabilities
from client_app.data import load_data
from conf import compose
from strategies.types import Call, FloatArray, Population, Responses
from strategies.weighting import FedAU

CUTOFFS = (1, 2, 5, 10, 20, 50, 100, 1000, math.inf)


def main() -> None:
    """Print one table for each number of rounds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--rounds", nargs="+", type=int, default=[1000, 10000])
    arguments = parser.parse_args()
    rates = {seed: probabilities(seed) for seed in arguments.seeds}
    for total in arguments.rounds:
        print(f"\n| K, T = {total} | weight error | bias term | K log T / T |")
        print("| --- | --- | --- | --- |")
        for cutoff in CUTOFFS:
            errors = [weight_error(p, cutoff, total, seed) for seed, p in rates.items()]
            bias = statistics.mean(float(np.mean((1 - p) ** (2 * cutoff))) for p in rates.values())
            variance = cutoff * math.log(total) / total
            print(
                f"| {cutoff:g} | {statistics.mean(errors):.3f} ± {statistics.stdev(errors):.3f} "
                f"| {bias:.3f} | {variance:.3f} |"
            )


def probabilities(seed: int) -> FloatArray:
    """Return p_n of the experiment, shape (N,)."""
    settings = compose("fedau/fmnist", f"seed={seed}").settings
    return np.array(participation_probabilities(settings, load_data(settings.data, seed)))


def weight_error(p: FloatArray, cutoff: float, total: int, seed: int) -> float:
    """Return (1 / NT) sum_t sum_n (p_n omega_n - 1)^2 of one history."""
    n = len(p)
    clients = np.arange(n)
    rng = np.random.default_rng([seed, 3])
    rule = FedAU(cutoff)
    state = rule.init(Population(tuple(range(n)), frozenset(range(n))))
    error = 0.0
    for _ in range(total):
        error += float(np.mean((p * state.omega - 1) ** 2))
        present = np.flatnonzero(rng.random(n) < p)
        empty = np.empty(0)
        responses = Responses(present, empty, empty, empty, empty, clients)
        state, _ = rule.weigh(state, Call(()), responses, np.ones(len(present)))
    return error / total


if __name__ == "__main__":
    main()
