"""Test FedAWE's two models: the model of a round, and the mean of the clients' start models."""

import math
from io import StringIO

import numpy as np
import pytest
from fedquorum.records.checkpoint import CheckpointStore
from fedquorum.records.reader import Run
from fedquorum.records.round_record import MEAN_GROUP
from fedquorum.report.chart_helpers import name_tested_models, select_plotted_methods
from fedquorum.report.final_metrics import compute_client_metrics, list_evaluated_groups
from fedquorum.report.seed_groups import group_runs
from fedquorum.rules.description import Goal
from rich.console import Console
from safetensors.numpy import load_file

from server_app.runs.display import DisplaySpec, RunTotals, build_final_table
from tests.server_app.made_runs import make_real_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return a run in which some clients start from older models."""
    overrides = (
        "strategy=fedawe",
        "availability=bernoulli",
        "availability.p=0.5",
        "client.lr=0.01",
    )
    return make_real_run(tmp_path_factory.mktemp("run"), *overrides, "evaluation.every=2")


def test_both_models_are_evaluated_on_the_test_split(run: Run) -> None:
    """The mean model has a separate group in the rounds that evaluate the test split."""
    tested = [record for record in run.rounds if record.test]
    assert [record.round for record in tested] == [2, 4, 5]
    for record in tested:
        assert record.test is not None
        mean, everyone = record.test[MEAN_GROUP], record.test["all"]
        assert mean is not None
        assert everyone is not None
        assert mean.keys() == everyone.keys()
        assert mean["loss"] != everyone["loss"]


def test_both_models_are_saved(run: Run) -> None:
    """The mean is over the clients' start models in the last checkpoint."""
    checkpoint = CheckpointStore(run.directory).find_newest().checkpoint
    assert checkpoint is not None
    state, model = checkpoint.strategy, load_file(run.directory / "model.safetensors")
    numbers = state["weighting.t"] + 1 - state["weighting.age"]
    assert len(set(numbers.tolist())) > 1
    for name, array in load_file(run.directory / "mean_model.safetensors").items():
        starts = [state[f"starts.{number}.{name}"].astype(np.float64) for number in numbers]
        np.testing.assert_allclose(array, np.mean(starts, axis=0), atol=1e-6)
        assert array.tobytes() != model[name].tobytes()
        np.testing.assert_array_equal(checkpoint.model[name], model[name])


def test_both_models_are_in_tables_and_charts(run: Run) -> None:
    """The mean model is in the final table, in the report's rows and in a chart."""
    totals = RunTotals()
    for record in run.rounds:
        totals = totals.add_round(record)
    text = StringIO()
    spec = DisplaySpec("accuracy", Goal.AVERAGE)
    Console(file=text, width=120).print(build_final_table(totals, "title", spec))
    assert "mean-model" in text.getvalue()
    (group,) = group_runs([run])
    assert list_evaluated_groups(group)[-1] == MEAN_GROUP
    last = run.rounds[-1].test
    assert last is not None
    mean = last[MEAN_GROUP]
    assert mean is not None
    assert compute_client_metrics(run, MEAN_GROUP)["test"] == mean["accuracy"]
    assert not math.isnan(mean["accuracy"])
    assert name_tested_models(select_plotted_methods([group]))[MEAN_GROUP] == "mean model"
