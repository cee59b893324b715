"""Estimate how often a study names a method that is not better, over populations of data.

    python benchmarks/study_populations.py --populations 3000

prints Markdown. A population is a finite table of rows with binary labels, divided among clients. A
method trains a linear model by least squares on half of the features, which all carry equally much:
so two methods are equal on average over tables, and on any one table one of them is ahead. Scores
are accuracies, over all clients or over the worst tenth; the verdict is the product's own, with
its planned looks. Every line counts verdicts that name the second method.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from server_app.study.looks import Look, add_look, compute_look_confidence
from server_app.study.paired_statistics import NUM_WEIGHT_SETS, decide_best_method

CLIENTS, TRAIN, VALIDATION, TEST = 20, 32, 8, 10
"""The clients, and each one's rows by the default fractions: 0.64, 0.16 and 0.2."""

ROWS = CLIENTS * (TRAIN + VALIDATION + TEST)
FEATURES, USED = 8, 4
SETTINGS, FINALISTS, TUNING_SEEDS = 33, 3, 2
CHUNK = 50
MARGIN, CONFIDENCE = 0.01, 0.95
BASELINE, METHOD = "baseline", "method"

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Scenario:
    """What the seeds draw, and what the second method is.

    Parameters
    ----------
    name : str
    gain : float
        What the method gains, in standard deviations of a seed's paired difference.
    fixed : bool
        Whether all seeds test the same rows.
    has_row_weights : bool
        Whether the variance of these rows counts, so that the claim is about new ones.
    same_model : bool
        Whether both methods train on the same features, each on a random half of the rows: then
        they are equal on any one table.
    tuned : bool
        Whether the method is the best of ``SETTINGS`` equal ones by validation rows.
    looks : tuple of int, optional
        The numbers of seeds of the looks; None for one, which is planned.
    planned : int, optional
        The planned number of seeds; by default that of the first look.
    """

    name: str
    gain: float = 0.0
    fixed: bool = False
    has_row_weights: bool = False
    same_model: bool = False
    tuned: bool = False
    looks: tuple[int, ...] | None = None
    planned: int | None = None


SCENARIOS = (
    Scenario("equal, rows divided anew"),
    Scenario("equal on these test rows, which are fixed", fixed=True, same_model=True),
    Scenario("equal on new rows, test rows fixed", fixed=True, has_row_weights=True),
    Scenario("equal on new rows, test rows fixed, by Student's t alone", fixed=True),
    Scenario("equal, the method is the best of 33 settings", tuned=True),
    *(
        Scenario(f"better by {gain} x a deviation of the paired difference", gain=gain)
        for gain in (1, 2, 4)
    ),
    Scenario("equal, extended twice beyond the plan", looks=(5, 10, 20)),
    Scenario("equal, three planned looks", looks=(5, 10, 20), planned=20),
)
SCORES = ("mean", "worst tenth")


