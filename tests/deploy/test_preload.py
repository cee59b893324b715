"""preload.py, with small stand-ins for Flower and PyTorch; a deployment has the real ones."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import wait_for

pytestmark = pytest.mark.slow  # each starts processes

ROOT = Path(__file__).resolve().parents[2]
PRELOAD = ROOT / "deploy" / "preload.py"

FLOWER = """
import json, os, sys
import numpy as np

def flwr_clientapp():
    print(json.dumps({
        "arguments": sys.argv[1:],
        "directory": os.getcwd(),
        "variable": os.environ.get("VARIABLE"),
        "parent": os.getppid(),
        "drawn": np.random.random(),
    }))
    print("to stderr", file=sys.stderr)
"""
REAL = '#!/bin/sh\necho "{\\"real\\": true}"\n'
TORCH = "with open({!r}, 'a') as file:\n    file.write('imported\\n')\n"


@dataclass
class SuperNode:
    """A shell in the SuperNode's place, which can call ``flwr-clientapp`` as it would."""

    process: subprocess.Popen[str]
    folder: Path

    def __call__(self, words: str, timeout: float = 20) -> dict[str, Any]:
        """Let it run a command, and return what this or its fork printed."""
        output = self.folder / "output"
        output.unlink(missing_ok=True)
        assert self.process.stdin
        self.process.stdin.write(f"({words}) >{output} 2>{self.folder}/errors\n")
        self.process.stdin.flush()
        wait_for(
            "an answer", lambda: output.exists() and output.read_text().endswith("\n"), timeout
        )
        answer: dict[str, Any] = json.loads(output.read_text())
        return answer

    @property
    def imports(self) -> int:
        """How often PyTorch's stand-in was imported."""
        return len((self.folder / "imports").read_text().splitlines())

    def end(self) -> None:
        """End it as Ctrl-C does."""
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait(20)


Start = Callable[..., SuperNode]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Return what starts a shell by preload.py, with the modules' code as a test says."""
    started: list[SuperNode] = []

    def go(torch: str = TORCH) -> SuperNode:
        modules = tmp_path / "modules"
        cli = modules / "flwr" / "supernode" / "cli"
        cli.mkdir(parents=True)
        for package in (cli, *cli.parents[:2]):
            (package / "__init__.py").touch()
        (cli / "flwr_clientapp.py").write_text(FLOWER)
        (modules / "torch.py").write_text(torch.format(str(tmp_path / "imports")))
        for name in ("hydra", "piqp"):
            (modules / f"{name}.py").write_text("")
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "flwr-clientapp").write_text(REAL)
        (tmp_path / "bin" / "flwr-clientapp").chmod(0o755)
        (tmp_path / "tmp").mkdir()
        process = subprocess.Popen(
            [sys.executable, str(PRELOAD), "sh"],
            stdin=subprocess.PIPE,
            env={
                **os.environ,
                "PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}",
                "PYTHONPATH": str(modules),
                "TMPDIR": str(tmp_path / "tmp"),
            },
            text=True,
            start_new_session=True,
        )
        started.append(SuperNode(process, tmp_path))
        return started[-1]

    yield go
    for supernode in started:
        with suppress(ProcessLookupError):
            os.killpg(supernode.process.pid, signal.SIGKILL)
        supernode.end()


def test_messages_are_handled_by_forks_of_one_process(start: Start, tmp_path: Path) -> None:
    """With the caller's arguments, directory, environment and outputs; imports are done once."""
    supernode = start()
    (tmp_path / "else where").mkdir()
    first = supernode(
        f"cd '{tmp_path}/else where' && VARIABLE=value flwr-clientapp --token 'a b' --x"
    )
    assert first["arguments"] == ["--token", "a b", "--x"]
    assert first["directory"] == str(tmp_path / "else where")
    assert first["variable"] == "value"
    assert (tmp_path / "errors").read_text() == "to stderr\n"
    others = [supernode("flwr-clientapp") for _ in range(3)]
    assert {answer["parent"] for answer in others} == {first["parent"]}
    assert supernode.imports == 1


def test_forks_draw_different_numbers(start: Start) -> None:
    """NumPy's state is the same in all forks, unless it is seeded there."""
    supernode = start()
    assert len({supernode("flwr-clientapp")["drawn"] for _ in range(3)}) == 3


def test_it_ends_with_the_supernode(start: Start, tmp_path: Path) -> None:
    """It also ends early on request, and leaves nothing behind."""
    supernode = start()
    beside = supernode("flwr-clientapp")["parent"]
    os.kill(beside, signal.SIGTERM)
    assert supernode("flwr-clientapp")["parent"] == beside
    supernode.end()
    wait_for("its end", lambda: not Path(f"/proc/{beside}").exists(), 10)
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize(
    "torch",
    [
        pytest.param("import os\nos._exit(1)\n", id="it ended"),
        pytest.param("raise ImportError('no torch')\n", id="it could not import"),
        pytest.param(
            "import threading, time\n"
            "threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n",
            id="it has a second thread",
        ),
    ],
)
def test_the_real_command_where_nothing_answers(start: Start, torch: str) -> None:
    """A fork of a process with several threads may hang in a lock of another thread."""
    assert start(torch)("flwr-clientapp --token x") == {"real": True}


def test_the_real_command_after_a_kill(start: Start) -> None:
    """As where memory runs out."""
    supernode = start()
    os.kill(supernode("flwr-clientapp")["parent"], signal.SIGKILL)
    assert supernode("flwr-clientapp") == {"real": True}


def test_without_a_command() -> None:
    """One line."""
    done = subprocess.run([sys.executable, str(PRELOAD)], capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr == b"usage: preload.py flower-supernode [options]\n"


def test_all_that_the_app_imports_of_others_is_preloaded() -> None:
    """A module that is forgotten would be imported for every message."""
    code = f"""
import runpy, sys
from importlib import import_module

for name in runpy.run_path({str(PRELOAD)!r})["MODULES"]:
    import_module(name)
before = set(sys.modules)
import client_app.app

ours = {{"client_app", "conf", "fedquorum"}}
for name in set(sys.modules) - before:
    if name.partition(".")[0] not in ours | sys.stdlib_module_names:
        print(name)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []
