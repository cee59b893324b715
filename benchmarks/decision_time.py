"""Time one decision of the rules that weight clients by losses, by the number of clients K.

    OMP_NUM_THREADS=1 python benchmarks/decision_time.py --json decisions.json

prints Markdown: the milliseconds of one decision (median and longest of several rounds, after
warm-up rounds) and its peak memory besides the input. All K clients report to a rule, except that
AAggFF-D also has cases with 1 % of them. A loss is the product of a constant of the client and a
factor that changes every round, both lognormal.
"""

import argparse
import json
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from fedquorum.rules.types import ClientUpdates, Population, RoundPlan
from fedquorum.rules.weighting import (
    AAggFFDWeighting,
    AAggFFSWeighting,
    AFLWeighting,
    DataFraction,
    FedMGDAWeighting,
    PropFairWeighting,
    QFedAvgWeighting,
    TERMWeighting,
    Weighting,
)

from benchmarks.engines import describe_machine

Case = tuple[str, Callable[[], Weighting[Any]], int, float]

CASES: tuple[Case, ...] = (
    ("AAggFF-S", AAggFFSWeighting, 20, 1.0),
    ("AAggFF-S", AAggFFSWeighting, 100, 1.0),
    ("AAggFF-S", AAggFFSWeighting, 1_000, 1.0),
    ("AAggFF-D", AAggFFDWeighting, 1_000, 0.01),
    ("AAggFF-D", AAggFFDWeighting, 100_000, 0.01),
    ("AAggFF-D", AAggFFDWeighting, 1_000_000, 0.01),
    ("AAggFF-D", AAggFFDWeighting, 1_000_000, 1.0),
    ("FedAvg", DataFraction, 100_000, 1.0),
    ("q-FedAvg", QFedAvgWeighting, 100_000, 1.0),
    ("TERM", TERMWeighting, 100_000, 1.0),
    ("PropFair", PropFairWeighting, 100_000, 1.0),
    ("AFL", AFLWeighting, 100_000, 1.0),
    ("FedMGDA+", FedMGDAWeighting, 100, 1.0),
    ("FedMGDA+", FedMGDAWeighting, 1_000, 1.0),
)


def main() -> None:
    """Print the table of all cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10, help="warm-up rounds")
    parser.add_argument("--json", type=Path, help="where the results go")
    options = parser.parse_args()
    results = []
    print("| rule | K | reporting | median, ms | longest, ms | memory, MB |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for name, rule, size, fraction in CASES:
        times, peak = measure_decisions(rule(), size, fraction, options.rounds)
        median = statistics.median(times)
        print(
            f"| {name} | {size:,} | {round(fraction * size):,} | {median:.2f} | {max(times):.2f} "
            f"| {peak / 1e6:.1f} |",
            flush=True,
        )
        results.append(
            {
                "name": f"{name}, K = {size}, reporting {round(fraction * size)}",
                "rounds_per_second": 1000 / median,
                "peak_memory_mb": peak / 1e6,
                "longest_ms": max(times),
            }
        )
    if options.json is not None:
        text = {"workload": "decisions", "results": results, "machine": describe_machine()}
        options.json.write_text(json.dumps(text, indent=2))


def measure_decisions(
    rule: Weighting[Any], size: int, fraction: float, warmup: int, num_measured: int = 7
) -> tuple[list[float], int]:
    """Return the milliseconds of ``num_measured`` decisions, and the peak bytes of one more."""
    rng = np.random.default_rng(0)
    level = rng.lognormal(0.0, 1.0, size)
    data = rng.integers(10, 1000, size).astype(np.float64)
    updates = rng.normal(size=(size, 50)) + 0.5 if rule.traits.needs_updates else None
    state = rule.init(Population(tuple(range(size)), frozenset(range(size))))
    times = []
    for t in range(warmup + num_measured + 1):
        selected = np.sort(rng.choice(size, round(fraction * size), replace=False))
        plan = RoundPlan(tuple(selected.tolist()))
        client_updates = ClientUpdates(
            client=selected,
            priority_weight=np.ones(len(selected)),
            num_examples=data[selected],
            loss=level[selected] * rng.lognormal(0.0, 0.3, len(selected)),
            accuracy=np.full(len(selected), 0.5),
            registered=np.arange(size),
            gram=None if updates is None else build_gram(updates[selected]),
        )
        fractions = np.ones(len(selected))
        last = t == warmup + num_measured
        if last:
            tracemalloc.start()
        started = time.perf_counter()
        state, _ = rule.weigh(state, plan, client_updates, fractions)
        times.append(1e3 * (time.perf_counter() - started))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return times[warmup:-1], peak


def build_gram(updates: np.ndarray[Any, np.dtype[np.float64]]) -> Callable[[], Any]:
    """Return a function that computes the inner products of the updates, shape (n, d)."""
    return lambda: updates @ updates.T


if __name__ == "__main__":
    main()
