"""A deployment on loopback: SuperLink and SuperNodes with TLS and keys, by the scripts in deploy/.

``Cable`` is the network between a node and the SuperLink, which can be cut.
"""

import asyncio
import json
import os
import runpy
import signal
import socket
import ssl
import struct
import subprocess
import sys
import urllib.request
from asyncio import StreamReader, StreamWriter
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import Any, Self
from urllib.error import URLError

import numpy as np
import pyarrow.parquet as pq

from tests.integration.conftest import (
    BIN,
    ROOT,
    Outcome,
    Shell,
    assert_same_bits,
    find_free_port,
    get_forks,
    wait_for,
)

DEPLOY = ROOT / "deploy"
KEYS = runpy.run_path(str(DEPLOY / "keys.py"))
"""What is in keys.py, whose command tests/deploy has."""

REGISTER = """
import sys
from flwr.cli.app import app

for name in sys.argv[1:]:
    words = ["supernode", "register", f"keys/{name}.pub", "deployment", "--name", name]
    app(words, standalone_mode=False)
"""
"""Flower's command for one node after the other, in one process."""


def is_reason_of_lost_node(reason: str) -> bool:
    """Say whether a client has this reason because its node is gone.

    Flower answers for a node whose last heartbeat is 60 seconds old. If a timeout or the node's
    return comes first, nothing answers.
    """
    gone = "Error: Node Unavailable — The destination node failed to report a heartbeat"
    return reason == "no reply in time" or reason.startswith(gone)


class ForkedScript:
    """A script in a fork of a process that has its imports, with the methods of ``Popen``."""

    def __init__(
        self, command: list[str], folder: Path, environment: dict[str, str], log: Path
    ) -> None:
        target = (command, folder, environment, log)
        self._process = get_forks().Process(target=_run_script, args=target, daemon=True)
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit code, None while the script runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """Return the exit code, None while the script runs."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end, and return the exit code.

        Raises
        ------
        subprocess.TimeoutExpired
            When the script still runs.
        """
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
        return self.returncode

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._process.terminate()


def _run_script(command: list[str], folder: Path, environment: dict[str, str], log: Path) -> None:
    """Become what ``Popen`` would start: an own session, environment, folder and log."""
    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    with log.open("ab") as stream:
        os.dup2(stream.fileno(), 1)
        os.dup2(stream.fileno(), 2)
    sys.argv = command
    sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1) for number in (1, 2))
    runpy.run_path(command[0], run_name="__main__")


Process = subprocess.Popen[bytes] | ForkedScript


