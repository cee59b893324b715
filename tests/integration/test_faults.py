"""Nodes that die, hang, join late and come back: the run goes on and ends, and the records tell."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from flwr.app import Message, MessageType
from safetensors.numpy import load_file

import server_app.command_line
import server_app.in_process
import server_app.loop
from conf.compose import compose_words
from server_app.build import STRATEGIES
from server_app.in_process import InProcessGrid
from server_app.job import run_in_process
from tests.integration.conftest import BIN, ROOT, Shell, free_port

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


class FaultyGrid(InProcessGrid):
    """Nodes of which some are away or do not answer in time, by the tables above."""

    server_round = 1

    def get_node_ids(self) -> Iterable[int]:
        return [n for n in super().get_node_ids() if n not in AWAY.get(self.server_round, set())]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        mute = MUTE.get(self.server_round, set())
        return [
            answer
            for answer in super().pull_messages(message_ids)
            if answer.metadata.message_type == MessageType.QUERY
            or answer.metadata.src_node_id not in mute
        ]


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_every_strategy_under_faults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    """Late, slow, dead, all dead, back again: each is in the trail, and the model stays finite."""
    play = server_app.loop._round

    def in_round(parts: Any, arrays: Any, server_round: int, previous: Any) -> Any:
        parts.grid.server_round = server_round
        return play(parts, arrays, server_round, previous)

    monkeypatch.setattr("server_app.loop._round", in_round)
    monkeypatch.setattr("server_app.in_process.InProcessGrid", FaultyGrid)
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


# --- real processes ----------------------------------------------------------------------------


class Machines:
    """A SuperLink and SuperNodes on loopback, every process known by its id."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        (folder / "home").mkdir()
        (folder / "home" / "config.toml").write_text(
            f'[superlink]\ndefault = "faults"\n\n[superlink.faults]\n'
            f'address = "127.0.0.1:{self.port}"\ninsecure = true\n'
        )
        self.env = {
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "FLWR_HOME": str(folder / "home"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
        }
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, *command: str, home: str = "home") -> subprocess.Popen[bytes]:
        with (self.folder / f"{len(self.processes)}.log").open("wb") as log:
            process = subprocess.Popen(
                [str(BIN / command[0]), *command[1:]],
                cwd=self.folder,
                env={**os.environ, **self.env, "FLWR_HOME": str(self.folder / home)},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def start_superlink(self) -> None:
        words = (
            "--insecure",
            "--port",
            str(self.port),
            "--disable-runtime-dependency-installation",
        )
        self.start("flower-superlink", *words)

    def start_node(self, client: int) -> subprocess.Popen[bytes]:
        words = ("--insecure", "--superlink", f"127.0.0.1:{self.port}", "--port", str(free_port()))
        config = ("--node-config", f"client-id={client}")
        return self.start("flower-supernode", *words, *config, home=f"node-{len(self.processes)}")

    def stop(self) -> None:
        for process in reversed(self.processes):
            send(process, signal.SIGKILL)
            process.wait(30)


def send(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Send a signal to a process that we started, and to its children."""
    with suppress(ProcessLookupError):  # its own session: its children and no others
        os.killpg(process.pid, number)


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    """Return machines that are all stopped at the end."""
    made = Machines(tmp_path)
    try:
        yield made
    finally:
        made.stop()


def counts(run: Path) -> list[dict[str, Any]]:
    path = run / "rounds.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.split("\n")[:-1]]


def wait_for(what: str, condition: Callable[[], bool], timeout: float = 240) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout:g} s: {what}"
        time.sleep(0.2)


@pytest.mark.slow
@pytest.mark.flower
def test_real_nodes_under_faults(machines: Machines) -> None:
    """SuperNodes join late, are killed while they train, freeze for 20 s, and are all killed."""
    run = machines.folder / "run"
    # Flower starts a process for every message; a node that needs longer is never in time.
    started = time.monotonic()
    Shell(ROOT)("python", "-c", "import client_app.app, torchmetrics")
    timeout = max(20.0, 5 * (time.monotonic() - started))
    machines.start_superlink()
    nodes = [machines.start_node(0), machines.start_node(1)]
    # Nothing is measured between the rounds: one process a round and node.
    words = "data=synth data.num_clients=3 data.num_priority=1 data.sizes=equal rounds=10 "
    words += "strategy=fedau evaluation.every=10 client.local_epochs=1 "
    words += f"engine.round_timeout={timeout} engine.startup_clients=2"
    config = f'overrides="{words}" output-dir="{run}"'
    command = ("flwr", "run", str(ROOT), "faults", "--format", "json", "--run-config", config)

    def submitted() -> bool:
        done = Shell(machines.folder, machines.env)(*command)
        with suppress(ValueError):  # it exits with 0 also where there is no SuperLink yet
            return bool(json.loads(done.stdout)["success"])
        return False

    wait_for("the SuperLink takes the run", submitted)

    wait = partial(wait_for, timeout=6 * timeout + 60)

    def last(key: str) -> int:
        lines = counts(run)
        return int(lines[-1][key]) if lines else -1

    wait("two train", lambda: last("trained") == 2)
    assert last("unavailable") == 1  # client 2 is not there
    nodes.append(machines.start_node(2))
    wait("the late one trains", lambda: last("trained") == 3)
    send(nodes[1], signal.SIGKILL)
    send(nodes[2], signal.SIGSTOP)  # what it is asked is lost on the way, as when a cable is out
    wait("both are missed", lambda: last("trained") == 1)
    send(nodes[2], signal.SIGCONT)  # one round's timeout later, at least 20 s
    wait("one is back", lambda: last("trained") == 2)
    for node in nodes:
        send(node, signal.SIGKILL)
    wait("empty rounds", lambda: last("trained") == 0)

    def ended() -> bool:
        return bool(json.loads((run / "manifest.json").read_text())["status"] != "running")

    wait("the end", ended)
    manifest = json.loads((run / "manifest.json").read_text())
    assert (manifest["status"], manifest["rounds_completed"]) == ("completed", 10)
    rows = pq.read_table(run / "clients").to_pylist()
    assert len(rows) == 3 * 10
    assert {row["status"] for row in rows} == {"trained", "unavailable", "failed"}
    assert all(row["reason"] for row in rows if row["status"] != "trained")
    assert manifest["summary"]["empty_rounds"] > 0
    assert all(np.isfinite(array).all() for array in load_file(run / "model.safetensors").values())
    for line in counts(run):
        print([line[key] for key in ("round", "trained", "failed", "unavailable", "seconds")])
    print({row["reason"] for row in rows})
