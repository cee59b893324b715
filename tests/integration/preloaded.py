"""Run the command ``fedquorum`` or ``flwr`` in forks of a process that has imported its modules.

    python preloaded.py SOCKET NAME      serve until the parent process ends

A command imports PyTorch and a thousand other modules, which takes two seconds of a core, and the
suite runs some hundred commands. ``get_folder`` starts the process, one for each command and worker
of the suite, and returns a folder with a small command that lets a fork handle its arguments,
environment, directory and streams. ``flwr`` has its own process, without the modules of this
repository: it imports those of the app that it is given. Where Python itself would start in another
way, the small command becomes the real one. Tests of signals and of imports start that one.
"""

import atexit
import gc
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from importlib import import_module, reload
from pathlib import Path
from typing import Any, NoReturn

BIN = Path(sys.executable).parent
COMMANDS = {"fedquorum": ("fedquorum_app", "main"), "flwr": ("flwr.cli.app", "app")}
"""The module and the function of each command."""

MODULES = {
    "fedquorum": (
        *("server_app.cli.fedquorum", "server_app.runs.loop", "torch.utils.tensorboard"),
        "pandas",
    ),
    "flwr": ("flwr.cli.app",),
}
"""What each of them imports for nearly every call."""

READERS = {"fedquorum": (), "flwr": ("flwr.cli.constant", "flwr.cli.local_superlink")}
"""The modules of each that read the environment when they are imported, such as for ports."""

STARTS = ("PYTHON", "OMP_", "MKL_", "CUDA_")
"""How the names of variables begin that are read when Python or a module starts."""


@dataclass(frozen=True)
class Call:
    """The name, the arguments, the environment and the directory of a command."""

    name: str
    arguments: list[str]
    environment: dict[str, str]
    directory: str

    def take_over(self) -> None:
        """Adopt all of them in this process."""
        os.environ.clear()
        os.environ.update(self.environment)
        os.chdir(self.directory)
        sys.argv = [str(BIN / self.name), *self.arguments]
        sys.modules["__main__"].__file__ = sys.argv[0]


@cache
def get_folder(name: str) -> Path:
    """Start a command's process once, and return the folder with the small command."""
    folder = Path(tempfile.mkdtemp(prefix="preloaded-"))
    path = folder / "socket"
    environment = {**os.environ, "FLWR_TELEMETRY_ENABLED": "0"}  # the library reads it at import
    process = subprocess.Popen([sys.executable, __file__, str(path), name], env=environment)
    script = folder / name
    words = shlex.join([sys.executable, "-IS", __file__, "--ask", str(path), name])
    # Without site-packages Python starts in a few milliseconds.
    script.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
    script.chmod(0o700)

    owner = os.getpid()

    def stop() -> None:
        if os.getpid() != owner:  # a fork of this process
            return
        process.terminate()
        process.wait()
        shutil.rmtree(folder)

    atexit.register(stop)
    while not path.exists() and process.poll() is None:
        time.sleep(0.01)
    return folder


def _list_starts(environment: dict[str, str]) -> dict[str, str]:
    return {key: value for key, value in environment.items() if key.startswith(STARTS)}


def serve(path: Path, name: str) -> None:
    """Import the modules, and fork for every call until the parent process ends."""
    parent = os.getppid()
    environment = dict(os.environ)
    sys.path[0] = str(BIN)  # as in the command's script
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(64)  # so that calls wait for the imports
        listener.settimeout(1.0)
        for module in MODULES[name]:
            import_module(module)
        assert threading.active_count() == 1  # a fork would have the locks of all
        gc.freeze()  # forks share the pages that the collector leaves alone
        while os.getppid() == parent:
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            with suppress(TimeoutError):
                connection, _ = listener.accept()
                if os.fork() == 0:
                    listener.close()
                    connection.settimeout(None)
                    os._exit(_handle(connection, environment))
                connection.close()


def _handle(connection: socket.socket, environment: dict[str, str]) -> int:
    """Run one call in a fork, and send the status of its end; "" if it cannot be run here."""
    _, streams, _, _ = socket.recv_fds(connection, 1, 3)
    call = Call(**json.loads(connection.makefile("rb").readline()))
    if _list_starts(call.environment) != _list_starts(environment):
        return 0
    if (child := os.fork()) == 0:
        connection.close()
        for stream, number in zip(streams, range(3), strict=True):
            os.dup2(stream, number)
            os.close(stream)
        call.take_over()
        _run(call.name)
    _, status = os.waitpid(child, 0)
    connection.sendall(str(os.waitstatus_to_exitcode(status)).encode())
    return 0


def _run(name: str) -> NoReturn:
    """Run the command, and end as Python does, but keep all modules: to free them takes long."""
    module, function = COMMANDS[name]
    main = getattr(import_module(module), function)
    for reader in READERS[name]:
        reload(import_module(reader))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        status: Any = main()
    except SystemExit as end:
        status = end.code
    except BaseException:
        traceback.print_exc()
        status = 1
    if isinstance(status, str):
        print(status, file=sys.stderr)
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status or 0)


def ask(path: str, name: str, arguments: list[str]) -> NoReturn:
    """End with the status of a fork that handles the arguments of this process."""
    call = Call(name, arguments, dict(os.environ), str(Path.cwd()))
    with suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        socket.send_fds(connection, [b"!"], [0, 1, 2])
        connection.sendall(json.dumps(asdict(call)).encode() + b"\n")
        if status := connection.recv(8):
            sys.exit(int(status))
    os.execv(BIN / name, [str(BIN / name), *arguments])  # noqa: S606 - no shell is needed


if __name__ == "__main__":
    if sys.argv[1] == "--ask":
        ask(sys.argv[2], sys.argv[3], sys.argv[4:])
    serve(Path(sys.argv[1]), sys.argv[2])