@dataclass
class Deployment:
    """One SuperLink and its SuperNodes, every process known by its id."""

    folder: Path
    port: int
    env: dict[str, str]
    processes: dict[str, Process] = field(default_factory=dict)

    @property
    def nodes(self) -> Path:
        """The server's file of clients and keys."""
        return self.folder / "nodes.txt"

    def start(self, name: str, command: list[str], **variables: object) -> subprocess.Popen[bytes]:
        """Start a command with its own log, which is appended to; an earlier one is ended first.

        With all its children, as systemd ends those of a service that died.
        """
        self._end(name)
        with self.log(name).open("ab") as log:
            started = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self._build_environment(variables),
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.processes[name] = started
        return started

    def _end(self, name: str) -> None:
        if name in self.processes:
            self.send_signal(name, signal.SIGKILL)
            self.processes[name].wait(30)

    def _build_environment(self, variables: Mapping[str, object]) -> dict[str, str]:
        return {**os.environ, **self.env, **{key: str(value) for key, value in variables.items()}}

    def start_superlink(self) -> None:
        """Start the SuperLink, which keeps its database, and wait until it answers."""
        tls = self.folder / "tls"
        words = [str(DEPLOY / "superlink.sh")]
        self.start("superlink", words, TLS=tls, STATE=self.folder / "state", PORT=self.port)
        wait_for("the SuperLink answers", lambda: _is_healthy(self.port, tls / "ca.pem"), 60)

    def stop_superlink(self, number: signal.Signals) -> None:
        """Send a signal to the SuperLink and all processes below it, as systemd does, and wait."""
        superlink = self.processes["superlink"]
        pids = [superlink.pid, *find_descendants(superlink.pid)]
        for pid in pids:
            os.kill(pid, number)
        superlink.wait(60)
        wait_for("their end", lambda: not any(map(_is_alive, pids)), 60)

    def start_node(
        self,
        name: str,
        client: int,
        *,
        data: Path | None = None,
        ca: Path | None = None,
        port: int | None = None,
        preload: bool = True,
    ) -> subprocess.Popen[bytes]:
        """Start a SuperNode with its own home and key; ``port`` is the SuperLink's."""
        home = self.folder / "devices" / name
        home.mkdir(parents=True, exist_ok=True)
        (home / "unused.npz").touch()
        return self.start(
            name,
            [str(DEPLOY / "supernode.sh")],
            FLWR_HOME=home / "flwr",
            SUPERLINK=f"127.0.0.1:{port or self.port}",
            CA=ca or self.folder / "tls" / "ca.pem",
            KEY=self.make_key(name),
            CLIENT=client,
            DATA=data or home / "unused.npz",
            PORT=find_free_port(),
            PRELOAD=int(preload),
        )

    def start_script(
        self,
        name: str,
        script: Path,
        node_config: str,
        *words: str,
        port: int | None = None,
        **variables: object,
    ) -> None:
        """Start a script that takes a SuperNode's options, with its own home and key.

        In a fork, as to import PyTorch and Flower takes more time than most nodes do.
        """
        home = self.folder / "devices" / name
        home.mkdir(parents=True, exist_ok=True)
        command = [str(script), "--superlink", f"127.0.0.1:{port or self.port}"]
        command += ["--root-certificates", str(self.folder / "tls" / "ca.pem")]
        command += ["--auth-supernode-private-key", str(self.make_key(name))]
        command += ["--node-config", node_config, "--host", "127.0.0.1"]
        command += ["--port", str(find_free_port()), *words]
        path = f"{ROOT}{os.pathsep}{ROOT / 'strategies'}"
        variables |= {"FLWR_HOME": home, "PYTHONPATH": path}
        self._end(name)
        self.processes[name] = ForkedScript(
            command, self.folder, self._build_environment(variables), self.log(name)
        )

    def send_signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a process that was started, and to its children."""
        with suppress(ProcessLookupError):  # its own session: its children and no others
            os.killpg(self.processes[name].pid, number)

    def log(self, name: str) -> Path:
        """Return the file with what a process printed."""
        return self.folder / f"{name}.log"

    def make_key(self, name: str) -> Path:
        """Return the path of a node's private key, made when first asked for."""
        path = self.folder / "keys" / name
        if not path.exists():
            KEYS["make_node"](path)
        return path

    def read_public_key(self, name: str) -> str:
        """Return a node's public key, one line."""
        return self.make_key(name).with_name(f"{name}.pub").read_text().strip()

    def run_flwr(self, *words: str, timeout: float = 300) -> Outcome:
        """Run Flower's command as the operator of the server, for ``timeout`` seconds at most."""
        return Shell(self.folder, self.env)("flwr", *words, timeout=timeout)

    def register(self, name: str) -> None:
        """Let the node with this name's key in."""
        public = self.make_key(name).with_name(f"{name}.pub")
        done = self.run_flwr("supernode", "register", str(public), "deployment", "--name", name)
        assert done.status == 0, done.stdout + done.stderr

    def register_clients(self, names: Sequence[str]) -> None:
        """Let nodes in and write the server's file: the first is client 0, and so on."""
        lines = [f"{client} {self.read_public_key(name)}" for client, name in enumerate(names)]
        done = Shell(self.folder, self.env)("python", "-c", REGISTER, *names)
        assert done.status == 0, done.stdout + done.stderr
        self.nodes.write_text("\n".join(["# clients and keys", *lines, ""]))

    def run(self, name: str, overrides: str, *words: str) -> Outcome:
        """Run the app of this repository on the deployment with ``run_flwr run``."""
        config = f'experiment="custom" overrides="{overrides}" output-dir="{self.folder / name}"'
        return self.run_flwr("run", str(ROOT), "deployment", *words, "--run-config", config)

    def stop(self) -> None:
        """End every process that was started, the SuperLink last, and whatever it left."""
        for name, process in reversed(self.processes.items()):
            process.terminate()
            self.send_signal(name, signal.SIGCONT)  # one that is frozen ends too
        for name, process in reversed(self.processes.items()):
            with suppress(subprocess.TimeoutExpired):
                process.wait(30)
            self.send_signal(name, signal.SIGKILL)
            process.wait(30)


@contextmanager
def start_deployment(folder: Path) -> Iterator[Deployment]:
    """Give a SuperLink with TLS and authentication; all that was started is stopped at the end."""
    port = find_free_port()
    make_certificates(folder / "tls")
    (folder / "home").mkdir()
    (folder / "home" / "config.toml").write_text(
        (DEPLOY / "config.toml")
        .read_text()
        .replace("127.0.0.1:8000", f"127.0.0.1:{port}")
        .replace("/etc/fedquorum/tls", str(folder / "tls"))
    )
    env = {
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "FLWR_HOME": str(folder / "home"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
    }
    made = Deployment(folder, port, env)
    try:
        made.start_superlink()
        yield made
    except Exception:  # pytest shows it with the failure
        for name in made.processes:
            printed = made.log(name).read_text(errors="replace").splitlines()
            print(f"--- {name}", *printed[-40:], sep="\n")
        raise
    finally:
        made.stop()


def make_certificates(folder: Path) -> None:
    """Make a server's certificate for this machine."""
    KEYS["make_server"](folder, ["127.0.0.1"])


def find_descendants(pid: int) -> Iterator[int]:
    """Yield the processes that a process has started, and those that they have."""
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, path.read_text().split()):
            yield child
            yield from find_descendants(child)


