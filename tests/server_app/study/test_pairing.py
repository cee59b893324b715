"""The scores of one seed, where clients are away, refuse a strategy or keep a metric."""

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
from server_app.job import ERROR_FILE, run_in_process
from server_app.resume import can_resume
from server_app.study.candidates import MethodComparison, build_comparison, collect_common_overrides
from server_app.study.pairing import collect_seed_runs, describe_excluded_clients, exclude_candidate
from server_app.study.scores import explain_missing_score
from server_app.study.settings import StudySettings
from server_app.sweep_jobs import Job, read_complete_rounds

WORDS = (
    "data=synth",
    "data.num_clients=4",
    "data.num_priority=2",
    "data.samples_per_client=40",
    "rounds=2",
    "client.local_epochs=1",
)

Change = Callable[[pa.Table], pa.Table]


def contest(score: str = "all.accuracy") -> MethodComparison:
    """Return q-FedAvg against FedAvg."""
    asked = StudySettings(goal="average", budget="20runs", methods=["qfedavg"], metric_key=score)
    return build_comparison(collect_common_overrides(map(parse_override, WORDS)), asked)


@pytest.fixture(scope="module")
def recorded_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a run of each method."""
    folder = tmp_path_factory.mktemp("pair")
    for contender in contest().candidates:
        run_in_process(compose_overrides(contender.overrides), str(folder / contender.method.name))
    return folder


@pytest.fixture
def folder(recorded_runs: Path, tmp_path: Path) -> Path:
    """Return a copy of the runs, to be changed."""
    return Path(shutil.copytree(recorded_runs, tmp_path / "pair"))


def change(table: Path, how: Change) -> None:
    """Change a table of a run."""
    changed = how(read_dataset(table))
    shutil.rmtree(table)
    table.mkdir()
    pq.write_table(changed, table / "part-00000.parquet")


def without(*clients: int) -> Change:
    """Return what drops the rows of clients."""
    return lambda table: table.filter(pc.invert(pc.is_in(table["client"], pa.array(clients))))


def empty(name: str) -> Change:
    """Return what withholds a column of all clients."""

    def how(table: pa.Table) -> pa.Table:
        place = table.column_names.index(name)
        field = table.schema.field(name)
        return table.set_column(place, field, pa.nulls(len(table), field.type))

    return how


def taken(found: MethodComparison, folder: Path) -> Mapping[Any, Job]:
    """Take one seed from the runs in a folder, and return their jobs."""
    jobs = {
        contender.method: Job(number, contender.overrides, "", folder / contender.method.name, None)
        for number, contender in enumerate(found.candidates)
    }
    collect_seed_runs(found, jobs, SimpleNamespace(runner=SimpleNamespace(directory=folder)))  # type: ignore[arg-type]
    return jobs


def mean_over(run: Path, clients: list[int]) -> float:
    """Return the last test accuracy over some clients, by data."""
    rows = [r for r in read_dataset(run / "evaluations").to_pylist() if r["round"] == 2]
    chosen = [row for row in rows if row["client"] in clients]
    assert len(chosen) == len(clients)
    weights = [row["num_examples"] for row in chosen]
    return float(np.average([row["test_accuracy"] for row in chosen], weights=weights))


def test_where_all_report_scores_are_those_of_the_records(recorded_runs: Path) -> None:
    """Nothing is computed anew, and nothing need be said."""
    found = contest()
    jobs = taken(found, recorded_runs)
    for contender in found.active_candidates:
        last = read_complete_rounds(recorded_runs / contender.method.name)[-1]
        assert contender.runs[-1].score == last["test"]["all"]["accuracy"]
        assert len(contender.runs[-1].clients) == 4
    assert describe_excluded_clients(found, jobs) == ""


def test_a_client_that_is_away_from_one_run_counts_in_neither(folder: Path) -> None:
    """Client 3 was not measured with q-FedAvg: FedAvg's score is over the others, too."""
    change(folder / "qfedavg" / "evaluations", without(3))
    found = contest()
    jobs = taken(found, folder)
    assert [set(contender.runs[-1].clients) for contender in found.active_candidates] == [
        {0, 1, 2}
    ] * 2
    run = found.baseline.runs[-1]
    assert run.score == pytest.approx(mean_over(folder / "fedavg", [0, 1, 2]))
    assert run.score != read_complete_rounds(folder / "fedavg")[-1]["test"]["all"]["accuracy"]
    assert run.curve[-1] == (2, run.score)
    assert run.measures["all"] == run.score
    assert (
        describe_excluded_clients(found, jobs)
        == " over 3 of 4 clients (the others report no accuracy)"
    )


