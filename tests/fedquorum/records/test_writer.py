"""Tests of the records that a run leaves, completed or not."""

import errno
import json
import math
import os
import resource
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from fedquorum.client.availability import Staircase
from fedquorum.client.availability.rates import ParticipationRates
from fedquorum.errors import RunError
from fedquorum.records.callback import FinishedRound, RunObserver
from fedquorum.records.checkpoint import Checkpoint, CheckpointStore
from fedquorum.records.provenance import RunInfo
from fedquorum.records.reader import load_run, read_population
from fedquorum.records.run_dir import create_run_directory, lock_run
from fedquorum.records.writer import MEAN_MODEL, RunWriter
from fedquorum.rules.regret import Bound
from fedquorum.rules.types import Population
from safetensors.numpy import load_file

from tests.fedquorum.records.made import (
    CONFIG,
    EVALUATIONS,
    IDENTITY,
    add,
    make_round_record,
    open_records,
    report,
)

MANIFEST = [
    *(
        "format",
        "status",
        "experiment",
        "overrides",
        "strategy",
        "seed",
        "engine",
        "device",
        "rounds",
        "arithmetic",
        "data",
    ),
    *("rounds_completed", "started", "ended", "error", "source", "commit", "python", "platform"),
    *("packages", "resumed", "summary"),
]
IN_MANIFEST = [item.name for item in fields(RunInfo)]


