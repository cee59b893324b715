"""Nodes that die, hang, join late and come back: the run goes on and ends, and the records tell."""

import json
import math
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from fedquorum.audit.check import audit
from fedquorum.named import NAMED
from safetensors.numpy import load_file

import server_app.command_line
import server_app.in_process
import server_app.loop
from conf.compose import compose_words
from server_app.job import run_in_process
from tests.builders_flower import FaultyGrid
from tests.integration.conftest import ROOT, Shell, wait_for
from tests.integration.deployed import Cable, Deployment, deployed

FAST = (
    "rounds=12",
    "data.num_clients=4",
    "data.num_priority=2",
    "data.sizes=equal",
    "data.samples_per_client=30",
    "client.local_epochs=1",
    "engine.num_supernodes=4",
    "engine.startup_clients=3",
    "engine.startup_timeout=0.5",
)
# Which of the nodes 1 to 4 are not connected, and which do not answer, by round.
AWAY: Mapping[int, AbstractSet[int]] = {
    **dict.fromkeys(range(1, 5), frozenset({4})),  # joins at round 5
    **dict.fromkeys((7, 8), frozenset({1, 2, 3, 4})),  # all are lost
    9: frozenset({2, 3}),  # and come back one after the other
}
MUTE: Mapping[int, set[int]] = {
    3: {2},  # killed in the middle of training
    6: {1, 3},  # slower than the timeout
    11: {1, 2, 3, 4},  # all of them
}


class Faulty(FaultyGrid):
    """Nodes that are away and mute by the tables above."""

    away, mute = AWAY, MUTE


def with_grid(monkeypatch: pytest.MonkeyPatch, kind: type[FaultyGrid]) -> None:
    """Have runs in process made on such a grid, which knows the round."""
    play = server_app.loop._round

    def in_round(parts: Any, arrays: Any, server_round: int, previous: Any) -> Any:
        parts.grid.inner.server_round = server_round
        return play(parts, arrays, server_round, previous)

    monkeypatch.setattr("server_app.loop._round", in_round)
    monkeypatch.setattr("server_app.in_process.InProcessGrid", kind)


@pytest.mark.parametrize("strategy", sorted({*NAMED, "composed"}))
def test_every_strategy_under_faults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    """Late, slow, dead, all dead, back again: each is in the trail, and the model stays finite."""
    with_grid(monkeypatch, Faulty)
    words: tuple[str, ...] = (*FAST, f"strategy={strategy}")
    if strategy == "known_statistics":
        words = (*words, "strategy.probabilities=[0.5,0.5,0.5,0.5]")
    run_in_process(compose_words(words), str(tmp_path))
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert (manifest["status"], manifest["rounds_completed"]) == ("completed", 12)
    rows = {
        (row["round"], row["client"]): row
        for row in pq.read_table(tmp_path / "clients").to_pylist()
    }
    asked = {client for _, client in rows}
    for (server_round, client), row in rows.items():
        node = client + 1
        if node in AWAY.get(server_round, set()):
            assert (row["status"], row["reason"]) == ("unavailable", "its node is not connected")
        elif node in MUTE.get(server_round, set()):
            assert (row["status"], row["reason"]) == ("failed", "no reply in time")
        else:
            assert row["status"] in ("trained", "silent", "rejected")
    assert {row["status"] for row in rows.values()} >= {"trained", "unavailable", "failed"}
    lines = [json.loads(line) for line in (tmp_path / "rounds.jsonl").read_text().splitlines()]
    for line in lines:
        counts = ("trained", "silent", "unavailable", "rejected", "failed")
        assert sum(line[key] for key in counts) == line["asked"]
        if line["round"] in (7, 8, 11):
            assert line["admitted"] == line["trained"] == 0
    if len(asked) == 4:  # not with the priority clients alone
        assert rows[4, 3]["status"] == "unavailable"
        assert rows[5, 3]["status"] in ("trained", "silent", "rejected")
    model = load_file(tmp_path / "model.safetensors")
    assert all(np.isfinite(array).all() for array in model.values())


class Missing(FaultyGrid):
    """Client 1, which has priority, misses rounds 3 and 4."""

    mute: Mapping[int, set[int]] = {3: {2}, 4: {2}}


