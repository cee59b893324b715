"""Start a SuperNode with preloaded imports for its messages.

    python preload.py flower-supernode --superlink HOST:PORT ...

Flower runs the command ``flwr-clientapp`` for every message, and the command imports PyTorch and
other packages each time. With this script, one process beside the SuperNode imports them once, and
a fork of this process handles each message. A small ``flwr-clientapp``, first on the SuperNode's
PATH, requests the fork. The process imports only third-party modules; the fork loads the app from
run's bundle, as always. If the process does not respond, the small command becomes the real one.

docs/deployment.md describes the effect on isolation.
"""

import gc
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
from contextlib import chdir, suppress
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path

COMMAND = "flwr-clientapp"
MODULES = (
    "flwr.supernode.cli.flwr_clientapp",
    "torch",
    "hydra",
    "piqp",
    "numpy.random",
    "filelock",
    "cryptography.hazmat.primitives.asymmetric.x25519",
    "cryptography.hazmat.primitives.ciphers.aead",
)
SECONDS = 5.0  # for the small command to send its arguments
INTERVAL = 0.5  # between two checks that the SuperNode still runs


@dataclass(frozen=True)
class Call:
    """The arguments and the environment of the small command."""

    arguments: list[str]
    environment: dict[str, str]
    directory: str

    def take_over(self) -> None:
        """Adopt the arguments, the environment and the directory in this process."""
        os.environ.clear()
        os.environ.update(self.environment)
        os.chdir(self.directory)
        sys.argv = [COMMAND, *self.arguments]


def main() -> None:
    """Become the SuperNode, with a process beside it that forks for its messages."""
    supernode_words = sys.argv[1:]
    if not supernode_words:
        sys.exit("usage: preload.py flower-supernode [options]")
    folder = Path(tempfile.mkdtemp(prefix="preload-"))  # for this user alone
    with socket.socket(socket.AF_UNIX) as listener:
        with chdir(folder):  # a socket's path may have no more than 107 characters
            listener.bind("socket")
        listener.listen(64)
        supernode = os.getpid()
        if os.fork() > 0:
            os.environ["PATH"] = f"{write_command(folder)}{os.pathsep}{os.environ['PATH']}"
            # Its process id stays, so signals reach it.
            os.execvp(supernode_words[0], supernode_words)  # noqa: S606 - no shell is needed
        for name in MODULES:
            import_module(name)
        gc.freeze()  # forks share the pages that the collector leaves alone
        call = serve(listener, supernode)
    if call is None:
        shutil.rmtree(folder)
    else:
        call.take_over()
        sys.modules[MODULES[0]].flwr_clientapp()


def write_command(folder: Path) -> Path:
    """Write the small command, and return its folder."""
    bin_ = folder / "bin"
    bin_.mkdir()
    script = bin_ / COMMAND
    # Without site-packages Python starts in a few milliseconds.
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -IS "{__file__}" --ask "$0" "$@"\n')
    script.chmod(0o700)
    return bin_


def ask(script: Path, arguments: list[str]) -> None:
    """Let a fork handle a call; if no process responds, become the real command."""
    call = Call(arguments, dict(os.environ), str(Path.cwd()))
    with suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
        with chdir(script.parent.parent):
            connection.connect("socket")
        socket.send_fds(connection, [b"!"], [1, 2])
        connection.sendall(json.dumps(asdict(call)).encode())
        connection.shutdown(socket.SHUT_WR)
        if connection.recv(1):
            return
    found = [path for path in os.get_exec_path() if Path(path) != script.parent]
    os.environ["PATH"] = os.pathsep.join(found)
    os.execvp(COMMAND, [COMMAND, *arguments])  # noqa: S606


def serve(listener: socket.socket, supernode: int) -> Call | None:
    """Fork for every call while the SuperNode runs.

    Returns
    -------
    Call or None
        In a fork, what it is to handle; None in this process in the end.
    """
    if threading.active_count() > 1:  # a fork would have one of them, and the locks of all
        return None
    # It ends after the SuperNode, whoever ends that.
    usual = {k: signal.signal(k, signal.SIG_IGN) for k in (signal.SIGINT, signal.SIGTERM)}
    listener.settimeout(INTERVAL)
    while os.getppid() == supernode:
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            continue
        with connection, suppress(OSError, ValueError):
            if (call := receive(connection)) is not None:
                for number, handler in usual.items():
                    signal.signal(number, handler)
                return call
    return None


def receive(connection: socket.socket) -> Call | None:
    """Fork for one call; return it in the fork."""
    connection.settimeout(SECONDS)
    _, outputs, _, _ = socket.recv_fds(connection, 1, 2)
    try:
        call = Call(**json.loads(b"".join(iter(lambda: connection.recv(2**16), b""))))
        if os.fork() > 0:
            connection.sendall(b"!")
            return None
        for output, number in zip(outputs, (1, 2), strict=True):
            os.dup2(output, number)
    finally:
        for output in outputs:
            os.close(output)
    sys.modules["numpy.random"].seed()  # forks would draw the same numbers
    return call


if __name__ == "__main__":
    if sys.argv[1:2] == ["--ask"]:
        ask(Path(sys.argv[2]), sys.argv[3:])
    else:
        main()