def test_a_completed_run_has_all_records(tmp_path: Path) -> None:
    """They agree with each other, and other tools can read them."""
    with open_records(tmp_path / "run") as records:
        add(records, 1)
        add(records, 2, epsilon=math.inf)
        records.save_model({"w": np.ones(3, dtype=np.float32)})
    run = tmp_path / "run"
    manifest = json.loads((run / "manifest.json").read_text())
    assert (manifest["status"], manifest["rounds_completed"]) == ("completed", 2)
    assert list(manifest) == MANIFEST
    assert {name: manifest[name] for name in IN_MANIFEST} == {
        **{name: getattr(IDENTITY, name) for name in IN_MANIFEST},
        "overrides": list(IDENTITY.overrides),
    }
    assert (run / "config.yaml").read_text() == CONFIG
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
        "selected": 3,
        "trained": 1,
        "declined": 1,
        "unavailable": 0,
        "rejected": 1,
        "failed": 0,
        "late": 0,
        "busy": 0,
        "admitted": 1,
        "bytes_down": 5,
        "bytes_up": 7,
        "duration_seconds": 0.5,
        "state_bytes": 24,
        "weight_error": pytest.approx(((0.5 * 3 - 1) ** 2 + (0.25 * 2 - 1) ** 2) / 2),
        "decision_loss": None,
        "decision_loss_sum": None,
        "kl_to_data": None,
        "inclusion_mass": 0.25,
        "theta": 0.8,
        "priority_data": None,
        "unregistered": [],
        "disconnected": [],
        "stale_clients": [],
        "unmeasured": [],
        "late_replies": [],
        "simulated_seconds": None,
        "validation": None,
        "refused": None,
        "update_norm": None,
        "test": {
            "priority": pytest.approx(
                {
                    "loss": 2.0,
                    "accuracy": 0.75,
                    "evaluated": 1,
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
                    "evaluated": 1,
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
                    "evaluated": 2,
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
        "mixing_coefficient": None,
        "participation_correction": 3.0,
        "num_draws": None,
        "update_norm": None,
        "weight": 0.75,
        "reply_seconds": None,
        "test_loss": 2.0,
        "test_accuracy": 0.75,
        "data_weight": None,
    }
    assert rows[1]["loss"] is None
    assert rows[1]["test_accuracy"] == 0.25
    assert rows[2]["test_accuracy"] is None
    assert len(pq.read_table(run / "evaluations")) == 4
    assert load_file(run / "model.safetensors")["w"].tolist() == [1, 1, 1]


def test_the_population_is_one_row_per_client(tmp_path: Path) -> None:
    """Registered clients, ascending, with lambda_k, and with p_n if a simulation knows it."""
    population = Population((2, 0, 1), frozenset({0, 2}), {2: 0.25})
    known_rates = ParticipationRates(np.array([0.5, 0.25, 1.0]), Staircase(low=0.0))
    for name, rates in (("known", known_rates), ("unknown", None)):
        with open_records(tmp_path / name) as records:
            records.save_population(population, rates)
        assert pq.read_table(tmp_path / name / "population.parquet").to_pylist() == [
            {
                "client": k,
                "name": None,
                "priority": weight > 0,
                "priority_weight": weight,
                "participation_rate": None if rates is None else rates.p[k] / 2,
                "joined_round": None,
                "base_rate": None if rates is None else rates.p[k],
                "held_out": False,
                "requirement": None,
                "local_accuracy": None,
            }
            for k, weight in enumerate((1.0, 0.0, 0.25))
        ]


def test_evaluations_of_the_first_model_are_round_0(tmp_path: Path) -> None:
    """They are in the table of the later rounds."""
    with open_records(tmp_path / "run") as records:
        add(records, 1, initial=EVALUATIONS[:1])
    rows = pq.read_table(tmp_path / "run" / "evaluations").to_pylist()
    assert [(row["round"], row["client"]) for row in rows] == [(0, 0), (1, 0), (1, 1)]


def leave_killed_start(directory: Path) -> Path:
    """Write a run of five rounds without its manifest, beside a user's file."""
    with open_records(directory) as records:
        add(records, 1, initial=EVALUATIONS[:1])
        for number in range(2, 6):
            add(records, number)
        records.save_model({"w": np.ones(2)}, MEAN_MODEL)
        state, position = records.get_summary_state(), records.flush_and_get_offsets()
        CheckpointStore(directory).save(Checkpoint(5, {}, {}, state, {}, position, {}))
    (directory / "manifest.json").unlink()
    (directory / "notes.txt").write_text("mine")
    return directory


def test_a_start_clears_what_a_killed_start_left(tmp_path: Path) -> None:
    """The records are those of a run in a new folder, and a user's files stay."""
    for directory in (tmp_path / "new", leave_killed_start(tmp_path / "old")):
        with open_records(directory) as records:
            add(records, 1)
    tables = [pq.read_table(tmp_path / name / "clients").to_pylist() for name in ("new", "old")]
    assert tables[0] == tables[1]
    evaluated = pq.read_table(tmp_path / "old" / "evaluations")
    assert evaluated["round"].to_pylist() == [1, 1]
    run = load_run(tmp_path / "old")
    assert [record.round for record in run.rounds] == [1]
    assert CheckpointStore(run.directory).find_newest().checkpoint is None
    names = {path.name for path in (tmp_path / "new").rglob("*")}
    assert {path.name for path in run.directory.rglob("*")} == names | {"notes.txt"}


def test_a_start_clears_nothing_in_a_locked_folder(tmp_path: Path) -> None:
    """Another process may have just started, and have no manifest yet."""
    directory = leave_killed_start(tmp_path / "run")
    lock = lock_run(directory)
    before = {path: path.stat().st_size for path in directory.rglob("*")}
    with pytest.raises(RunError, match="another process is at work on the run in"):
        open_records(directory)
    assert {path: path.stat().st_size for path in directory.rglob("*")} == before
    os.close(lock)


def test_each_round_is_flushed_immediately(tmp_path: Path) -> None:
    """A killed run keeps its complete rounds."""
    with open_records(tmp_path / "run") as records:
        add(records, 1)
        assert len((tmp_path / "run" / "rounds.jsonl").read_text().splitlines()) == 1
        status = json.loads((tmp_path / "run" / "manifest.json").read_text())["status"]
        assert status == "running"


def test_the_privacy_cost_is_durable_immediately_and_permanently(tmp_path: Path) -> None:
    """A resume retains it before the next release; a completed run accepts no further cost."""
    path = tmp_path / "run" / "manifest.json"
    with open_records(tmp_path / "run") as records:
        for releases in (0, 1, 2):
            records.set_entry("privacy", {"releases": releases})
            assert json.loads(path.read_text())["privacy"] == {"releases": releases}
    with pytest.raises(RunError, match="is completed"):
        records.set_entry("privacy", {"releases": 3})
    start = Checkpoint(0, {}, {}, {}, {}, {}, {})
    with RunWriter(tmp_path / "run", IDENTITY, CONFIG, resumed=start):
        assert json.loads(path.read_text())["privacy"] == {"releases": 2}
    assert load_run(tmp_path / "run").privacy == {"releases": 2}


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (KeyboardInterrupt(), "interrupted", None),
        (ValueError("broke"), "failed", "ValueError: broke"),
    ],
)
def test_a_failed_run_keeps_its_complete_rounds(
    tmp_path: Path, error: BaseException, status: str, message: str | None
) -> None:
    """The manifest has the status and the error."""

    def run_and_raise() -> None:
        with open_records(tmp_path / "run") as records:
            add(records, 1)
            raise error

    with pytest.raises(type(error)):
        run_and_raise()
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert (manifest["status"], manifest["error"]) == (status, message)
    assert len(pq.read_table(tmp_path / "run" / "clients")) == 3