def test_who_misses_the_measuring_counts_with_the_last_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a quorum may close an evaluation; the records name the client, and the audit fits."""
    with_grid(monkeypatch, Missing)

    def lines(name: str, *words: str) -> list[dict[str, Any]]:
        given = (*FAST, "strategy=fedalign", "strategy.epsilon=0.5", "rounds=6", *words)
        run_in_process(compose_words(given), str(tmp_path / name))
        text = (tmp_path / name / "rounds.jsonl").read_text()
        return [json.loads(line) for line in text.splitlines()]

    with_quorum = lines("quorum", "engine.quorum=0.5")
    assert [line["stale"] for line in with_quorum] == [[], [], [], [1], [1], []]
    assert all(math.isfinite(line["global_loss"]) for line in with_quorum)
    assert not audit(tmp_path / "quorum").problems
    rows = pq.read_table(tmp_path / "quorum" / "evaluations").to_pylist()
    lost = {row["client"]: row for row in rows if row["round"] == 2}
    here = {row["client"]: row for row in rows if row["round"] == 3}
    assert 1 not in here
    parts = [here[0], lost[1]]
    total = sum(part["num_examples"] for part in parts)
    mean = sum(part["num_examples"] / total * part["loss"] for part in parts)
    assert with_quorum[3]["global_loss"] == pytest.approx(mean, rel=1e-12)
    # Without a quorum, F is of those that answered.
    without = lines("all")
    assert [line["stale"] for line in without] == [[]] * 6
    assert without[3]["global_loss"] == pytest.approx(here[0]["loss"], rel=1e-12)
    # What stands in is in the checkpoints.
    lines("resumed", "engine.quorum=0.5", "rounds=3", "engine.checkpoint_every=1")
    words = (f"resume={tmp_path / 'resumed'}", "rounds=6", "engine.quorum=0.5")
    run_in_process(compose_words((*FAST, "strategy=fedalign", "strategy.epsilon=0.5", *words)), "")
    text = (tmp_path / "resumed" / "rounds.jsonl").read_text()
    found = [json.loads(line) for line in text.splitlines()]
    assert [line["global_loss"] for line in found] == [line["global_loss"] for line in with_quorum]
    assert [line["stale"] for line in found] == [line["stale"] for line in with_quorum]


# --- real processes ----------------------------------------------------------------------------

CUT = 20.0  # seconds
RESTART = 10.0  # seconds, RestartSec of deploy/supernode@.service
NAMES = ("node-0", "node-1", "node-2")
ROUNDS = 30


class Faults:
    """Faults done to the nodes of a run, which is watched by what it writes down.

    Client 2's node reaches the SuperLink through a cable that can be cut.
    """

    def __init__(self, made: Deployment, timeout: float) -> None:
        self.made = made
        self.directory = made.folder / "run"
        self.cable = Cable(made.port)
        self.attempts = 0
        self._tried = -math.inf
        self._wait = partial(wait_for, timeout=6 * timeout + 60)

    def rounds(self) -> list[dict[str, Any]]:
        path = self.directory / "rounds.jsonl"
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text.split("\n")[:-1]]

    def join_late(self) -> int:
        """Start client 2's node in round 1; return the first round in which all three train."""
        self._wait_in_training(1, NAMES[:2])
        self.made.start_node("node-2", 2, port=self.cable.port)
        return self._wait_for_all()

    def kill_and_cut(self, server_round: int) -> None:
        """Kill a node while it trains, and cut another off, for a round and at least 20 s.

        Meanwhile the third is slower than the timeout of the next round.
        """
        self._wait_in_training(server_round, NAMES)
        self.made.signal("node-1", signal.SIGKILL)
        self.cable.cut()
        cut = time.monotonic()
        self._wait("two are missed", lambda: len(self.rounds()) == server_round)
        self.made.signal("node-0", signal.SIGSTOP)
        time.sleep(max(0.0, cut + CUT - time.monotonic()))
        self.cable.mend()
        self._wait("the slow one is missed", lambda: len(self.rounds()) == server_round + 1)
        self.made.signal("node-0", signal.SIGCONT)

    def come_back(self) -> int:
        """Start the killed one anew until it is let in; return the first round with all three.

        Flower refuses it as long as it has not noticed that it was gone.
        """
        return self._wait_for_all(self._restart)

    def kill_all(self, server_round: int) -> None:
        """Kill all nodes while they train, and wait for the end of the run."""
        self._wait_in_training(server_round, NAMES)
        for name in NAMES:
            assert self.made.processes[name].poll() is None
            self.made.signal(name, signal.SIGKILL)
        manifest = self.directory / "manifest.json"
        self._wait("the end", lambda: json.loads(manifest.read_text())["status"] != "running")

    def _restart(self) -> None:
        gone = self.made.processes["node-1"].poll() is not None
        if gone and time.monotonic() - self._tried > RESTART:
            self.made.start_node("node-1", 1)
            self.attempts, self._tried = self.attempts + 1, time.monotonic()

    def _wait_in_training(self, server_round: int, names: Sequence[str]) -> None:
        def started(name: str) -> bool:
            _, _, printed = self.made.log(name).read_text().partition(f"train {server_round}]")
            return "Start `flwr-clientapp` process" in printed

        self._wait(f"{names} train in round {server_round}", lambda: all(map(started, names)))

    def _wait_for_all(self, meanwhile: Callable[[], None] = lambda: None) -> int:
        def all_trained() -> bool:
            meanwhile()
            return any(line["trained"] == 3 for line in self.rounds()[before:])

        before = len(self.rounds())
        self._wait("all three train", all_trained)
        return int(next(line["round"] for line in self.rounds()[before:] if line["trained"] == 3))