def _is_alive(pid: int) -> bool:
    with suppress(FileNotFoundError):
        # Behind the name, which may have any characters, the state: Z has ended.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def _is_healthy(port: int, ca: Path) -> bool:
    """Return whether the SuperLink answers, over TLS by its certificate."""
    context = ssl.create_default_context(cafile=str(ca))
    with suppress(URLError, ConnectionError, TimeoutError):
        url = f"https://127.0.0.1:{port}/health"
        with urllib.request.urlopen(url, timeout=5, context=context) as answer:
            return bool(answer.status == 200)
    return False


def make_client_data(client: int) -> dict[str, Any]:
    """Return one client's own data: three classes, shifted by its id."""
    rng = np.random.default_rng(client)
    x = rng.normal(0.3 * client, 1.0, (40 + 10 * client, 8)).astype(np.float32)
    y = np.argmax(x[:, :3] + rng.normal(0, 0.2 * client, (len(x), 3)), axis=1)
    return {"x_train": x[:-15], "y_train": y[:-15], "x_test": x[-15:], "y_test": y[-15:]}


def write_all(path: Path, clients: int) -> None:
    """Write the data of all clients into one file with a column for the client."""
    parts = [make_client_data(client) for client in range(clients)]
    arrays: dict[str, Any] = {
        key: np.concatenate([part[key] for part in parts]) for key in parts[0]
    }
    for part in ("train", "test"):
        counts = [len(client_data[f"y_{part}"]) for client_data in parts]
        arrays[f"client_{part}"] = np.repeat(np.arange(clients), counts)
    np.savez(path, **arrays)


def assert_same_run(run: Path, expected: Path) -> None:
    """Compare rounds, the clients' rows and the last model of two runs, to the last bit."""
    manifest = json.loads((run / "manifest.json").read_text())
    assert manifest["status"] == "completed"
    assert_same_bits(run, expected, manifest["rounds_completed"])
    tables = [pq.read_table(path / "clients") for path in (run, expected)]
    assert len(tables[0]) > 0
    assert tables[0].equals(tables[1])


class Cable:
    """A TCP proxy on loopback: what goes through it is TLS, which it cannot read.

    It listens from its beginning to its end, so that nobody else gets its port. While it is cut,
    every connection is reset, a new one at once. Not closed in order: where that happens while a
    connection is being made, Flower takes the certificate for a wrong one, and the node ends.
    """

    def __init__(self, behind: int) -> None:
        self._behind = behind
        self._whole = True
        self._ends: set[StreamWriter] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        self.port = int(self._listener.getsockname()[1])
        # All is done in one thread, one thing after the other.
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._accepting = asyncio.run_coroutine_threadsafe(self._accept(), self._loop)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Reset all connections, and leave nothing open."""
        self._do(self._close())
        self._accepting.result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._listener.close()

    def mend(self) -> None:
        """Take connections."""
        self._do(self._set(whole=True))

    def cut(self) -> None:
        """Reset the connections that there are, and each new one."""
        self._do(self._set(whole=False))

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _set(self, *, whole: bool) -> None:
        self._whole = whole
        if not whole:
            for end in self._ends:
                _reset(end)

    async def _close(self) -> None:
        await self._set(whole=False)
        self._behind = 0
        # Wakes who accepts. To cancel it may lose a connection that it has just accepted.
        _, last = await asyncio.open_connection("127.0.0.1", self.port)
        await _end(last, _reset)

    async def _accept(self) -> None:
        connections: set[asyncio.Task[None]] = set()
        while self._behind:
            near, _ = await self._loop.sock_accept(self._listener)
            connections = {task for task in connections if not task.done()}
            connections.add(asyncio.create_task(self._connect(near)))
        await asyncio.wait(connections)

    async def _connect(self, near: socket.socket) -> None:
        """Carry what a node and the SuperLink say, until both have ended or the cable is cut."""
        of_node, to_node = await asyncio.open_connection(sock=near)
        ends = [to_node]
        hang_up: Callable[[StreamWriter], None] = _reset
        with suppress(OSError):  # the SuperLink is gone, or somebody has left without a word
            if self._whole:
                of_link, to_link = await asyncio.open_connection("127.0.0.1", self._behind)
                ends.append(to_link)
                if self._whole:  # still: it may have been cut meanwhile
                    self._ends.update(ends)
                    await asyncio.gather(_carry(of_node, to_link), _carry(of_link, to_node))
                    hang_up = StreamWriter.close
        self._ends.difference_update(ends)
        for end in ends:
            await _end(end, hang_up)


async def _carry(source: StreamReader, sink: StreamWriter) -> None:
    while data := await source.read(65536):
        sink.write(data)
        await sink.drain()
    sink.write_eof()


async def _end(end: StreamWriter, hang_up: Callable[[StreamWriter], None]) -> None:
    hang_up(end)
    with suppress(OSError):  # the other side was faster
        await end.wait_closed()


def _reset(end: StreamWriter) -> None:
    """Drop a connection without a word of farewell."""
    connection: socket.socket = end.get_extra_info("socket")
    with suppress(OSError):  # it has ended already
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    end.transport.abort()
