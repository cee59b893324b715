"""A deployment on loopback: SuperLink and SuperNodes with TLS and keys, by the scripts in deploy/.

``Cable`` is the network between a node and the SuperLink, which can be cut.
"""

import os
import signal
import socket
import ssl
import subprocess
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from urllib.error import URLError

from tests.integration.conftest import BIN, ROOT, Outcome, Shell, free_port, wait_for

DEPLOY = ROOT / "deploy"


@dataclass
class Deployment:
    """One SuperLink and its SuperNodes, every process known by its id."""

    folder: Path
    port: int
    env: dict[str, str]
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def nodes(self) -> Path:
        """The server's file of clients and keys."""
        return self.folder / "nodes.txt"

    def start(self, name: str, command: list[str], **variables: object) -> subprocess.Popen[bytes]:
        """Start a command; its output is added to a log of its own."""
        with self.log(name).open("ab") as log:
            self.processes[name] = subprocess.Popen(
                command,
                cwd=self.folder,
                env={**os.environ, **self.env, **{k: str(v) for k, v in variables.items()}},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self.processes[name]

    def start_node(
        self,
        name: str,
        client: int,
        *,
        data: Path | None = None,
        ca: Path | None = None,
        port: int | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a SuperNode with a home and a key of its own; ``port`` is the SuperLink's."""
        home = self.folder / "devices" / name
        home.mkdir(parents=True, exist_ok=True)
        return self.start(
            name,
            [str(DEPLOY / "supernode.sh")],
            FLWR_HOME=home / "flwr",
            SUPERLINK=f"127.0.0.1:{port or self.port}",
            CA=ca or self.folder / "tls" / "ca.pem",
            KEY=self.key(name),
            CLIENT=client,
            DATA=data or "unused.npz",
            PORT=free_port(),
        )

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a process that was started, and to its children."""
        with suppress(ProcessLookupError):  # its own session: its children and no others
            os.killpg(self.processes[name].pid, number)

    def log(self, name: str) -> Path:
        """Return the file with what a process printed."""
        return self.folder / f"{name}.log"

    def key(self, name: str) -> Path:
        """Return the path of a node's private key, made when first asked for."""
        path = self.folder / "keys" / name
        if not path.exists():
            made = Shell(self.folder)("python", str(DEPLOY / "keys.py"), "node", str(path))
            assert made.status == 0, made.stderr
        return path

    def public_key(self, name: str) -> str:
        """Return a node's public key, one line."""
        return self.key(name).with_name(f"{name}.pub").read_text().strip()

    def flwr(self, *words: str) -> Outcome:
        """Run Flower's command as the operator of the server."""
        return Shell(self.folder, self.env)("flwr", *words)

    def register(self, name: str) -> None:
        """Let the node with this name's key in."""
        public = self.key(name).with_name(f"{name}.pub")
        done = self.flwr("supernode", "register", str(public), "deployment", "--name", name)
        assert done.status == 0, done.stdout + done.stderr

    def register_clients(self, names: Sequence[str]) -> None:
        """Let nodes in and write the server's file: the first is client 0, and so on."""
        for name in names:
            self.register(name)
        lines = [f"{client} {self.public_key(name)}" for client, name in enumerate(names)]
        self.nodes.write_text("\n".join(["# clients and keys", *lines, ""]))

    def run(self, name: str, overrides: str, *words: str) -> Outcome:
        """Run the app of this repository on the deployment with ``flwr run``."""
        config = f'experiment="custom" overrides="{overrides}" output-dir="{self.folder / name}"'
        return self.flwr("run", str(ROOT), "deployment", *words, "--run-config", config)

    def stop(self) -> None:
        """End every process that was started, the SuperLink last, and whatever it left."""
        for name, process in reversed(self.processes.items()):
            process.terminate()
            self.signal(name, signal.SIGCONT)  # one that is frozen ends too
        for name, process in reversed(self.processes.items()):
            with suppress(subprocess.TimeoutExpired):
                process.wait(30)
            self.signal(name, signal.SIGKILL)
            process.wait(30)


@contextmanager
def deployed(folder: Path) -> Iterator[Deployment]:
    """Give a SuperLink with TLS and authentication; all that was started is stopped at the end."""
    port = free_port()
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
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
    }
    made = Deployment(folder, port, env)
    try:
        script = [str(DEPLOY / "superlink.sh")]
        made.start("superlink", script, TLS=folder / "tls", STATE=folder / "state", PORT=port)
        wait_for("the SuperLink answers", lambda: _healthy(port, folder / "tls" / "ca.pem"), 60)
        yield made
    finally:
        made.stop()


def make_certificates(folder: Path) -> None:
    """Make a server's certificate for this machine."""
    command = ("python", str(DEPLOY / "keys.py"), "server", str(folder), "127.0.0.1")
    made = Shell(folder.parent)(*command)
    assert made.status == 0, made.stderr


def _healthy(port: int, ca: Path) -> bool:
    """Return whether the SuperLink answers, over TLS by its certificate."""
    context = ssl.create_default_context(cafile=str(ca))
    with suppress(URLError, ConnectionError, TimeoutError):
        url = f"https://127.0.0.1:{port}/health"
        with urllib.request.urlopen(url, timeout=5, context=context) as answer:
            return bool(answer.status == 200)
    return False


class Cable:
    """A TCP proxy on loopback: what goes through it is TLS, which it cannot read.

    While it is cut there are no connections, and new ones are refused.
    """

    def __init__(self, behind: int) -> None:
        self.port = free_port()
        self._behind = behind
        self._ends: list[socket.socket] = []
        self.mend()

    def mend(self) -> None:
        """Take connections."""
        self._listener = socket.create_server(("127.0.0.1", self.port))
        Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def cut(self) -> None:
        """Drop the connections that there are, and refuse new ones."""
        for end in (self._listener, *self._ends):
            _hang_up(end)
        self._ends.clear()

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):  # it was cut
            while True:
                near, _ = listener.accept()
                far = socket.create_connection(("127.0.0.1", self._behind))
                self._ends += [near, far]
                for source, sink in ((near, far), (far, near)):
                    Thread(target=_carry, args=(source, sink), daemon=True).start()


def _carry(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):  # it was cut, or one side has left
        while data := source.recv(65536):
            sink.sendall(data)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


def _hang_up(end: socket.socket) -> None:
    with suppress(OSError):  # the other side was faster
        end.shutdown(socket.SHUT_RDWR)  # wakes whoever waits for it
    end.close()
