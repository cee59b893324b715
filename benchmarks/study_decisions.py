"""Estimate the error rate and the power of a study's verdict.

    python benchmarks/study_decisions.py --tables 1000

prints Markdown. For each scenario it has the percentage of simulated tables of scores whose verdict
is a false claim, and of those whose verdict names the better method (power), each with its 95 %
interval (Clopper and Pearson). A verdict is false if it names a method that is not better than the
baseline, or reports no difference although one exceeds the margin. A score is the sum of the seed's
effect on all methods, the method's effect, and noise with standard deviation 1; effects are
multiples of this deviation.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import stats

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from server_app.study.paired_statistics import NO_DIFFERENCE, UNDECIDED, decide_best_method

BASELINE, BETTER = "baseline", "method 1"
MARGIN = 0.5  # standard deviations of a seed


@dataclass(frozen=True)
class Scenario:
    """Simulated scores of ``methods`` methods besides the baseline, one with an effect."""

    name: str
    methods: int = 5
    effect: float = 0.0
    heavy: bool = False


SCENARIOS = (
    Scenario("nothing differs"),
    *(Scenario(f"one better by {effect:g} sd", effect=effect) for effect in (0.5, 1.0, 2.0)),
    Scenario("20 methods, nothing differs", methods=20),
    Scenario("20 methods, one better by 2 sd", methods=20, effect=2.0),
    Scenario("heavy tails, nothing differs", heavy=True),
    Scenario("heavy tails, one better by 2 sd", effect=2.0, heavy=True),
)


def count_verdicts(scenario: Scenario, seeds: int, tables: int) -> Counter[str]:
    """Count the verdicts over simulated tables."""
    rng = np.random.default_rng(1)
    names = [BASELINE, *(f"method {k}" for k in range(1, scenario.methods + 1))]
    counts: Counter[str] = Counter()
    for _ in range(tables):
        shape = (len(names), seeds)
        # Student's t with 3 degrees of freedom has variance 3.
        noise = rng.standard_t(3, shape) / 3**0.5 if scenario.heavy else rng.normal(size=shape)
        scores = noise + 3 * rng.normal(size=seeds)
        scores[1] += scenario.effect
        counts[
            decide_best_method(dict(zip(names, scores, strict=True)), BASELINE, MARGIN).verdict
        ] += 1
    return counts


def format_rows(seeds: int, tables: int) -> Iterator[str]:
    """Yield the table's rows for a number of seeds."""
    for scenario in SCENARIOS:
        counts = count_verdicts(scenario, seeds, tables)
        better = counts[BETTER] if scenario.effect else 0
        named = tables - counts[UNDECIDED] - counts[NO_DIFFERENCE]
        missed = counts[NO_DIFFERENCE] if scenario.effect > MARGIN else 0
        power = _format_fraction(better, tables) if scenario.effect else "-"
        false = _format_fraction(named - better + missed, tables)
        equal, undecided = (counts[verdict] / tables for verdict in (NO_DIFFERENCE, UNDECIDED))
        yield f"| {scenario.name} | {seeds} | {false} | {power} | {equal:.1%} | {undecided:.1%} |"


def _format_fraction(count: int, total: int) -> str:
    interval = stats.binomtest(count, total).proportion_ci(method="exact")
    return f"{count / total:.1%} ({interval.low:.1%} to {interval.high:.1%})"


def main() -> None:
    """Print the table of all scenarios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", type=int, default=1000, help="tables of each scenario")
    parser.add_argument("--seeds", type=int, nargs="+", default=[5, 10, 20])
    arguments = parser.parse_args()
    print("| scenario | seeds | false claims | power | no difference | undecided |")
    print("| --- | --- | --- | --- | --- | --- |")
    for seeds in arguments.seeds:
        for line in format_rows(seeds, arguments.tables):
            print(line, flush=True)


if __name__ == "__main__":
    main()
