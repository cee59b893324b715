"""Tests of the end of a round: records, checkpoint and callbacks in order, uninterrupted."""

import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from fedquorum.records.callback import FinishedRound, RunCallback
from fedquorum.records.checkpoint import Checkpoint, CheckpointStore
from fedquorum.records.reader import load_run
from fedquorum.records.round_record import RoundRecord, build_round_record
from fedquorum.records.runner import CheckpointWriter, Runner
from fedquorum.records.writer import RunWriter
from fedquorum.rules.state_arrays import StateArrays

from tests.fedquorum.records.made import EVALUATIONS, open_records, report


class FakeStrategy:
    """A strategy that has sent 10 bytes and received 20 in each round."""

    is_time_up = False

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
            some_busy=False,
            sums=None,
        )


MODEL: StateArrays = {"w": np.ones(2)}


class Listener(RunCallback):
    """Calls a function with each record."""

    def __init__(self, listen: Callable[[RoundRecord], object]) -> None:
        self.listen = listen

    def end_round(self, finished: FinishedRound) -> None:
        self.listen(finished.record)


def make_runner(
    records: RunWriter,
    strategy: Any,
    *listeners: Callable[[RoundRecord], object],
    after: int = 0,
    every: Any = 2,
) -> Runner:
    """Return the runner of rounds ``after`` + 1 to 5; its model is its own arrays."""
    build_record = partial(
        build_round_record, get_rates=None, metric="accuracy", all_evaluated=True
    )
    checkpoints = CheckpointWriter(records, {}, get_state=dict, every=every)
    callbacks: list[RunCallback] = [checkpoints, *map(Listener, listeners)]
    rounds, model = range(after + 1, 6), cast("Any", MODEL)
    return Runner(strategy, records, callbacks, build_record, rounds, model, cast("Any", dict))


def play_round(run: Runner, strategy: FakeStrategy) -> None:
    run.open_round()
    strategy.server_round += 1
    run.close_round(run.model)


@pytest.mark.parametrize(("every", "rounds"), [(2, [0, 2, 4, 5]), (3, [0, 3, 5]), (None, [])])
def test_checkpoints_are_written_when_due_and_after_the_last_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int | None, rounds: list[int]
) -> None:
    """Records are written before the checkpoint, and callbacks run after it."""
    events: list[str] = []
    save, add = CheckpointStore.save, RunWriter.end_round

    def save_and_log(self: CheckpointStore, checkpoint: Checkpoint) -> None:
        save(self, checkpoint)
        events.append(f"checkpoint {checkpoint.server_round}")

    def add_and_log(self: RunWriter, finished: FinishedRound) -> None:
        add(self, finished)
        events.append(f"record {finished.record.round}")

    monkeypatch.setattr(CheckpointStore, "save", save_and_log)
    monkeypatch.setattr(RunWriter, "end_round", add_and_log)
    strategy = FakeStrategy()
    with open_records(tmp_path / "run") as records:
        run = make_runner(
            records,
            strategy,
            lambda record: events.append(f"first {record.round}"),
            lambda record: events.append(f"second {record.round}"),
            every=every,
        )
        assert list(run.start()) == []
        for _ in range(5):
            play_round(run, strategy)
    traffic = {(record.bytes_down, record.bytes_up) for record in load_run(tmp_path / "run").rounds}
    assert traffic == {(10, 20)}
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
        run = make_runner(
            records,
            strategy,
            lambda _record: signal.raise_signal(signal.SIGINT),
            lambda record: logged.append(record.round),
            every=1,
        )
        run.start()
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
        run.start()
        for _ in range(5):
            play_round(run, strategy)
    files = CheckpointStore(tmp_path / "run")
    (tmp_path / "run" / "checkpoints" / "round-000005.sha256").unlink()
    start = files.find_newest().checkpoint
    assert start is not None
    strategy = FakeStrategy(start.server_round)
    with open_records(tmp_path / "run", resumed=start) as records:
        run = make_runner(records, strategy, after=start.server_round)
        assert [record.round for record in run.start()] == [1, 2, 3, 4]
        names = {path.name for path in (tmp_path / "run" / "checkpoints").iterdir()}
        assert names == {"round-000004.safetensors", "round-000004.sha256"}
        play_round(run, strategy)
    assert [record.round for record in load_run(tmp_path / "run").rounds] == [1, 2, 3, 4, 5]
