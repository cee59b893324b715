"""What a run leaves behind, whatever becomes of it."""

import json
import math
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from conf import compose
from conf.errors import RunError
from server_app.records.directory import new_run_directory
from server_app.records.round_record import RoundRecord, round_record
from server_app.records.writer import RunRecords
from strategies.report import ClientDecision, ClientEvaluation, TrainReport
from strategies.types import Call, Draws, GlobalMeasure, Population

NAN = math.nan


def report(server_round: int, epsilon: float | None = 0.2) -> TrainReport:
    return TrainReport(
        server_round,
        Call((0, 1, 2), epsilon),
        GlobalMeasure(1.25, 0.5),
        (
            ClientDecision(0, True, "trained", None, 10, 1.0, 0.5, omega=3.0, weight=0.75),
            ClientDecision(1, False, "silent", omega=2.0),
            ClientDecision(2, False, "rejected", "too good", 5, 0.1, 0.9),
        ),
        inclusion_mass=0.25,
    )


EVALUATIONS = (
    ClientEvaluation(0, 1.0, 10, 1.0, 0.5, 4, 2.0, 0.75),
    ClientEvaluation(1, 0.0, 30, NAN, NAN, 2, 4.0, 0.25),
)


def add(records: RunRecords, number: int, epsilon: float | None = 0.2) -> None:
    made = report(number, epsilon)
    record = round_record(
        made,
        EVALUATIONS,
        bytes_down=5,
        bytes_up=7,
        seconds=0.5,
        state_bytes=24,
        rates=[0.5, 0.25, 0.1],
        metric="accuracy",
        all_evaluated=True,
    )
    records.add_round(record, made, EVALUATIONS)


def test_a_completed_run(tmp_path: Path) -> None:
    """All records are there, agree with each other, and can be read by other tools."""
    with RunRecords(tmp_path / "run", compose(), engine="in-process") as records:
        add(records, 1)
        add(records, 2, epsilon=math.inf)
        records.save_model({"w": np.ones(3, dtype=np.float32)})
    run = tmp_path / "run"
    manifest = json.loads((run / "manifest.json").read_text())
    assert (manifest["status"], manifest["rounds_completed"]) == ("completed", 2)
    assert (manifest["seed"], manifest["engine"]) == (1, "in-process")
    assert manifest["packages"]["flwr"]
    assert manifest["started"] <= manifest["ended"]
    assert manifest["summary"] == {
        "theta": 0.8,
        "inclusion_mass": 0.25,
        "empty_rounds": 0,
        "admitted_rounds": {"0": 2},
        "mixing": None,
    }
    first, second = map(json.loads, (run / "rounds.jsonl").read_text().splitlines())
    assert second["epsilon"] == "inf"
    assert first == {
        "round": 1,
        "epsilon": 0.2,
        "global_loss": 1.25,
        "global_accuracy": 0.5,
        "asked": 3,
        "trained": 1,
        "silent": 1,
        "unavailable": 0,
        "rejected": 1,
        "failed": 0,
        "admitted": 1,
        "bytes_down": 5,
        "bytes_up": 7,
        "seconds": 0.5,
        "state_bytes": 24,
        "weight_error": pytest.approx(((0.5 * 3 - 1) ** 2 + (0.25 * 2 - 1) ** 2) / 2),
        "decision_loss": None,
        "decision_loss_sum": None,
        "kl": None,
        "inclusion_mass": 0.25,
        "theta": 0.8,
        "priority_data": None,
        "unknown": [],
        "test": {
            "priority": pytest.approx(
                {
                    "loss": 2.0,
                    "accuracy": 0.75,
                    "left_out": 0,
                    "average": 0.75,
                    "worst": 0.75,
                    "best": 0.75,
                    "worst10": 0.75,
                    "best10": 0.75,
                    "gini": 0.0,
                    "std": 0.0,
                    "jain": 1.0,
                }
            ),
            "non_priority": pytest.approx(
                {
                    "loss": 4.0,
                    "accuracy": 0.25,
                    "left_out": 0,
                    "average": 0.25,
                    "worst": 0.25,
                    "best": 0.25,
                    "worst10": 0.25,
                    "best10": 0.25,
                    "gini": 0.0,
                    "std": 0.0,
                    "jain": 1.0,
                }
            ),
            "all": pytest.approx(
                {
                    "loss": 3.5,
                    "accuracy": 0.375,
                    "left_out": 0,
                    "average": 0.5,
                    "worst": 0.25,
                    "best": 0.75,
                    "worst10": 0.25,
                    "best10": 0.75,
                    "gini": 0.25,
                    "std": 0.25,
                    "jain": 0.8,
                }
            ),
        },
    }
    rows = pq.read_table(run / "clients").to_pylist()
    assert len(rows) == 6
    assert rows[0] == {
        "round": 1,
        "client": 0,
        "priority": True,
        "status": "trained",
        "reason": None,
        "num_examples": 10,
        "loss": 1.0,
        "accuracy": 0.5,
        "response": None,
        "mixing": None,
        "omega": 3.0,
        "draws": None,
        "update_norm": None,
        "weight": 0.75,
        "test_loss": 2.0,
        "test_accuracy": 0.75,
    }
    assert rows[1]["loss"] is None
    assert rows[1]["test_accuracy"] == 0.25
    assert rows[2]["test_accuracy"] is None
    assert len(pq.read_table(run / "evaluations")) == 4
    assert load_file(run / "model.safetensors")["w"].tolist() == [1, 1, 1]
    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    assert [e.value for e in events.Scalars("test_priority/accuracy")] == [0.75, 0.75]


