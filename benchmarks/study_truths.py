"""Check end to end whether studies find a planted effect.

    python benchmarks/study_truths.py --runs 5 --folder /tmp/truths

makes data with a known best method, runs ``fedquorum study`` on them as a user would, each time
with other data and seeds, and prints Markdown: the planted effect, the expected verdict, and the
verdicts. Studies that are already in the folder are not repeated.
"""

import argparse
import json
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

INPUTS, CLASSES = 20, 5
NUM_MINORITY_CLIENTS = 4
"""The number of clients, of 20, that have priority or form the hard group."""

NUM_FREQUENT_CLASSES = 2
"""The number of classes whose clients are often available."""

Arrays = Mapping[str, NDArray[np.generic]]


@dataclass(frozen=True)
class PlantedTruth:
    """Data with a planted effect, and the study that should find it.

    Parameters
    ----------
    name : str
        The planted effect.
    make_data : callable
        Returns the arrays of an .npz file, given a generator.
    overrides : str
        The study's overrides.
    expected_verdicts : str
        The correct verdicts, joined by "or".
    """

    name: str
    make_data: Callable[[np.random.Generator], Arrays]
    overrides: str
    expected_verdicts: str


def sample_rows(rng: np.random.Generator, rows: int, weights: NDArray[np.float64]) -> Arrays:
    """Sample rows whose classes follow a linear model."""
    x = rng.normal(size=(rows, INPUTS))
    noise = rng.gumbel(size=(rows, CLASSES))
    return {"x": x.astype(np.float32), "y": np.argmax(x @ weights + noise, axis=1)}


def split_clients(rng: np.random.Generator, clients: list[Arrays]) -> Arrays:
    """Join clients into one file: three quarters of their rows train, the others test."""
    columns: dict[str, list[NDArray[np.generic]]] = {}
    for number, client in enumerate(clients):
        order = rng.permutation(len(client["y"]))
        cut = len(order) * 3 // 4
        for split, rows in (("train", order[:cut]), ("test", order[cut:])):
            columns.setdefault(f"x_{split}", []).append(client["x"][rows])
            columns.setdefault(f"y_{split}", []).append(client["y"][rows])
            columns.setdefault(f"client_{split}", []).append(np.full(len(rows), number))
    return {name: np.concatenate(arrays) for name, arrays in columns.items()}


def sample_weights(rng: np.random.Generator) -> NDArray[np.float64]:
    """Sample the weights of a linear model."""
    return 1.5 * rng.normal(size=(INPUTS, CLASSES))


def make_flipped_labels(rng: np.random.Generator) -> Arrays:
    """Make 4 priority clients and 16 others, 8 of them with shifted labels."""
    weights = sample_weights(rng)
    clients = [
        sample_rows(rng, 60 if k < NUM_MINORITY_CLIENTS else 120, weights) for k in range(20)
    ]
    for k in range(12, 20):
        clients[k] = {**clients[k], "y": (clients[k]["y"] + 1) % CLASSES}
    return split_clients(rng, clients)


def make_class_availability(rng: np.random.Generator) -> Arrays:
    """Make clients of one class each; their availability depends on the class."""
    pool = sample_rows(rng, 12000, sample_weights(rng))
    clients = []
    for k in range(20):
        rows = np.flatnonzero(pool["y"] == k % CLASSES)[k // CLASSES :: 4][:120]
        clients.append({name: array[rows] for name, array in pool.items()})
    return split_clients(rng, clients)


def make_hard_group(rng: np.random.Generator) -> Arrays:
    """Make 20 clients, 4 of which follow another model."""
    common, other = sample_weights(rng), sample_weights(rng)
    clients = [
        sample_rows(rng, 120, other if k < NUM_MINORITY_CLIENTS else common) for k in range(20)
    ]
    return split_clients(rng, clients)


def make_identical_clients(rng: np.random.Generator) -> Arrays:
    """Make 20 clients with the same distribution."""
    weights = sample_weights(rng)
    return split_clients(rng, [sample_rows(rng, 120, weights) for _ in range(20)])


CLASS_RATES = (
    "[" + ",".join(str(0.9 if k % CLASSES < NUM_FREQUENT_CLASSES else 0.1) for k in range(20)) + "]"
)
NO_WINNER = "no difference or undecided"
TRUTHS = (
    PlantedTruth(
        "labels of half of the non-priority clients flipped",
        make_flipped_labels,
        "goal=priority data.priority=[0,1,2,3]",
        "fedalign or fedgp",
    ),
    PlantedTruth(
        "participation depends on the classes",
        make_class_availability,
        "goal=participation methods=[fedau,known_statistics] "
        f"availability=bernoulli availability.p={CLASS_RATES}",
        "fedau or known_statistics",
    ),
    PlantedTruth(
        "one hard group",
        make_hard_group,
        "goal=fairness methods=[aaggff_s,aaggff_d,term,qfedavg] evaluation.metric=loss",
        "aaggff_s or aaggff_d or term or qfedavg",
    ),
    PlantedTruth(
        "identical clients, always available, goal participation",
        make_identical_clients,
        "goal=participation availability=always",
        NO_WINNER,
    ),
    PlantedTruth(
        "identical clients, always available, goal fairness",
        make_identical_clients,
        "goal=fairness",
        NO_WINNER,
    ),
)


def run_truth_study(
    truth: PlantedTruth, number: int, folder: Path, budget: str
) -> dict[str, object]:
    """Run one study unless its result exists, and return the result."""
    output = folder / f"{TRUTHS.index(truth)}-{number}"
    if not (output / "study.json").exists():
        output.mkdir(parents=True, exist_ok=True)
        np.savez(output / "data.npz", **truth.make_data(np.random.default_rng(number)))
        overrides = (
            f"data=npz data.path={output / 'data.npz'} data.partition=natural rounds=30 "
            f"client.local_epochs=2 {truth.overrides} seed={1000 * number} budget={budget} "
            f"output={output / 'study'}"
        )
        if "data.priority" not in truth.overrides:
            overrides += " data.priority=all"
        command = ["fedquorum", "study", *shlex.split(overrides)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        (output / "study.json").write_text((output / "study" / "study.json").read_text())
    result: dict[str, object] = json.loads((output / "study.json").read_text())
    return result


def main() -> None:
    """Print the table of all planted effects."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5, help="studies of each effect")
    parser.add_argument("--folder", type=Path, required=True, help="folder of the studies")
    parser.add_argument("--budget", default="100runs", help="budget of each study")
    arguments = parser.parse_args()
    print("| planted | must be | found | verdicts |")
    print("| --- | --- | --- | --- |")
    for truth in TRUTHS:
        results = [
            run_truth_study(truth, number, arguments.folder, arguments.budget)
            for number in range(1, arguments.runs + 1)
        ]
        counts = Counter(str(result["verdict"]) for result in results)
        found = sum(counts[verdict] for verdict in truth.expected_verdicts.split(" or "))
        verdicts = ", ".join(f"{verdict} {count}" for verdict, count in counts.most_common())
        score = f"{found} of {arguments.runs}"
        print(f"| {truth.name} | {truth.expected_verdicts} | {score} | {verdicts} |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
