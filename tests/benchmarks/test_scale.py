"""What a round does and keeps does not grow with the clients that exist."""

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
from fedquorum.records.writer import RunWriter

from benchmarks.scale import CLIENTS_PER_ROUND, SCALE_STRATEGIES, build_job
from conf.compose import compose_overrides
from server_app.job import run_in_process

ROUNDS = 3
WARM = 3
FEW, MANY = 1_000, 10_000
BYTES = 100  # of arrays with numbers for each client, at the same time


class EndedEarlyError(Exception):
    """A run has shown what it was made for."""


@dataclass(frozen=True)
class Cost:
    """The calls of functions, of Python's and of C's, in a round, and the memory of another one.

    The memory is what is taken at the same time beyond what was there before, in bytes.
    """

    calls: int
    memory: int


def cost_of_a_round(folder: Path, strategy: str, clients: int) -> Cost:
    """Return what a round costs in the middle of a run."""
    calls, peak = 0, 0

    def count(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal calls
        calls += event in {"call", "c_call"}

    def note_peak(self: RunWriter, record: Any, *arguments: Any) -> None:
        nonlocal peak
        sys.setprofile(None)
        if tracemalloc.is_tracing():
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            raise EndedEarlyError
        written(self, record, *arguments)
        if record.round == WARM:
            sys.setprofile(count)
        elif record.round > WARM:
            gc.collect()
            tracemalloc.start()

    written = RunWriter.add_round
    options = Namespace(rounds=100, engine="in-process", word=["engine.checkpoint_every=null"])
    job = build_job(folder, strategy, clients, options)
    composed = compose_overrides(words_of(job))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunWriter, "add_round", note_peak)
        with pytest.raises(EndedEarlyError):
            run_in_process(composed, job["records"])
    return Cost(calls, peak)


def words_of(job: dict[str, Any]) -> tuple[str, ...]:
    """Return the settings of a run without Hydra's."""
    return tuple(word for word in job["words"] if not word.startswith("hydra."))


@pytest.mark.parametrize("strategy", SCALE_STRATEGIES)
def test_the_cost_of_a_round_depends_on_the_selected_clients(strategy: str, tmp_path: Path) -> None:
    """Ten times as many clients take no more calls, and memory for their arrays at most."""
    few, many = (cost_of_a_round(tmp_path, strategy, clients) for clients in (FEW, MANY))
    assert many.calls <= 1.05 * few.calls
    assert many.memory - few.memory <= BYTES * (MANY - FEW)


def test_records_list_the_selected_clients(tmp_path: Path) -> None:
    """A row for each client asked and round, and nothing of the others."""
    options = Namespace(rounds=ROUNDS, engine="in-process", word=[])
    job = build_job(tmp_path, "fedau", FEW, options)
    run_in_process(compose_overrides(words_of(job)), job["records"])
    records = Path(job["records"])
    rows = sum(pq.read_metadata(part).num_rows for part in (records / "clients").iterdir())
    assert rows == ROUNDS * CLIENTS_PER_ROUND
    for name in ("manifest.json", "rounds.jsonl", "config.yaml"):
        assert len((records / name).read_text()) < 30 * FEW
    admitted = json.loads((records / "manifest.json").read_text())["summary"]["admitted_rounds"]
    assert len(admitted) <= ROUNDS * CLIENTS_PER_ROUND
