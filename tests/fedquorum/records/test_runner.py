"""Tests of the end of a round: records, checkpoint and callbacks in order, uninterrupted."""

import signal
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fedquorum.records.checkpoint import Checkpoint, CheckpointStore
from fedquorum.records.reader import load_run
from fedquorum.records.round_record import RoundRecord, build_round_record
from fedquorum.records.runner import Runner
from fedquorum.records.writer import RunWriter
from fedquorum.rules.state_arrays import StateArrays

from tests.fedquorum.records.made import EVALUATIONS, open_records, report


class FakeStrategy:
    """A strategy that has sent 10 bytes and received 20 in each round."""

    def __init__(self, server_round: int = 0) -> None:
        self.server_round = server_round

    @property
    def step_result(self) -> SimpleNamespace:
        number = self.server_round
        return SimpleNamespace(
            report=report(number),
            evaluations=EVALUATIONS,
            traffic=SimpleNamespace(bytes_down=10 * number, bytes_up=20 * number),
            state_bytes=0,
        )


def get_model() -> StateArrays:
    return {"w": np.ones(2)}


def make_runner(records: RunWriter, strategy: Any, *, after: int = 0, every: Any = 2) -> Runner:
    record = partial(build_round_record, rates=None, metric="accuracy", all_evaluated=True)
    return Runner(records, strategy, record, {}, after, 5, get_state=dict, checkpoint_every=every)


def play_round(run: Runner, strategy: FakeStrategy) -> RoundRecord:
    run.open_round()
    strategy.server_round += 1
    return run.close_round(get_model)


@pytest.mark.parametrize(("every", "rounds"), [(2, [0, 2, 4, 5]), (3, [0, 3, 5]), (None, [])])
def test_checkpoints_are_written_when_due_and_after_the_last_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int | None, rounds: list[int]
) -> None:
    """Records are written before the checkpoint, and callbacks run after it."""
    events: list[str] = []
    save, add = CheckpointStore.save, RunWriter.add_round

    def save_and_log(self: CheckpointStore, checkpoint: Checkpoint) -> None:
        save(self, checkpoint)
        events.append(f"checkpoint {checkpoint.server_round}")

    def add_and_log(self: RunWriter, record: RoundRecord, *details: Any) -> None:
        add(self, record, *details)
        events.append(f"record {record.round}")

    monkeypatch.setattr(CheckpointStore, "save", save_and_log)
    monkeypatch.setattr(RunWriter, "add_round", add_and_log)
    strategy = FakeStrategy()
    with open_records(tmp_path / "run") as records:
        run = make_runner(records, strategy, every=every)
        run.on_round_end += [
            lambda record: events.append(f"first {record.round}"),
            lambda record: events.append(f"second {record.round}"),
        ]
        assert list(run.start(get_model)) == []
        for _ in range(5):
            record = play_round(run, strategy)
            assert (record.bytes_down, record.bytes_up) == (10, 20)
    expected = ["checkpoint 0"] if every else []
    for number in range(1, 6):
        expected.append(f"record {number}")
        expected += [f"checkpoint {number}"] if number in rounds else []
        expected += [f"first {number}", f"second {number}"]
    assert events == expected


def run_interrupted_round(directory: Path, logged: list[int]) -> None:
    """Run one round whose first callback raises a signal."""
    strategy = FakeStrategy()
    with open_records(directory) as records:
        run = make_runner(records, strategy, every=1)
        run.on_round_end += [
            lambda _record: signal.raise_signal(signal.SIGINT),
            lambda record: logged.append(record.round),
        ]
        run.start(get_model)
        play_round(run, strategy)


def test_a_signal_waits_for_the_callbacks(tmp_path: Path) -> None:
    """The round is written, and every callback has run."""
    logged: list[int] = []
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_interrupted_round(tmp_path / "run", logged)
    finally:
        signal.signal(signal.SIGINT, before)
    assert logged == [1]
    found = CheckpointStore(tmp_path / "run").find_newest().checkpoint
    assert found is not None
    assert found.server_round == 1
    assert load_run(tmp_path / "run").status == "interrupted"


def test_a_resumed_run_returns_the_earlier_rounds(tmp_path: Path) -> None:
    """It writes no initial checkpoint, and removes those of later rounds."""
    strategy = FakeStrategy()
    with open_records(tmp_path / "run") as records:
        run = make_runner(records, strategy)
        run.start(get_model)
        for _ in range(5):
            play_round(run, strategy)
    files = CheckpointStore(tmp_path / "run")
    (tmp_path / "run" / "checkpoints" / "round-000005.sha256").unlink()
    start = files.find_newest().checkpoint
    assert start is not None
    strategy = FakeStrategy(start.server_round)
    with open_records(tmp_path / "run", resumed=start) as records:
        run = make_runner(records, strategy, after=start.server_round)
        assert [record.round for record in run.start(get_model)] == [1, 2, 3, 4]
        names = {path.name for path in (tmp_path / "run" / "checkpoints").iterdir()}
        assert names == {"round-000004.safetensors", "round-000004.sha256"}
        play_round(run, strategy)
    assert [record.round for record in load_run(tmp_path / "run").rounds] == [1, 2, 3, 4, 5]
