"""Nodes that die, hang, join late and return: the run completes, and the records show it."""

import json
import math
import re
import signal
import socket
import time
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fedquorum.audit.check import audit_run
from fedquorum.records.checkpoint import CheckpointStore
from fedquorum.records.runner import Runner
from fedquorum.registry import NAMED_STRATEGIES
from safetensors.numpy import load_file

from tests.builders import NEEDED_WORDS
from tests.builders_flower import ScriptedGrid
from tests.builders_runs import make_client_overrides, read_lines, read_rows, run_here
from tests.cases import is_long
from tests.integration.conftest import BIN, wait_for
from tests.integration.deployed import (
    Cable,
    Deployment,
    assert_same_run,
    is_reason_of_lost_node,
    start_deployment,
)

FAST = (
    "rounds=12",
    *make_client_overrides(4, 2),
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


def with_grid(monkeypatch: pytest.MonkeyPatch, **script: Any) -> None:
    """Have runs in process made on a scripted grid, which knows the round."""
    import_module("server_app.runs.loop")  # with the real grid's class
    play = Runner.run_round

    def in_round(runner: Any, server_round: int) -> None:
        runner.grid.inner.server_round = server_round
        play(runner, server_round)

    monkeypatch.setattr(Runner, "run_round", in_round)
    monkeypatch.setattr(
        "server_app.engines.in_process.InProcessGrid", partial(ScriptedGrid, **script)
    )


@pytest.mark.parametrize("strategy", sorted({*NAMED_STRATEGIES, "composed"}))
def test_every_strategy_under_faults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    """Late, slow, dead and returning nodes are in the trail, and the model stays finite."""
    with_grid(monkeypatch, away=AWAY, mute=MUTE)
    words: tuple[str, ...] = (*FAST, f"strategy={strategy}", *NEEDED_WORDS.get(strategy, ()))
    if strategy == "known_statistics":
        words = (*words, "strategy.probabilities=[0.5,0.5,0.5,0.5]")
    run_here(tmp_path, *words)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert (manifest["status"], manifest["rounds_completed"]) == ("completed", 12)
    rows = {(row["round"], row["client"]): row for row in read_rows(tmp_path)}
    asked = {client for _, client in rows}
    for (server_round, client), row in rows.items():
        node = client + 1
        if node in AWAY.get(server_round, set()):
            assert (row["status"], row["reason"]) == ("unavailable", "its node is not connected")
        elif node in MUTE.get(server_round, set()):
            assert (row["status"], row["reason"]) == ("failed", "no reply in time")
        else:
            assert row["status"] in ("trained", "declined", "rejected")
    assert {row["status"] for row in rows.values()} >= {"trained", "unavailable", "failed"}
    lines = read_lines(tmp_path)
    for line in lines:
        counts = ("trained", "declined", "unavailable", "rejected", "failed")
        assert sum(line[key] for key in counts) == line["selected"]
        if line["round"] in (7, 8, 11):
            assert line["admitted"] == line["trained"] == 0
    if len(asked) == 4:  # not with the priority clients alone
        assert rows[4, 3]["status"] == "unavailable"
        assert rows[5, 3]["status"] in ("trained", "declined", "rejected")
    model = load_file(tmp_path / "model.safetensors")
    assert all(np.isfinite(array).all() for array in model.values())


def test_a_client_that_misses_an_evaluation_counts_with_its_last_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counts so if a quorum closes an evaluation; the records name the client."""
    with_grid(monkeypatch, mute={3: {2}, 4: {2}})  # client 1, which has priority

    def lines(name: str, *words: str) -> list[dict[str, Any]]:
        given = (*FAST, "strategy=fedalign", "strategy.epsilon=0.5", "rounds=6", *words)
        run_here(tmp_path / name, *given)
        return read_lines(tmp_path / name)

    with_quorum = lines("quorum", "engine.quorum=0.5")
    assert [line["stale_clients"] for line in with_quorum] == [[], [], [], [1], [1], []]
    assert all(math.isfinite(line["global_loss"]) for line in with_quorum)
    assert not audit_run(tmp_path / "quorum").mismatches
    rows = read_rows(tmp_path / "quorum", "evaluations")
    lost = {row["client"]: row for row in rows if row["round"] == 2}
    here = {row["client"]: row for row in rows if row["round"] == 3}
    assert 1 not in here
    parts = [here[0], lost[1]]
    total = sum(part["num_examples"] for part in parts)
    mean = sum(part["num_examples"] / total * part["loss"] for part in parts)
    assert with_quorum[3]["global_loss"] == pytest.approx(mean, rel=1e-12)
    assert [line["unmeasured"] for line in with_quorum] == [[]] * 6
    # Without a quorum, F is of those that answered, and the records name who did not.
    without = lines("all")
    assert [line["stale_clients"] for line in without] == [[]] * 6
    assert [line["unmeasured"] for line in without] == [[], [], [], [1], [1], []]
    assert not audit_run(tmp_path / "all").mismatches
    assert without[3]["global_loss"] == pytest.approx(here[0]["loss"], rel=1e-12)
    # What stands in is in the checkpoints.
    lines("resumed", "engine.quorum=0.5", "rounds=3", "engine.checkpoint_every=1")
    words = (f"resume={tmp_path / 'resumed'}", "rounds=6", "engine.quorum=0.5")
    run_here(tmp_path / "resumed", *FAST, "strategy=fedalign", "strategy.epsilon=0.5", *words)
    found = read_lines(tmp_path / "resumed")
    assert [line["global_loss"] for line in found] == [line["global_loss"] for line in with_quorum]
    assert [line["stale_clients"] for line in found] == [
        line["stale_clients"] for line in with_quorum
    ]


# --- real processes ----------------------------------------------------------------------------

RESTART = 10.0  # seconds, RestartSec of deploy/supernode@.service
GUARD = 300.0  # seconds; what is waited for takes two minutes at most, also under load
NAMES = ("node-0", "node-1", "node-2")
OF_RUN = (
    *("data=synth", "data.num_clients=3", "data.num_priority=1", "data.sizes=equal"),
    *("strategy=fedau", "client.local_epochs=1"),
)
UNKNOWN_YET = " has not said yet which clients it hosts"

Faults = Mapping[int, Callable[[], None]]
"""What to do to nodes, by client."""


def call(port: int) -> socket.socket:
    """Connect to a port of this machine."""
    return socket.create_connection(("127.0.0.1", port), timeout=GUARD)


def test_the_cable() -> None:
    """Both ways; while it is cut connections are reset, and when nobody is behind it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(GUARD)
        with Cable(server.getsockname()[1]) as cable:
            with call(cable.port) as near, server.accept()[0] as far:
                near.sendall(b"one")
                assert far.recv(9) == b"one"
                far.sendall(b"two")
                assert near.recv(9) == b"two"
                cable.cut()
                for end in (near, far):
                    with pytest.raises(ConnectionResetError):
                        end.recv(9)
            with pytest.raises(ConnectionResetError), call(cable.port) as near:
                near.recv(9)
            cable.mend()
            with call(cable.port) as near:
                with server.accept()[0] as far:
                    far.sendall(b"three")
                assert [near.recv(9), near.recv(9)] == [b"three", b""]
            server.close()
            with pytest.raises(ConnectionResetError), call(cable.port) as near:
                near.recv(9)


class Nodes:
    """Three nodes, started again when they end, as deploy/supernode@.service does.

    Flower refuses a key as long as it takes the node for connected, and a node may end by itself:
    where a connection breaks while it is made, Flower takes the certificate for a wrong one.

    Client 2's node reaches the SuperLink through a cable that can be cut.
    """

    def __init__(self, made: Deployment, cable: Cable) -> None:
        self.made = made
        self.restarts = 0
        self._cable = cable
        self._ended: dict[int, float] = {}

    def start(self, client: int) -> None:
        port = self._cable.port if client == 2 else None
        self.made.start_node(NAMES[client], client, port=port)

    def signal(self, client: int, number: signal.Signals) -> None:
        self.made.send_signal(NAMES[client], number)

    def kill(self, client: int) -> None:
        assert self.made.processes[NAMES[client]].poll() is None
        self.signal(client, signal.SIGKILL)

    def restart(self) -> None:
        """Start those again that ended some time ago."""
        for client, name in enumerate(NAMES):
            process = self.made.processes.get(name)
            if process is not None and process.poll() is not None:
                ended = self._ended.setdefault(process.pid, time.monotonic())
                if time.monotonic() - ended > RESTART:
                    self.start(client)
                    self.restarts += 1


class RealRun:
    """A run of three clients on real nodes, watched by what it and they write down."""

    def __init__(self, made: Deployment, name: str, words: str) -> None:
        self.directory = made.folder / name
        self._made = made
        words += f" {' '.join(OF_RUN)} engine.node_keys={made.nodes}"
        submitted = made.run(name, words, "--format", "json")
        submission = json.loads(submitted.stdout)
        assert submission["success"], submitted.stdout + submitted.stderr
        self.id = str(submission["run-id"])

    def manifest(self) -> dict[str, Any]:
        """Return the run's manifest."""
        manifest: dict[str, Any] = json.loads((self.directory / "manifest.json").read_text())
        return manifest

    def rounds(self) -> list[dict[str, Any]]:
        """Return the rounds that are over."""
        path = self.directory / "rounds.jsonl"
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text.split("\n")[:-1]]

    def read_statuses(self) -> dict[tuple[int, int], str]:
        """Return the clients' statuses, by round and client."""
        rows = read_rows(self.directory)
        for row in rows:
            reason = row["reason"]
            if row["status"] == "failed":
                assert is_reason_of_lost_node(reason)
            else:
                assert row["status"] in ("trained", "unavailable")
                away = reason == "its node is not connected" or (reason or "").endswith(UNKNOWN_YET)
                assert away if row["status"] == "unavailable" else reason is None
        became = {(row["round"], row["client"]): str(row["status"]) for row in rows}
        assert len(rows) == len(became) == 3 * len(self.rounds())
        return became

    def in_training(self, client: int) -> int:
        """Return the round in which a node trains at the moment, 0 if it does not."""
        log = self._made.log(NAMES[client])
        printed = log.read_text(errors="replace") if log.exists() else ""
        parts = re.split(rf"\[RUN {self.id}, ROUND train (\d+)\]", printed)
        trains = "Receiving: " in parts[-1] and "Start `flwr-clientapp` process" in parts[-1]
        return int(parts[-2]) if trains and len(parts) > 1 else 0

    def while_they_train(self, do: Faults, after: int = 0) -> dict[int, int]:
        """Do something as soon as a client's node trains, in a round after ``after``.

        Returns the rounds by client. Each is done by itself: a node waits up to 3 s for its
        message, and another may have trained by then.
        """
        done: dict[int, int] = {}

        def all_done() -> bool:
            for client in do.keys() - done.keys():
                server_round = self.in_training(client)
                if server_round > after:
                    do[client]()
                    done[client] = server_round
            return done.keys() == do.keys()

        wait_for(f"{sorted(do)} train in a round after {after}", all_done, GUARD)
        return done

    def all_trained(self, nodes: Nodes) -> int:
        """Wait for a round in which all three train; return it."""
        before = len(self.rounds())

        def found() -> list[int]:
            return [line["round"] for line in self.rounds()[before:] if line["trained"] == 3]

        def all_trained() -> bool:
            nodes.restart()
            return bool(found())

        wait_for("all three train", all_trained, GUARD)
        return found()[0]

    def has_ended(self) -> bool:
        return bool(self.manifest()["status"] != "running")

    def stop(self) -> None:
        """Stop it by Flower's command, and wait for its records."""
        stopped = self._made.run_flwr("stop", self.id, "deployment")
        assert stopped.status == 0, stopped.stdout + stopped.stderr
        wait_for("the end", self.has_ended, GUARD)

    def print_rounds(self) -> None:
        """Print the statuses of all rounds, for ``pytest -s``."""
        for line in self.rounds():
            print(
                [
                    line[key]
                    for key in ("round", "trained", "failed", "unavailable", "duration_seconds")
                ]
            )