@pytest.mark.slow
@pytest.mark.flower
def test_real_nodes_under_faults(tmp_path: Path) -> None:
    """SuperNodes join late, are killed, cut off for 20 s, too slow, come back, and all die."""
    # Flower starts a process for every message; a node that needs longer is never in time.
    started = time.monotonic()
    Shell(ROOT)("python", "-c", "import client_app.app")
    timeout = max(CUT, 5 * (time.monotonic() - started))
    with deployed(tmp_path) as made:
        made.register_clients(NAMES)
        made.start_node("node-0", 0)
        made.start_node("node-1", 1)
        # Nothing is measured between the rounds: one process a round and node.
        words = "data=synth data.num_clients=3 data.num_priority=1 data.sizes=equal strategy=fedau "
        words += f"rounds={ROUNDS} evaluation.every={ROUNDS} client.local_epochs=1 "
        words += f"engine.round_timeout={timeout} engine.startup_clients=2 "
        words += f"engine.nodes={made.nodes}"
        submitted = made.run("run", words, "--format", "json")
        assert json.loads(submitted.stdout)["success"], submitted.stdout + submitted.stderr
        faults = Faults(made, timeout)
        together = faults.join_late()
        faults.kill_and_cut(together + 1)
        back = faults.come_back()
        faults.kill_all(back + 1)
        faults.cable.cut()

    manifest = json.loads((faults.directory / "manifest.json").read_text())
    assert (manifest["status"], manifest["rounds_completed"]) == ("completed", ROUNDS)
    rows = pq.read_table(faults.directory / "clients").to_pylist()
    became = {(row["round"], row["client"]): row["status"] for row in rows}
    assert len(rows) == len(became) == 3 * ROUNDS
    # Flower may notice before the timeout that a node is gone, and then says so.
    gone = "Error: Node Unavailable — The destination node failed to report a heartbeat"
    for row in rows:
        reason = row["reason"]
        if row["status"] == "failed":
            assert reason == "no reply in time" or reason.startswith(gone)
        else:
            away = "its node is not connected"
            assert (row["status"], reason) in {("trained", None), ("unavailable", away)}
    assert set(became.values()) == {"trained", "failed", "unavailable"}
    of_round = [[became[n, client] for client in range(3)] for n in range(1, ROUNDS + 1)]
    assert of_round[0] == ["trained", "trained", "unavailable"]
    assert of_round[together - 1] == of_round[back - 1] == ["trained"] * 3
    assert of_round[together] == ["trained", "failed", "failed"]
    assert of_round[together + 1][0] == "failed"
    assert of_round[back] == ["failed"] * 3
    assert of_round[-1] == ["unavailable"] * 3
    lines = faults.rounds()
    assert manifest["summary"]["empty_rounds"] == sum(line["trained"] == 0 for line in lines)
    model = load_file(faults.directory / "model.safetensors")
    assert all(np.isfinite(array).all() for array in model.values())
    for line in lines:
        print([line[key] for key in ("round", "trained", "failed", "unavailable", "seconds")])
    print(f"timeout {timeout:.1f} s, {faults.attempts} attempts to start the killed one again")