def draw_scores(
    scenario: Scenario, rng: np.random.Generator, populations: int, seeds: int
) -> dict[str, tuple[Array, ...]]:
    """Return by kind of score the scores (populations, seeds) of baseline and method.

    With row weights, their scores (populations, seeds, B) with each set of weights follow.
    """
    shape = (populations, ROWS, FEATURES)
    signs = rng.choice([-1.0, 1.0], size=(populations, 1, FEATURES))
    x = rng.normal(size=shape)
    y = np.sign((x * signs).sum(axis=2) + 2.0 * rng.normal(size=shape[:2]))
    train, validation, test = divide_rows(scenario, rng, populations, TUNING_SEEDS + seeds)
    columns = [rng.permutation(FEATURES)[:USED] for _ in range(SETTINGS if scenario.tuned else 0)]
    first = np.arange(USED)
    halves = [np.ones(train.shape), np.ones(train.shape)]
    if scenario.same_model:
        halves = [rng.integers(2, size=train.shape).astype(float) for _ in halves]
    baseline = _evaluate(x, y, first, train, halves[0])
    if scenario.tuned:
        tuning = slice(0, TUNING_SEEDS)
        settings = [
            _evaluate(x, y, chosen, train[:, tuning], halves[1][:, tuning]) for chosen in columns
        ]
        best = _choose_setting(settings, validation[:, tuning])
        method = _evaluate(x, y, np.stack(columns)[best], train, halves[1])
    else:
        other = first if scenario.same_model else first + USED
        method = _evaluate(x, y, other, train, halves[1])
    weights = None
    if scenario.has_row_weights:
        weights = rng.poisson(size=(populations, 1, NUM_WEIGHT_SETS, CLIENTS, TEST)).astype(float)
        weights[weights.sum(axis=-1) == 0] = 1.0
    found = {}
    for kind in SCORES:
        base, tried = (
            _score(correct, test, kind)[:, TUNING_SEEDS:] for correct in (baseline, method)
        )
        gain = scenario.gain * (tried - base).std(axis=1, ddof=1).mean()
        sets = (
            _score(correct, test, kind, weights)[:, TUNING_SEEDS:]
            for correct in (baseline, method)
            if weights is not None
        )
        found[kind] = (base, tried + gain, *sets)
    return found


