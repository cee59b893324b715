"""Tests of one seed's scores with clients that are unavailable, refuse or withhold a metric."""

import math
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from fedquorum.errors import RunError
from fedquorum.records.reader import read_dataset

from conf.compose import compose_overrides, parse_override
from server_app.runs.job import ERROR_FILE, run_in_process
from server_app.study.candidates import MethodComparison, build_comparison, collect_common_overrides
from server_app.study.pairing import collect_seed_runs, describe_excluded_clients, exclude_candidate
from server_app.study.scores import explain_missing_score
from server_app.study.settings import StudySettings
from server_app.sweeps.jobs import Job, read_complete_rounds

OVERRIDES = (
    "data=synth",
    "data.num_clients=4",
    "data.num_priority=2",
    "data.samples_per_client=40",
    "rounds=2",
    "client.local_epochs=1",
)

Change = Callable[[pa.Table], pa.Table]


def make_comparison(score: str = "all.accuracy") -> MethodComparison:
    """Build the comparison of q-FedAvg with FedAvg."""
    study = StudySettings(goal="average", budget="20runs", methods=["qfedavg"], metric_key=score)
    return build_comparison(collect_common_overrides(map(parse_override, OVERRIDES)), study)


@pytest.fixture(scope="module")
def recorded_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a run of each method."""
    folder = tmp_path_factory.mktemp("pair")
    for candidate in make_comparison().candidates:
        run_in_process(compose_overrides(candidate.overrides), str(folder / candidate.method.name))
    return folder


@pytest.fixture
def folder(recorded_runs: Path, tmp_path: Path) -> Path:
    """Return a copy of the runs for changes."""
    return Path(shutil.copytree(recorded_runs, tmp_path / "pair"))


def edit_table(table: Path, change: Change) -> None:
    """Replace a table of a run by the changed one."""
    changed = change(read_dataset(table))
    shutil.rmtree(table)
    table.mkdir()
    pq.write_table(changed, table / "part-00000.parquet")


def drop_clients(*clients: int) -> Change:
    """Return a change that drops the rows of clients."""
    return lambda table: table.filter(pc.invert(pc.is_in(table["client"], pa.array(clients))))


def clear_column(name: str) -> Change:
    """Return a change that withholds a column of all clients."""

    def change(table: pa.Table) -> pa.Table:
        index = table.column_names.index(name)
        field = table.schema.field(name)
        return table.set_column(index, field, pa.nulls(len(table), field.type))

    return change


def collect_from(comparison: MethodComparison, folder: Path) -> Mapping[Any, Job]:
    """Collect one seed from the runs in a folder, and return their jobs."""
    jobs = {
        candidate.method: Job(number, candidate.overrides, "", folder / candidate.method.name, None)
        for number, candidate in enumerate(comparison.candidates)
    }
    collect_seed_runs(comparison, jobs, SimpleNamespace(runner=SimpleNamespace(directory=folder)))  # type: ignore[arg-type]
    return jobs


def compute_mean_accuracy(run: Path, clients: list[int]) -> float:
    """Compute the last test accuracy over some clients, weighted by data."""
    rows = [r for r in read_dataset(run / "evaluations").to_pylist() if r["round"] == 2]
    chosen = [row for row in rows if row["client"] in clients]
    assert len(chosen) == len(clients)
    weights = [row["num_examples"] for row in chosen]
    return float(np.average([row["test_accuracy"] for row in chosen], weights=weights))


def test_with_all_clients_scores_equal_the_records(recorded_runs: Path) -> None:
    """Nothing is recomputed, and no client is reported as excluded."""
    comparison = make_comparison()
    jobs = collect_from(comparison, recorded_runs)
    for candidate in comparison.active_candidates:
        last = read_complete_rounds(recorded_runs / candidate.method.name)[-1]
        assert candidate.runs[-1].score == last["test"]["all"]["accuracy"]
        assert len(candidate.runs[-1].clients) == 4
    assert describe_excluded_clients(comparison, jobs) == ""


def test_a_client_missing_from_one_run_counts_in_neither(folder: Path) -> None:
    """Client 3 has no evaluation with q-FedAvg: FedAvg's score excludes it too."""
    edit_table(folder / "qfedavg" / "evaluations", drop_clients(3))
    comparison = make_comparison()
    jobs = collect_from(comparison, folder)
    assert [set(candidate.runs[-1].clients) for candidate in comparison.active_candidates] == [
        {0, 1, 2}
    ] * 2
    run = comparison.baseline.runs[-1]
    assert run.score == pytest.approx(compute_mean_accuracy(folder / "fedavg", [0, 1, 2]))
    assert run.score != read_complete_rounds(folder / "fedavg")[-1]["test"]["all"]["accuracy"]
    assert run.curve[-1] == (2, run.score)
    assert run.measures["all"] == run.score
    assert (
        describe_excluded_clients(comparison, jobs)
        == " over 3 of 4 clients (the others report no accuracy)"
    )