@pytest.mark.slow
@pytest.mark.flower
def test_real_nodes_under_faults(tmp_path: Path) -> None:
    """One joins late; one is killed while it trains, one cut off for a round; both come back.

    With ``--long`` the killed one knocks until it is let in; then one is too slow, and all die.
    """
    with start_deployment(tmp_path) as made, Cable(made.port) as cable:
        nodes = Nodes(made, cable)
        made.register_clients(NAMES)
        nodes.start(0)
        nodes.start(1)
        # However slow this machine is, no node is: rounds end because Flower notices who is gone.
        # Nothing is measured, so that a round is one process on each node.
        words = "rounds=1000 evaluation.every=1000 engine.checkpoint_every=1 "
        words += "engine.startup_clients=2 engine.round_timeout=120"
        run = RealRun(made, "run", words)
        run.while_they_train({0: partial(nodes.start, 2)})
        together = run.all_trained(nodes)
        faults: Faults = {1: partial(nodes.kill, 1), 2: cable.cut}
        broken = run.while_they_train(faults, after=together)

        def over() -> bool:
            if is_long():
                nodes.restart()
            return len(run.rounds()) >= max(broken.values())

        wait_for("the round is over", over, GUARD)
        cable.mend()
        if not is_long():  # Flower has noticed, and lets it in
            nodes.start(1)
        back = run.all_trained(nodes)
        run.stop()
        run.print_rounds()
        print(f"started again {nodes.restarts} times")
        if is_long():
            too_slow_and_then_dead(nodes)

    manifest, became = run.manifest(), run.read_statuses()
    assert manifest["status"] == "interrupted"
    assert manifest["rounds_completed"] == len(run.rounds()) >= back > max(broken.values())
    assert [became[1, client] for client in range(3)] == ["trained", "trained", "unavailable"]
    for server_round in (together, back):
        assert [became[server_round, client] for client in range(3)] == ["trained"] * 3
    assert {client: became[n, client] for client, n in broken.items()} == {1: "failed", 2: "failed"}
    assert {became[n, 0] for n in range(1, len(run.rounds()) + 1)} == {"trained"}
    newest = CheckpointStore(run.directory).find_newest().checkpoint
    assert newest is not None
    assert len(run.rounds()) - newest.server_round in (0, 1)  # it may end between the two
    assert all(np.isfinite(array).all() for array in newest.model.values())