def made(report: TrainReport, previous: RoundRecord | None = None) -> RoundRecord:
    """Return the record of a round in which nothing was evaluated."""
    return round_record(
        report,
        (),
        bytes_down=0,
        bytes_up=0,
        seconds=0.0,
        state_bytes=0,
        rates=None,
        metric="accuracy",
        all_evaluated=True,
        previous=previous,
    )


def test_decision_losses_are_summed_over_the_rounds() -> None:
    """The sum starts with the first decision and stays where a round decides nothing."""
    records: list[RoundRecord] = []
    for number, loss in enumerate((None, -0.5, None, -0.25), start=1):
        decided = replace(report(number), decision_loss=loss)
        records.append(made(decided, records[-1] if records else None))
    assert [record.decision_loss for record in records] == [None, -0.5, None, -0.25]
    assert [record.decision_loss_sum for record in records] == [None, -0.5, -0.5, -0.75]


def test_what_draws_counted_in_and_who_was_never_there_is_on_record() -> None:
    """Both are inputs of decisions that no row of a client tells."""
    plain = report(1)
    draws = Draws({0: 2}, 150.0)
    record = made(replace(plain, call=replace(plain.call, draws=draws), unknown=(2,)))
    assert (record.priority_data, record.unknown) == (150.0, (2,))


def test_the_population_is_one_row_per_client(tmp_path: Path) -> None:
    """Who the server knows of, ascending, with lambda_k, and p_n where a simulation knows it."""
    population = Population((2, 0, 1), frozenset({0, 2}), {2: 0.25})
    for name, rates in (("known", [0.5, 0.25, 1.0]), ("unknown", None)):
        with RunRecords(tmp_path / name, compose(), engine="in-process") as records:
            records.save_population(population, rates)
        assert pq.read_table(tmp_path / name / "population.parquet").to_pylist() == [
            {
                "client": k,
                "priority": weight > 0,
                "priority_weight": weight,
                "participation_rate": None if rates is None else rates[k],
            }
            for k, weight in enumerate((1.0, 0.0, 0.25))
        ]


def test_evaluations_of_the_first_model_are_round_0(tmp_path: Path) -> None:
    """They are beside those of the rounds, in the same table."""
    with RunRecords(tmp_path / "run", compose(), engine="in-process") as records:
        records.add_evaluations(0, EVALUATIONS[:1])
        add(records, 1)
    rows = pq.read_table(tmp_path / "run" / "evaluations").to_pylist()
    assert [(row["round"], row["client"]) for row in rows] == [(0, 0), (1, 0), (1, 1)]


def test_rounds_are_on_disk_at_once(tmp_path: Path) -> None:
    """A line is flushed when its round ends, so a killed run keeps it."""
    with RunRecords(tmp_path / "run", compose(), engine="in-process") as records:
        add(records, 1)
        assert len((tmp_path / "run" / "rounds.jsonl").read_text().splitlines()) == 1
        status = json.loads((tmp_path / "run" / "manifest.json").read_text())["status"]
        assert status == "running"


