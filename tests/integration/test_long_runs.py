"""Long runs: as quick in the end as in the beginning, in as much memory, and with few files.

docs/reliability.md reports ``pytest tests/integration/test_long_runs.py -s --long``.
"""

import itertools
import json
import math
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from fedquorum.audit.check import audit_run
from fedquorum.records.reader import load_run
from fedquorum.records.run_dir import read_manifest_or_empty
from fedquorum.records.tables import MIN_FILE_ROWS

from tests.builders_runs import read_rows
from tests.cases import is_long
from tests.integration.conftest import BIN, wait_for
from tests.integration.deployed import Deployment, find_descendants, start_deployment
from tests.integration.measured import (
    MEGABYTE,
    Block,
    Run,
    Sample,
    Usage,
    compare_first_and_last,
    split_blocks,
    watch_run,
)

BLOCKS = 20 if is_long() else 10
# Work that a round repeats for each earlier one makes the last third of a run five times the first.
# The pace does not take all noise of a busy machine away: blocks of one run differed by 1.5, the
# medians of its thirds by 1.1.
SLOWER = 1.5
# Over 20,000 rounds that is 2.4 kB a round, and one model here has 2.4 kB.
KEPT_BYTES = (48 if is_long() else 16) * MEGABYTE
BYTES_A_ROUND = 3000
BYTES_A_FILE = 20_000  # of a file of a table, 10,000 say what its columns are
# Of two tables with at most 10 rows a round, and 12 others.
FILES = 2 * (10 * (20_000 if is_long() else 400) // MIN_FILE_ROWS + 1) + 12

OF_ALL = (
    *("data.num_clients=10", "data.num_priority=5", "data.sizes=equal"),
    *("data.samples_per_client=30", "client.local_epochs=1", "availability.p=0.5"),
    "evaluation.every=10",
)
RUNS = {
    "fedau": ("rounds=20000", "strategy=fedau", "availability=bernoulli"),
    "fedalign": ("rounds=4000", "strategy=fedalign", "availability=bernoulli"),
    "aaggff_d": ("rounds=4000", "strategy=aaggff_d", "availability=markov"),
}
SHORT = ("rounds=400", "engine.checkpoint_every=10")


def check(found: list[Block], total: int) -> None:
    """Refuse a run that slowed down, grew, or left too much behind."""
    # Other processes only add to a block's work, so the least of a third has the least of them.
    before, after = compare_first_and_last(found, lambda block: block.work, min)
    assert after < SLOWER * before, "a round takes longer and longer"
    before, after = compare_first_and_last(found, lambda block: block.resident)
    assert after - before < KEPT_BYTES, "the process grows"
    assert max(block.files for block in found) <= FILES, "there are more and more files"
    most = BYTES_A_ROUND * total + BYTES_A_FILE * found[-1].files
    assert found[-1].size < most, "the files are too large"


def made(work: float = 0.0, kept: int = 0, files: float = 0.0) -> list[Block]:
    """Return the blocks of 1,000 rounds that take more from one to the next."""
    first = Sample(0, Usage(0.0, 10**9), 10, 0, 1e-3)
    samples = [first]
    for number in range(1, 1001):
        cpu = samples[-1].usage.cpu + 0.005 + work * number
        usage = Usage(cpu, first.usage.resident + kept * number)
        samples.append(Sample(number, usage, round(10 + files * number), 900 * number, 1e-3))
    return split_blocks(samples, 10)


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        (made(work=1e-5), "longer and longer"),
        (made(kept=100_000), "grows"),
        (made(files=0.5), "more and more files"),
        ([replace(block, size=5000 * block.last) for block in made()], "too large"),
    ],
    ids=["slower", "memory", "files", "bytes"],
)
def test_what_a_long_run_must_not_do_is_noticed(found: list[Block], problem: str) -> None:
    """Each of it by itself; without any of it there is nothing to notice."""
    with pytest.raises(AssertionError, match=problem):
        check(found, 1000)
    check(made(), 1000)


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS if is_long() else ["fedau"])
def test_a_long_run_in_process(tmp_path: Path, name: str) -> None:
    """The processor's time for a round, memory, files: the last rounds are as the first."""
    directory = tmp_path / "run"
    words = (*OF_ALL, *RUNS[name], *(() if is_long() else SHORT), f"hydra.run.dir={directory}")
    with (tmp_path / "log").open("wb") as log:
        command = [str(BIN / "fedquorum"), *words]
        with subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=log) as process:
            try:
                samples = watch_run(process, Run(directory), 0.25 if is_long() else 0.1)
            finally:
                process.kill()
    assert process.returncode == 0, (tmp_path / "log").read_text()[-2000:]
    found = split_blocks(samples, BLOCKS)
    print(f"\n{name}: round, time of a processor a round, memory, files", *found, sep="\n")
    total = load_run(directory).rounds[-1].round
    assert json.loads((directory / "manifest.json").read_text())["rounds_completed"] == total
    check(found, total)


# --- real processes ----------------------------------------------------------------------------

