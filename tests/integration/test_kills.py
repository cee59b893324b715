"""``kill -9`` at random moments: nothing is torn, nothing doubled, little is lost.

docs/reliability.md reports ``FEDQUORUM_KILLS=50 pytest tests/integration/test_kills.py -s``.
"""

import json
import os
import random
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from fedquorum.records.checkpoint import CheckpointStore

from conf.compose import compose_overrides
from server_app.runs.job import run_in_process
from tests.cases import is_long
from tests.integration.conftest import assert_same_run, get_forks

KILLS = int(os.environ.get("FEDQUORUM_KILLS", "6" if is_long() else "3"))
EVERY = 5
WORDS = (
    "strategy=fedvarp",
    "availability=markov",
    "availability.p=0.5",
    "rounds=30",
    f"engine.checkpoint_every={EVERY}",
    "data.sizes=equal",
    "data.samples_per_client=60",
    "client.local_epochs=1",
)


def start_run(directory: Path) -> BaseProcess:
    """Start the run, or resume it, in a separate process."""
    going_on = (directory / "manifest.json").exists()
    words = (*WORDS, f"resume={directory}") if going_on else WORDS
    process = get_forks().Process(
        target=run_in_process, args=(compose_overrides(words), str(directory)), daemon=True
    )
    process.start()
    return process


def read_complete_lines(directory: Path) -> list[int]:
    """Return the rounds recorded; only what follows the last line may be torn."""
    path = directory / "rounds.jsonl"
    *lines, _ = path.read_text().split("\n") if path.exists() else [""]
    return [json.loads(line)["round"] for line in lines]


def list_rounds_of_table(directory: Path, table: str) -> list[tuple[int, int]]:
    """Return the rounds in the table; an existing part is complete."""
    if not list((directory / table).glob("*.parquet")):
        return []
    rows = pq.read_table(directory / table, columns=["round", "client"]).to_pylist()
    return [(row["round"], row["client"]) for row in rows]


@pytest.mark.slow
def test_killed_at_random_moments(tmp_path: Path) -> None:
    """Always resumable, at most ``checkpoint_every`` rounds lost, at the end bit-identical."""
    usual = 0.0
    for name in ("first", "whole"):  # the first also starts the server that the others come from
        start = time.monotonic()
        process = start_run(tmp_path / name)
        process.join()
        assert process.exitcode == 0
        usual = time.monotonic() - start
    whole = tmp_path / "whole"
    rng = random.Random(20)
    kills = lost = most = runs = 0
    killed_after: list[int] = []
    while kills < KILLS:
        runs += 1
        directory = tmp_path / str(runs)
        while True:
            process = start_run(directory)
            # A machine that has become slower would otherwise kill the last run again and again.
            process.join(rng.uniform(0.0, usual) if kills < KILLS else None)
            if process.exitcode is not None:
                assert process.exitcode == 0
                break
            process.kill()
            process.join()
            kills += 1
            done = read_complete_lines(directory)
            assert done == list(range(1, len(done) + 1))
            for table in ("clients", "evaluations"):
                rows = list_rounds_of_table(directory, table)
                assert len(rows) == len(set(rows))
                assert {server_round for server_round, _ in rows} <= set(range(1, len(done) + 2))
            found = CheckpointStore(directory).find_newest().checkpoint
            kept = 0 if found is None else found.server_round
            assert 0 <= len(done) - kept <= EVERY
            killed_after.append(len(done))
            lost += len(done) - kept
            most = max(most, len(done) - kept)
        assert_same_run(whole, directory)
    print(
        f"\n{kills} kills in {runs} runs of 30 rounds, after {min(killed_after)} to "
        f"{max(killed_after)} rounds; all resumed, bit-identical at the end; rounds to repeat: "
        f"{lost} in all, at most {most} after one kill"
    )