def too_slow_and_then_dead(nodes: Nodes) -> None:
    """Freeze one beyond the timeout of a round, then kill all; the run continues and ends.

    The timeout is shorter than what Flower needs to notice anything.
    """
    rounds = 20
    words = f"rounds={rounds} evaluation.every={rounds} engine.startup_clients=3"
    run = RealRun(nodes.made, "dying", f"{words} engine.round_timeout=20")
    run.while_they_train({0: partial(nodes.signal, 0, signal.SIGSTOP)})
    wait_for("the slow one is missed", lambda: bool(run.rounds()), GUARD)
    nodes.signal(0, signal.SIGCONT)
    killed = run.while_they_train({c: partial(nodes.kill, c) for c in (1, 2)}, after=1)
    nodes.kill(0)
    wait_for("the end", run.has_ended, GUARD)
    run.print_rounds()
    manifest, became, lines = run.manifest(), run.read_statuses(), run.rounds()
    assert (manifest["status"], manifest["rounds_completed"]) == ("completed", rounds)
    assert became[1, 0] == "failed"
    assert {became[server_round, client] for client, server_round in killed.items()} == {"failed"}
    assert [became[rounds, client] for client in range(3)] == ["unavailable"] * 3
    assert manifest["summary"]["empty_rounds"] == sum(line["trained"] == 0 for line in lines) > 0
    model = load_file(run.directory / "model.safetensors")
    assert all(np.isfinite(array).all() for array in model.values())