ROUNDS = 2000
CLIENTS = 4
NODE = Path(__file__).parent / "quick_supernode.py"
EVERY = 60.0  # seconds from one node that goes to the next
# Seconds until it is started again: one that was killed is turned away until Flower has noticed.
AWAY = {signal.SIGTERM: 10.0, signal.SIGKILL: 65.0}
DEPLOYED = (
    f"rounds={ROUNDS} evaluation.every={ROUNDS} strategy=fedau strategy.cutoff=50 "
    f"strategy.fraction=0.25 data=synth data.num_clients={CLIENTS} data.num_priority=1 "
    "data.sizes=equal data.samples_per_client=30 client.local_epochs=1 "
    "engine.quorum=1 engine.round_timeout=30 engine.startup_clients=2"
)


@dataclass
class Restless:
    """Nodes of which one after the other is stopped or killed, and is started again later."""

    made: Deployment
    gone: Counter[signal.Signals] = field(default_factory=Counter)
    _rng: random.Random = field(default_factory=lambda: random.Random(1))
    _next: float = math.inf
    _back: dict[int, float] = field(default_factory=dict)

    def start(self) -> None:
        """Start all of them, with keys that the SuperLink knows."""
        self.made.register_clients([_name(client) for client in range(CLIENTS)])
        for client in range(CLIENTS):
            self._start(client)
        self._kinds: Iterator[signal.Signals] = itertools.cycle(AWAY)
        self._next = time.monotonic() + EVERY

    def look(self) -> None:
        """Let one go if it is time, and start those again that have been away for long enough."""
        now = time.monotonic()
        here = [k for k in range(CLIENTS) if self.made.processes[_name(k)].poll() is None]
        for client in set(range(CLIENTS)) - set(here):
            if now > self._back.setdefault(client, now + AWAY[signal.SIGTERM]):
                self._start(client)
        if now > self._next and len(here) > CLIENTS // 2:
            client, kind = self._rng.choice(here), next(self._kinds)
            self.made.send_signal(_name(client), kind)
            self.gone[kind] += 1
            self._back[client] = now + AWAY[kind]
            self._next = now + EVERY

    def _start(self, client: int) -> None:
        self._back.pop(client, None)
        self.made.start_script(_name(client), NODE, f"client-id={client}", "--isolation", "process")


def _name(client: int) -> str:
    return f"node-{client}"


def _server_of(superlink: int) -> int | None:
    """Return the process of the ServerApp, which is below the SuperLink."""
    for pid in find_descendants(superlink):
        if b"flwr-serverapp" in Path(f"/proc/{pid}/cmdline").read_bytes():
            return pid
    return None


@pytest.mark.slow
@pytest.mark.flower
@pytest.mark.skipif(not is_long(), reason="only with --long")
def test_a_long_run_on_nodes_that_come_and_go(tmp_path: Path) -> None:
    """SuperLink and nodes are processes of their own; the server's is as in the first rounds.

    The nodes speak with the SuperLink as Flower's do, but have no process for every message.
    """
    of_app: list[Sample] = []
    of_link: list[Sample] = []
    with start_deployment(tmp_path) as made:
        nodes = Restless(made)
        nodes.start()
        run = Run(tmp_path / "run")
        submitted = made.run("run", f"{DEPLOYED} engine.node_keys={made.nodes}", "--format", "json")
        assert json.loads(submitted.stdout)["success"], submitted.stdout + submitted.stderr
        wait_for("the run begins", lambda: run.count_rounds() > 0, 300)
        superlink = made.processes["superlink"].pid
        server = _server_of(superlink)
        assert server is not None
        while read_manifest_or_empty(run.directory)["status"] == "running":
            time.sleep(1)
            nodes.look()
            for pid, folder, samples in (
                (server, run.directory, of_app),
                (superlink, tmp_path / "state", of_link),
            ):
                if sample := run.sample(pid, folder):
                    samples.append(sample)

    assert read_manifest_or_empty(run.directory)["status"] == "completed"
    lines = load_run(run.directory).rounds
    assert [line.round for line in lines] == [*range(1, ROUNDS + 1)]
    rows = read_rows(run.directory)
    statuses = Counter(row["status"] for row in rows)
    print(f"\n{nodes.gone}, {statuses}")
    for name, samples in (("the ServerApp", of_app), ("the SuperLink", of_link)):
        print(f"{name}: round, time of a processor a round, memory, files")
        print(*split_blocks(samples, BLOCKS), sep="\n")
    assert min(nodes.gone[kind] for kind in AWAY) > 0
    assert statuses.keys() >= {"trained", "unavailable", "failed"}
    assert all(row["reason"] for row in rows if row["status"] in ("unavailable", "failed"))
    for part in (rows[: len(rows) // 4], rows[-len(rows) // 4 :]):
        assert {row["client"] for row in part if row["status"] == "trained"} == {*range(CLIENTS)}
    assert not audit_run(run.directory).mismatches
    check(split_blocks(of_app, BLOCKS), ROUNDS)