def divide_rows(
    scenario: Scenario, rng: np.random.Generator, populations: int, seeds: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows (populations, seeds, clients, rows) of each split.

    Each seed draws the rows to train on. Of the two other splits the last rows of a population are
    those for testing if these are fixed, and otherwise those for validation: no seed tests a row by
    which the tuning has chosen.
    """
    drawn, kept = (VALIDATION, TEST) if scenario.fixed else (TEST, VALIDATION)
    size = (populations, seeds, CLIENTS * (TRAIN + drawn))
    order = np.argsort(rng.random(size), axis=2).reshape(populations, seeds, CLIENTS, -1)
    train, others = np.split(order, [TRAIN], axis=3)
    last = np.arange(ROWS - CLIENTS * kept, ROWS).reshape(CLIENTS, kept)
    same = np.broadcast_to(last, (populations, seeds, CLIENTS, kept))
    return (train, others, same) if scenario.fixed else (train, same, others)


def _evaluate(
    x: Array, y: Array, columns: NDArray[np.int64], train: NDArray[np.int64], weights: Array
) -> Array:
    """Return whether the model of each seed is right on each row (populations, seeds, rows).

    ``columns`` has the features, of all populations (4,) or of each (populations, 4).
    """
    populations, seeds = train.shape[:2]
    indices = np.broadcast_to(columns[..., None, :], (populations, ROWS, USED))
    chosen = np.take_along_axis(x, indices, axis=2)
    mask = np.zeros((populations, seeds, ROWS))
    flat = train.reshape(populations, seeds, -1)
    np.put_along_axis(mask, flat, weights.reshape(flat.shape), axis=2)
    products = (chosen[:, :, :, None] * chosen[:, :, None, :]).reshape(populations, ROWS, -1)
    gram = (mask @ products).reshape(populations, seeds, USED, USED) + 1e-6 * np.eye(USED)
    moment = mask @ (chosen * y[:, :, None])
    model = np.linalg.solve(gram, moment[..., None])[..., 0]
    correct: Array = ((model @ chosen.transpose(0, 2, 1)) * y[:, None, :] > 0).astype(float)
    return correct


def _score(
    correct: Array, rows: NDArray[np.int64], kind: str, weights: Array | None = None
) -> Array:
    """Return the score (populations, seeds) on these rows of each client.

    With weights (populations, 1, B, clients, rows) it is (populations, seeds, B).
    """
    flat = rows.reshape(*rows.shape[:2], -1)
    found = np.take_along_axis(correct, flat, axis=2).reshape(rows.shape)
    by_client = (
        found.mean(axis=-1)
        if weights is None
        else np.einsum("pskr,pbkr->psbk", found, weights[:, 0]) / weights.sum(axis=-1)
    )
    if kind == "worst tenth":
        by_client = np.sort(by_client, axis=-1)[..., : CLIENTS // 10]
    score: Array = by_client.mean(axis=-1)
    return score


def _choose_setting(settings: Sequence[Array], validation: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return each population's best setting by the tuning's seeds, chosen as a study does.

    The first seed chooses ``FINALISTS``, and the mean with the second seed one of them.
    """
    scores = np.stack([_score(correct, validation, "mean") for correct in settings])
    finalists = np.argsort(-scores[:, :, 0], axis=0, kind="stable")[:FINALISTS]
    means = np.take_along_axis(scores.mean(axis=2), finalists, axis=0)
    best: NDArray[np.int64] = np.take_along_axis(finalists, means.argmax(axis=0)[None], axis=0)[0]
    return best


def names_method(scenario: Scenario, found: Sequence[Array], looks: Sequence[int]) -> bool:
    """Return whether one of the looks names the method; the study stops at a verdict.

    Parameters
    ----------
    scenario : Scenario
    found : sequence of array
        Of one population, see ``draw_scores``.
    looks : sequence of int
    """
    methods = (BASELINE, METHOD)
    ratio = 0.0 if scenario.fixed else TEST / TRAIN
    done: tuple[Look, ...] = ()
    for seeds in looks:
        done = add_look(done, seeds, scenario.planned or looks[0])
        confidence = compute_look_confidence(done, CONFIDENCE, ratio)
        decision = decide_best_method(
            {method: one[:seeds].tolist() for method, one in zip(methods, found, strict=False)},
            BASELINE,
            MARGIN,
            confidence=confidence,
            test_to_train=ratio,
            resampled={
                method: one[:seeds].mean(axis=0)
                for method, one in zip(methods, found[len(methods) :], strict=False)
            },
        )
        if decision.verdict == METHOD:
            return True
    return False


def count_named(scenario: Scenario, seeds: int, populations: int) -> dict[str, int]:
    """Return in how many populations the method is named, by kind of score."""
    rng = np.random.default_rng([SCENARIOS.index(scenario), seeds])
    looks = scenario.looks or (seeds,)
    counts = dict.fromkeys(SCORES, 0)
    for start in range(0, populations, CHUNK):
        scores = draw_scores(scenario, rng, min(CHUNK, populations - start), max(looks))
        for kind, pair in scores.items():
            counts[kind] += sum(
                names_method(scenario, one, looks) for one in zip(*pair, strict=True)
            )
    return counts


def format_rows(scenario: Scenario, seeds: int, populations: int) -> Iterator[str]:
    """Yield the table's rows of a scenario."""
    from scipy.stats import binomtest  # takes a second, and tests import this module

    looks = ", ".join(map(str, scenario.looks or (seeds,)))
    for kind, count in count_named(scenario, seeds, populations).items():
        ends = binomtest(count, populations).proportion_ci(method="exact")
        named = f"{count / populations:.1%} ({ends.low:.1%} to {ends.high:.1%})"
        yield f"| {scenario.name} | {kind} | {looks} | {populations} | {count} | {named} |"


def main() -> None:
    """Print the table of all scenarios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--populations", type=int, default=3000, help="populations a scenario")
    parser.add_argument("--only", default="", help="scenarios with this text in their names")
    parser.add_argument("--seeds", type=int, nargs="+", default=[5, 10, 20])
    arguments = parser.parse_args()
    print("| scenario | score | seeds | populations | named | percentage (95 % interval) |")
    print("| --- | --- | --- | --- | --- | --- |")
    for scenario in (one for one in SCENARIOS if arguments.only in one.name):
        for seeds in arguments.seeds[:1] if scenario.looks else arguments.seeds:
            for line in format_rows(scenario, seeds, arguments.populations):
                print(line, flush=True)


if __name__ == "__main__":
    main()
