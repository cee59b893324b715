"""Tests that the cost and the records of a round do not grow with the number of clients."""

import gc
import json
import sys
import tracemalloc
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from fedquorum.records.callback import FinishedRound
from fedquorum.records.writer import RunWriter

from benchmarks.scale import CLIENTS_PER_ROUND, SCALE_STRATEGIES, build_job
from conf.compose import compose_overrides
from server_app.runs.job import run_in_process

ROUNDS = 3
NUM_WARMUP_ROUNDS = 3
FEW, MANY = 500, 5_000
BYTES_PER_CLIENT = 100  # bytes of arrays with an entry for each client, at the same time


class EndedEarlyError(Exception):
    """Raised to end a run after the measurement."""


@dataclass(frozen=True)
class Cost:
    """The function calls of one round, of Python and C, its lines, and another one's peak memory.

    A line of a loop counts as often as it runs, also in a comprehension. The memory is in bytes
    above that before the round.
    """

    calls: int
    lines: int
    memory: int


def measure_round(folder: Path, strategy: str, clients: int, *words: str) -> Cost:
    """Measure the cost of a round in the middle of a run."""
    calls, lines, peak, trace = 0, 0, 0, sys.gettrace()

    def count_call(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal calls
        calls += event in {"call", "c_call"}

    def count_line(_frame: Any, event: str, _argument: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return count_line

    def end_measured_round(self: RunWriter, finished: FinishedRound) -> None:
        nonlocal peak
        sys.setprofile(None)
        sys.settrace(trace)
        if tracemalloc.is_tracing():
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            raise EndedEarlyError
        end_round(self, finished)
        if finished.record.round == NUM_WARMUP_ROUNDS:
            sys.setprofile(count_call)
            sys.settrace(count_line)
        elif finished.record.round > NUM_WARMUP_ROUNDS:
            gc.collect()
            tracemalloc.start()

    end_round = RunWriter.end_round
    options = Namespace(
        rounds=100, engine="in-process", word=["engine.checkpoint_every=null", *words]
    )
    job = build_job(folder, strategy, clients, options)
    composed = compose_overrides(get_overrides(job))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunWriter, "end_round", end_measured_round)
        with pytest.raises(EndedEarlyError):
            run_in_process(composed, job["records"])
    return Cost(calls, lines, peak)


def get_overrides(job: dict[str, Any]) -> tuple[str, ...]:
    """Return the overrides of a job without those of Hydra."""
    return tuple(item for item in job["overrides"] if not item.startswith("hydra."))


@pytest.mark.slow
@pytest.mark.parametrize("strategy", SCALE_STRATEGIES)
def test_the_cost_of_a_round_depends_on_the_selected_clients(strategy: str, tmp_path: Path) -> None:
    """Ten times as many clients need no more calls, and no memory beyond their arrays."""
    few, many = (measure_round(tmp_path, strategy, clients) for clients in (FEW, MANY))
    assert many.calls <= 1.05 * few.calls
    assert many.lines <= 1.05 * few.lines
    assert many.memory - few.memory <= BYTES_PER_CLIENT * (MANY - FEW)


@pytest.mark.slow
def test_no_loop_runs_over_clients_that_are_neither_asked_nor_arriving(tmp_path: Path) -> None:
    """Where late updates count, neither free clients nor those that stay under way cost a line."""
    words = [
        *("strategy.fraction=1", "response_time=lognormal", "engine.late_replies=count"),
        f"engine.quorum={CLIENTS_PER_ROUND}",
    ]
    usual = measure_round(tmp_path, "fedau", FEW, *words, "engine.concurrency=100")
    free = measure_round(tmp_path, "fedau", MANY, *words, "engine.concurrency=100")
    under_way = measure_round(tmp_path, "fedau", MANY, *words, "engine.concurrency=4000")
    # A loop over the other clients would run 3,900 lines or more; a few models differ.
    for cost in (free, under_way):
        assert cost.calls < usual.calls + 2_000
        assert cost.lines < usual.lines + 3_000


def test_records_list_the_selected_clients(tmp_path: Path) -> None:
    """The records have a row for each round and selected client, and nothing about the others."""
    options = Namespace(rounds=ROUNDS, engine="in-process", word=[])
    job = build_job(tmp_path, "fedau", FEW, options)
    run_in_process(compose_overrides(get_overrides(job)), job["records"])
    records = Path(job["records"])
    rows = sum(pq.read_metadata(file).num_rows for file in (records / "clients").iterdir())
    assert rows == ROUNDS * CLIENTS_PER_ROUND
    manifest = json.loads((records / "manifest.json").read_text())
    # Data of at most 1,000 clients has a fingerprint of each, in the manifest and the checkpoint.
    del manifest["data"]["fingerprint"]["by_client"]
    texts = [(records / name).read_text() for name in ("rounds.jsonl", "config.yaml")]
    assert all(len(text) < 30 * FEW for text in (json.dumps(manifest), *texts))
    admitted = manifest["summary"]["admitted_rounds"]
    assert len(admitted) <= ROUNDS * CLIENTS_PER_ROUND
