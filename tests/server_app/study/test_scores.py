"""Test what a study reads from the records of its runs."""

import math
from pathlib import Path

import numpy as np
import pytest

from server_app.study.scores import read_seed_run
from tests.builders_runs import read_rows, run_here


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run of three clients that predicts numbers."""
    folder = tmp_path_factory.mktemp("numbers")
    rng = np.random.default_rng(0)
    age = rng.normal(50, 10, 90)
    price = 3 * age + rng.normal(0, 5, 90)
    np.savez(folder / "x.npz", x_train=age[:, None].astype(np.float32), y_train=price)
    words = f"data=npz data.path={folder}/x.npz data.regression=true data.partition=iid"
    more = "data.num_clients=3 data.priority=[0] strategy=fedavg rounds=2 client.local_epochs=1"
    run_here(folder / "run", "experiment=custom", *words.split(), *more.split())
    return folder / "run"


@pytest.mark.parametrize("included", [None, {1, 2}])
@pytest.mark.parametrize("group", ["all", "priority"])
def test_r2_is_of_the_clients_of_the_score(
    run: Path, group: str, included: set[int] | None
) -> None:
    """Its mean is weighted as the metric's, over the clients that count."""
    if group == "priority" and included is not None:
        included = {0, 1}
    result = read_seed_run(run, run.parent, f"{group}.rmse", "rmse", "", included_clients=included)
    last = [row for row in read_rows(run, "evaluations") if row["round"] == 2]
    counted = {0} if group == "priority" else (included or {0, 1, 2})
    values = [row["test_r2"] for row in last if row["client"] in counted]
    assert len(values) == len(counted)
    assert not math.isnan(result.measures["r2"])
    assert result.measures["r2"] == pytest.approx(np.mean(values))  # equally many rows each