def test_a_run_interrupted_from_outside_stays_interrupted(tmp_path: Path) -> None:
    """Another thread's next round is refused, and its end changes nothing."""
    with open_records(tmp_path / "run") as records:
        add(records, 1)
        records.mark_interrupted()
        with pytest.raises(RunError, match=f"^the run in {tmp_path}/run is interrupted$"):
            add(records, 2)
    run = load_run(tmp_path / "run")
    assert (run.status, len(run.rounds)) == ("interrupted", 1)


@pytest.mark.parametrize("free_bytes", [0, 100])
def test_a_line_that_does_not_fit_on_the_disk_is_removed(tmp_path: Path, free_bytes: int) -> None:
    """No part of it is left, so the run can continue after its last round."""
    lines = tmp_path / "run" / "rounds.jsonl"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with open_records(tmp_path / "run") as records:
        add(records, 1)
        complete = lines.read_bytes()
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (len(complete) + free_bytes, limits[1]))
            with pytest.raises(
                RunError, match=r"/run cannot be written: (File too large|No space)"
            ):
                add(records, 2)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert lines.read_bytes() == complete
        add(records, 2)
    assert [record.round for record in load_run(tmp_path / "run").rounds] == [1, 2]


def test_rows_appear_in_complete_files_during_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No file is ever partial."""
    monkeypatch.setattr("fedquorum.records.tables.FLUSH_SECONDS", -1.0)
    with open_records(tmp_path / "run") as records:
        for number in (1, 2, 3):
            add(records, number)
            assert len(pq.read_table(tmp_path / "run" / "clients")) == 3 * number
    assert len(list((tmp_path / "run" / "clients").iterdir())) == 1


def test_a_directory_is_never_used_twice(tmp_path: Path) -> None:
    """A run's records are not overwritten by another run."""
    with open_records(tmp_path / "run"):
        pass
    with pytest.raises(RunError, match="the folder of a new run must not hold a run, got"):
        open_records(tmp_path / "run")


@pytest.mark.parametrize("name", ["x" * 201, "two\nlines", "\ud800"])
def test_a_name_that_readers_refuse_is_refused_at_the_start(name: str, tmp_path: Path) -> None:
    """The mistake does not wait for a reader of the completed run."""
    for field, identity in (
        ("experiment", replace(IDENTITY, experiment=name)),
        ("strategy", replace(IDENTITY, strategy=name)),
    ):
        with pytest.raises(RunError, match=rf"^{field} must be one line of at most 200 bytes, got"):
            RunWriter(tmp_path / "run", identity, CONFIG)
    assert not (tmp_path / "run").exists()


def test_an_unwritable_directory_is_named(tmp_path: Path) -> None:
    """If a file blocks its name, the error is one line."""
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="the folder of a run must be writable, got"):
        open_records(tmp_path / "file" / "run")
    with pytest.raises(RunError, match="the folder of a run must be writable, got"):
        create_run_directory(tmp_path / "file", "x")


# --- observers -------------------------------------------------------------------------------


class RecordingObserver(RunObserver):
    """Records its events in a list that may be shared, and fails at the event ``failing``."""

    def __init__(self, name: str, events: list[object], failing: str = "") -> None:
        self._name = name
        self._events = events
        self._failing = failing

    def _record(self, event: str, *details: object) -> None:
        if event == self._failing:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._events.append((self._name, event, *details))

    def start(self, directory: Path) -> None:
        self._record("start", directory.name)

    def end_round(self, finished: FinishedRound) -> None:
        self._record("end_round", finished.record.round, finished.scalars["round/global_loss"])

    def flush(self) -> None:
        self._record("flush")

    def close(self) -> None:
        self._record("close")

    def finish(self, status: str, files: Mapping[str, str]) -> None:
        self._record("finish", status, "rounds.jsonl" in files)