@pytest.mark.slow
@pytest.mark.flower
@pytest.mark.skipif(not is_long(), reason="only with --long")
@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGKILL], ids=lambda number: str(number.name)
)
def test_a_superlink_that_is_started_again(tmp_path: Path, number: signal.Signals) -> None:
    """During a run: no recorded round is lost, nodes return, and ``resume`` continues."""
    settings = "rounds=5 evaluation.every=1 engine.checkpoint_every=1"
    with start_deployment(tmp_path) as made, Cable(made.port) as cable:
        nodes = Nodes(made, cable)
        made.register_clients(NAMES)
        for client in range(len(NAMES)):
            nodes.start(client)
        run = RealRun(made, "run", f"{settings} engine.startup_timeout=120")
        wait_for("two rounds", lambda: len(run.rounds()) > 1, GUARD)
        run.while_they_train({0: partial(made.stop_superlink, number)}, after=2)
        ended, recorded = run.manifest(), (run.directory / "rounds.jsonl").read_bytes()
        made.start_superlink()
        words = (f"resume={run.directory}", "engine=flower", "engine.superlink=deployment")
        resumed = made.start("resumed", [str(BIN / "fedquorum"), *words])

        def over() -> bool:
            nodes.restart()
            return resumed.poll() is not None

        wait_for("the resumed run ends", over, GUARD)
        assert resumed.returncode == 0
        listed = made.run_flwr("list", "deployment", "--format", "json").stdout
        statuses = {each["run-id"]: each["status"] for each in json.loads(listed)["runs"]}
        print(f"{number.name}: {ended['status']}, to Flower {statuses[run.id]}")
        print(f"nodes started again {nodes.restarts} times")
    assert statuses.pop(run.id) == "finished:failed"
    assert [*statuses.values()] == ["finished:completed"]
    assert ended["status"] == ("running" if number == signal.SIGKILL else "interrupted")
    assert (run.directory / "rounds.jsonl").read_bytes().startswith(recorded)
    assert recorded.count(b"\n") >= 2
    simulated = ("experiment=custom", *settings.split(), *OF_RUN)
    assert_same_run(run.directory, run_here(tmp_path / "simulated", *simulated))