def refuse(table: pa.Table) -> pa.Table:
    """Mark all clients as refused by their nodes."""
    for name, text in (("status", "unavailable"), ("reason", "its node takes no part: no")):
        index, field = table.column_names.index(name), table.schema.field(name)
        values = pa.array([text] * len(table)).cast(field.type)
        table = table.set_column(index, field, values)
    return table


def test_a_method_that_most_clients_refuse_is_left_out(folder: Path) -> None:
    """The reason quotes the clients' reasons; the baseline's score covers all its clients."""
    edit_table(folder / "qfedavg" / "evaluations", drop_clients(0, 1, 2))
    edit_table(folder / "qfedavg" / "clients", lambda table: refuse(drop_clients(3)(table)))
    comparison = make_comparison()
    collect_from(comparison, folder)
    [baseline], other = comparison.active_candidates, comparison.candidates[1]
    assert len(baseline.runs[-1].clients) == 4
    assert other.exclusion_reason == (
        "its run 1: 1 of the baseline's 4 clients report with it; "
        + "; ".join(f"client {k}: its node takes no part: no" for k in (0, 1, 2))
    )


def test_half_of_the_clients_are_enough(folder: Path) -> None:
    """Two of four are enough."""
    edit_table(folder / "qfedavg" / "evaluations", drop_clients(0, 1))
    comparison = make_comparison()
    collect_from(comparison, folder)
    assert [set(candidate.runs[-1].clients) for candidate in comparison.active_candidates] == [
        {2, 3}
    ] * 2


def test_a_score_without_common_clients_is_refused(folder: Path) -> None:
    """Clients 0 and 1 have priority: without them, no score is defined."""
    edit_table(folder / "qfedavg" / "evaluations", drop_clients(0))
    edit_table(folder / "fedavg" / "evaluations", drop_clients(1))
    comparison = make_comparison("priority.accuracy")
    with pytest.raises(RunError, match=r"^methods must leave .*priority\.accuracy.*got \[2, 3\]"):
        collect_from(comparison, folder)


def make_loss(value: float, *clients: int) -> Change:
    """Return a change that sets the test loss of clients."""

    def change(table: pa.Table) -> pa.Table:
        index = table.column_names.index("test_loss")
        losses = pc.if_else(pc.is_in(table["client"], pa.array(clients)), value, table["test_loss"])
        return table.set_column(index, table.schema.field("test_loss"), losses)

    return change


def test_a_method_that_diverges_loses_and_drops_no_clients(folder: Path) -> None:
    """The baseline's score covers all clients, also those whose loss the method makes infinite."""
    edit_table(folder / "qfedavg" / "evaluations", make_loss(math.inf, 1, 2))
    comparison = make_comparison()
    collect_from(comparison, folder)
    assert comparison.candidates[1].exclusion_reason == (
        "its run 1 diverged: the loss of 2 clients is not finite"
    )
    assert len(comparison.baseline.runs[-1].clients) == 4


def test_a_seed_without_the_baselines_score_counts_for_no_method(folder: Path) -> None:
    """No method is excluded for it, and the reason is returned."""
    edit_table(folder / "fedavg" / "evaluations", make_loss(math.nan, 3))
    comparison = make_comparison()
    jobs = {
        c.method: Job(number, c.overrides, "", folder / c.method.name, None)
        for number, c in enumerate(comparison.candidates)
    }
    here = SimpleNamespace(runner=SimpleNamespace(directory=folder))
    problem = collect_seed_runs(comparison, jobs, here)  # type: ignore[arg-type]
    assert problem == "its run 0 diverged: the loss of 1 client is not finite"
    assert [one.exclusion_reason for one in comparison.candidates] == ["", ""]
    assert [one.runs for one in comparison.candidates] == [[], []]


@pytest.mark.parametrize("split", ["test", "validation"])
def test_a_metric_that_no_client_reports(folder: Path, split: str) -> None:
    """The text names the setting and the file that withholds it."""
    edit_table(folder / "fedavg" / "evaluations", clear_column(f"{split}_accuracy"))
    problem = explain_missing_score(folder / "fedavg", split, "all.accuracy", "accuracy")
    assert problem.startswith(
        f"evaluation.metric must be one that clients report on their {split} "
    )
    assert "node.yaml" in problem
    other = {"test": "validation", "validation": "test"}[split]
    assert "not defined" in explain_missing_score(
        folder / "fedavg", other, "all.accuracy", "accuracy"
    )


def test_a_baseline_that_failed_runs_again_with_the_next_call(folder: Path) -> None:
    """On real machines the cause may be gone by then."""
    comparison = make_comparison()
    baseline = comparison.baseline
    (folder / "fedavg" / ERROR_FILE).write_text("a node is away\n")
    job = Job(0, baseline.overrides, "", folder / "fedavg", None)
    with pytest.raises(RunError, match=r"^the baseline fedavg failed: a node is away$"):
        exclude_candidate(comparison, baseline, job, job.read_state().reason)
    assert job.read_state().status == "waiting"
