"""How often a study names a method that is not better, through the product itself."""

import json
from pathlib import Path

import numpy as np
import pytest

from server_app.cli.study import start_study
from tests.cases import is_long

POPULATIONS, SEEDS = 200, 10
CLIENTS, ROWS, FEATURES = 4, 40, 3
MAX_NAMED = 0.035

RUNS = (
    "data=csv",
    "data.client_column=site",
    "data.target=ill",
    "rounds=2",
    "client.local_epochs=1",
    "goal=average",
    "methods=['fedavg client.lr=1.0']",
    "baseline='fedavg client.lr=0.05'",
    "trials=0",
    f"seeds={SEEDS}",
    f"budget={2 * SEEDS + 1}runs",
)


def write_population(path: Path, number: int) -> None:
    """Write a table in which no input tells anything about the class, so no method is better."""
    rng = np.random.default_rng(number)
    names = [f"x{k}" for k in range(FEATURES)]
    lines = [",".join(("site", "ill", *names))]
    for site in range(CLIENTS):
        labels = rng.permutation(np.arange(ROWS) % 2)
        for label in labels.tolist():
            numbers = (f"{one:.4f}" for one in rng.normal(size=FEATURES))
            lines.append(",".join((str(site), str(label), *numbers)))
    path.write_text("\n".join(lines))


def find_better(folder: Path, number: int) -> bool:
    """Run a study of one population, and return whether an interval lies above 0."""
    table = folder / f"{number}.csv"
    write_population(table, number)
    output = start_study((*RUNS, f"data.path={table}", f"output={folder / str(number)}"))
    result = json.loads((output / "study.json").read_text())
    assert result["seeds"] == SEEDS
    assert result["seed_draws"]["test_rows"]
    # Of models that guess the verdict is another one, so the intervals are asked.
    return any(one["low"] > 0 for one in result["comparisons"])


@pytest.mark.skipif(not is_long(), reason="only with --long")
def test_equal_methods_are_rarely_told_apart(tmp_path: Path) -> None:
    """Of 200 populations, no more than chance allows where 3.5 % are."""
    named = sum(find_better(tmp_path, number) for number in range(POPULATIONS))
    from scipy.stats import binom

    assert named <= binom.ppf(0.999, POPULATIONS, MAX_NAMED)