def test_a_checkpoint_is_written_after_its_rounds_are_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lengths are taken after the lines are synced."""
    synced: list[int] = []
    fsync = os.fsync

    def note(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    with open_records(tmp_path / "run") as records:
        add(records, 1)
        monkeypatch.setattr(os, "fsync", note)
        position = records.flush_and_get_offsets()
    rounds = (tmp_path / "run" / "rounds.jsonl").stat()
    assert rounds.st_ino in synced
    assert position["rounds.jsonl"] == rounds.st_size


def test_observers_receive_all_events_of_a_run(tmp_path: Path) -> None:
    """Start, rounds, checkpoints, close and final status arrive in this order."""
    events: list[object] = []
    observers = (RecordingObserver("a", events), RecordingObserver("b", events))
    with open_records(tmp_path / "run", observers=observers) as records:
        add(records, 1)
        records.flush_and_get_offsets()
    assert events == [
        (name, *event)
        for event in (
            ("start", "run"),
            ("end_round", 1, 1.25),
            ("flush",),
            ("close",),
            ("finish", "completed", True),
        )
        for name in ("a", "b")
    ]


def test_undefined_numbers_are_not_reported(tmp_path: Path) -> None:
    """NaN and missing numbers are left out; an infinite threshold is a number."""
    logged: list[Mapping[str, float]] = []

    class Scalars(RunObserver):
        def end_round(self, finished: FinishedRound) -> None:
            logged.append(finished.scalars)

    with open_records(tmp_path / "run", observers=(Scalars(),)) as records:
        add(records, 1, epsilon=math.inf)
    (scalars,) = logged
    assert scalars["round/epsilon"] == math.inf
    assert scalars["test_priority/accuracy"] == 0.75
    assert "round/decision_loss" not in scalars


@pytest.mark.parametrize("failing", ["start", "end_round", "flush", "close"])
def test_an_observer_that_cannot_write_ends_the_run(tmp_path: Path, failing: str) -> None:
    """One line says that the records cannot be written, and all observers are closed."""
    events: list[object] = []
    observers = (RecordingObserver("a", events), RecordingObserver("b", events, failing))

    def run_one_round() -> None:
        with open_records(tmp_path / "run", observers=observers) as records:
            add(records, 1)
            records.flush_and_get_offsets()

    with pytest.raises(RunError, match=r"run cannot be written: No space left on device") as caught:
        run_one_round()
    assert ("a", "close") in events
    if failing != "start":  # before that there is no run
        run = load_run(tmp_path / "run")
        assert (run.status, run.error) == ("failed", f"RunError: {caught.value}")


def test_the_bound_is_recorded_beside_the_regret(tmp_path: Path) -> None:
    """It is computed for T decisions over K clients; a method without a bound has none."""
    responses = np.array([0.5, 1.0, 0.25])
    for name, options, expected in (
        (
            "with",
            {"regret_bound": lambda rounds, k: Bound(10.0 * rounds + k, is_proven=False)},
            (23.0, 0),
        ),
        ("without", {}, (None, None)),
    ):
        with open_records(tmp_path / name, **options) as records:
            for number in (1, 2):
                decided = replace(report(number), decision_loss=-0.5, estimate=responses)
                records.end_round(FinishedRound(make_round_record(decided), decided))
        mixing = json.loads((tmp_path / name / "manifest.json").read_text())["summary"]["mixing"]
        assert mixing["decisions"] == 2
        assert (mixing["regret_bound"], mixing["regret_bound_proven"]) == expected
        assert mixing["decision_loss_sum"] == -1.0


def test_a_population_takes_no_space_for_each_client(tmp_path: Path) -> None:
    """Ids without gaps and common values are compressed, and restored when read."""
    with open_records(tmp_path / "run") as records:
        records.save_population(
            Population.from_size(100_000), ParticipationRates(np.full(100_000, 0.25))
        )
    assert (tmp_path / "run" / "population.parquet").stat().st_size < 20_000
    table = read_population(tmp_path / "run")
    assert table["client"].to_pylist() == list(range(100_000))
    for name, value in (("priority", True), ("priority_weight", 1.0), ("participation_rate", 0.25)):
        assert set(table[name].to_pylist()) == {value}


def test_a_truncated_run_loses_rows_before_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If stopped in between, no table has a round that rounds.jsonl lacks."""
    with open_records(tmp_path / "run") as records:
        add(records, 1)
        position = records.flush_and_get_offsets()
        add(records, 2)
    start = Checkpoint(1, {}, {}, records.get_summary_state(), {}, position, {})
    seen: list[list[int]] = []

    def note_and_stop(directory: Path, _position: Mapping[str, int]) -> None:
        seen.append(pq.read_table(directory / "clients")["round"].unique().to_pylist())
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("fedquorum.records.writer.truncate_records", note_and_stop)
        with pytest.raises(KeyboardInterrupt):
            open_records(tmp_path / "run", resumed=start)
    assert seen == [[1]]
    assert len((tmp_path / "run" / "rounds.jsonl").read_text().splitlines()) == 2