def refuse(table: pa.Table) -> pa.Table:
    """Let all clients say that their nodes take no part."""
    for name, text in (("status", "unavailable"), ("reason", "its node takes no part: no")):
        place, field = table.column_names.index(name), table.schema.field(name)
        values = pa.array([text] * len(table)).cast(field.type)
        table = table.set_column(place, field, values)
    return table


def test_a_method_that_most_clients_refuse_is_left_out(folder: Path) -> None:
    """The reason is the clients' own; the baseline is scored over all who report with it."""
    change(folder / "qfedavg" / "evaluations", without(0, 1, 2))
    change(folder / "qfedavg" / "clients", lambda table: refuse(without(3)(table)))
    found = contest()
    taken(found, folder)
    [plain], other = found.active_candidates, found.candidates[1]
    assert len(plain.runs[-1].clients) == 4
    assert other.exclusion_reason == (
        "its run 1: 1 of the baseline's 4 clients report with it; "
        + "; ".join(f"client {k}: its node takes no part: no" for k in (0, 1, 2))
    )


def test_half_of_the_clients_are_enough(folder: Path) -> None:
    """As with two of four."""
    change(folder / "qfedavg" / "evaluations", without(0, 1))
    found = contest()
    taken(found, folder)
    assert [set(contender.runs[-1].clients) for contender in found.active_candidates] == [
        {2, 3}
    ] * 2


def test_a_group_that_nobody_is_left_of(folder: Path) -> None:
    """Clients 0 and 1 have priority: without them, nothing is to be compared."""
    change(folder / "qfedavg" / "evaluations", without(0))
    change(folder / "fedavg" / "evaluations", without(1))
    found = contest("priority.accuracy")
    with pytest.raises(RunError, match=r"^methods must leave .*priority\.accuracy.*got \[2, 3\]"):
        taken(found, folder)


@pytest.mark.parametrize("part", ["test", "validation"])
def test_a_metric_that_no_client_reports(folder: Path, part: str) -> None:
    """The setting is named, and where it is withheld."""
    change(folder / "fedavg" / "evaluations", empty(f"{part}_accuracy"))
    said = explain_missing_score(folder / "fedavg", part, "all.accuracy", "accuracy")
    assert said.startswith(f"evaluation.metric must be one that clients report on their {part} ")
    assert "node.yaml" in said
    other = {"test": "validation", "validation": "test"}[part]
    assert "not defined" in explain_missing_score(
        folder / "fedavg", other, "all.accuracy", "accuracy"
    )


def test_a_baseline_that_failed_runs_again_with_the_next_call(folder: Path) -> None:
    """On real machines the reason may be gone by then."""
    found = contest()
    plain = found.baseline
    (folder / "fedavg" / ERROR_FILE).write_text("a node is away\n")
    job = Job(0, plain.overrides, "", folder / "fedavg", None)
    with pytest.raises(RunError, match=r"^the baseline fedavg failed: a node is away$"):
        exclude_candidate(found, plain, job, job.read_state().reason)
    assert job.read_state().status == "waiting"


@pytest.mark.parametrize(
    ("engine", "strategy", "resumable"),
    [("flower", "local_only", False), ("flower", "fedavg", True), ("ray", "local_only", True)],
)
def test_which_trials_can_be_left_and_taken_up(engine: str, strategy: str, resumable: bool) -> None:
    """Models that clients keep are lost with a run on Flower."""
    settings = compose_overrides((*WORDS, f"engine={engine}", f"strategy={strategy}")).settings
    assert can_resume(settings) is resumable