@pytest.mark.parametrize(
    ("error", "status", "told"),
    [
        (KeyboardInterrupt(), "interrupted", None),
        (ValueError("broke"), "failed", "ValueError: broke"),
    ],
)
def test_a_run_that_dies(
    tmp_path: Path, error: BaseException, status: str, told: str | None
) -> None:
    """Complete rounds are kept, the status and the error are told."""

    def die() -> None:
        with RunRecords(tmp_path / "run", compose(), engine="in-process") as records:
            add(records, 1)
            raise error

    with pytest.raises(type(error)):
        die()
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert (manifest["status"], manifest["error"]) == (status, told)
    assert len(pq.read_table(tmp_path / "run" / "clients")) == 3


def test_rows_are_written_in_whole_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts appear while the run goes on; none is ever half written."""
    monkeypatch.setattr("server_app.records.tables.FLUSH_SECONDS", -1.0)
    with RunRecords(tmp_path / "run", compose(), engine="in-process") as records:
        for number in (1, 2, 3):
            add(records, number)
            assert len(pq.read_table(tmp_path / "run" / "clients")) == 3 * number
    assert len(list((tmp_path / "run" / "clients").iterdir())) == 3


def test_tests_that_were_not_measured_are_null() -> None:
    """Without test metrics there is no summary; without non-priority ones there is no "all"."""
    record = partial(
        round_record,
        report(1),
        bytes_down=0,
        bytes_up=0,
        seconds=0.0,
        state_bytes=0,
        rates=None,
        metric="accuracy",
    )
    untested = [ClientEvaluation(0, 1.0, 10, 1.0, 0.5, NAN, NAN, NAN)]
    assert record(untested, all_evaluated=True).test is None
    test = record(EVALUATIONS[:1], all_evaluated=False).test
    assert test is not None
    assert test["all"] is None
    assert test["priority"] is not None


def test_a_directory_is_never_used_twice(tmp_path: Path) -> None:
    """A run's records are not overwritten by another's."""
    with RunRecords(tmp_path / "run", compose(), engine="in-process"):
        pass
    with pytest.raises(RunError, match="output-dir must not hold a run already, got"):
        RunRecords(tmp_path / "run", compose(), engine="in-process")


def test_runs_of_the_same_second_get_their_own_directories(tmp_path: Path) -> None:
    """The second one gets a number."""
    made = {new_run_directory(tmp_path, "a/b") for _ in range(3)}
    assert len(made) == 3
    assert all(d.is_absolute() and d.parent == tmp_path / "a" / "b" for d in made)


def test_an_unwritable_directory_is_named(tmp_path: Path) -> None:
    """A file in the way is an error in one line."""
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="output-dir must be writable, got"):
        RunRecords(tmp_path / "file" / "run", compose(), engine="in-process")
    with pytest.raises(RunError, match="output-dir must be writable, got"):
        new_run_directory(tmp_path / "file", "x")


def test_the_spread_is_of_the_metric_that_is_configured() -> None:
    """AUROC leaves out and counts the clients where it is not defined; of losses high is bad."""
    evaluations = [
        ClientEvaluation(k, 1.0, examples, 1.0, 0.5, 4, loss, 0.5, auroc)
        for k, (examples, loss, auroc) in enumerate(
            [(10, 1.0, 0.75), (30, 3.0, NAN), (30, 2.0, 0.25)]
        )
    ]

    def summary(metric: str) -> dict[str, float]:
        made = round_record(
            report(1),
            evaluations,
            bytes_down=0,
            bytes_up=0,
            seconds=0.0,
            state_bytes=0,
            rates=None,
            metric=metric,
            all_evaluated=True,
        )
        assert made.test is not None
        return dict(made.test["all"] or {})

    by_auroc, by_loss = summary("auroc"), summary("loss")
    assert by_auroc["auroc"] == pytest.approx((10 * 0.75 + 30 * 0.25) / 40)
    assert (by_auroc["left_out"], by_auroc["average"]) == (1, 0.5)
    assert (by_auroc["worst"], by_auroc["best"]) == (0.25, 0.75)
    assert (by_loss["left_out"], by_loss["worst"], by_loss["best"]) == (0, 3.0, 1.0)
    assert by_loss["loss"] == by_auroc["loss"] == pytest.approx(160 / 70)
    assert "auroc" not in by_loss
