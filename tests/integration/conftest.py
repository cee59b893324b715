"""Run the commands as a user does, in separate processes."""

import json
import multiprocessing
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import psutil
import pytest
from fedquorum.records.runner import Runner

from tests.builders_runs import assert_same_results, read_rounds
from tests.integration import preloaded

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent


@dataclass(frozen=True)
class Outcome:
    """How a command ended."""

    status: int
    stdout: str
    stderr: str


@dataclass
class Shell:
    """Runs commands of this environment in one working directory."""

    cwd: Path
    env: dict[str, str] = field(default_factory=dict)

    def __call__(self, *command: str, timeout: float = 300) -> Outcome:
        name, *words = command
        folder = preloaded.get_folder(name) if name in preloaded.COMMANDS else BIN
        done = subprocess.run(
            [str(folder / name), *words],
            cwd=self.cwd,
            env={**os.environ, "COLUMNS": "200", **self.env},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        return Outcome(done.returncode, done.stdout, done.stderr)


@contextmanager
def start_command(*command: str, cwd: Path, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """Start a command of this environment in a new session; kill what is left at the end."""
    # A shell starts background jobs with SIGINT ignored, which children inherit; a handler is
    # reset to the default in them.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with subprocess.Popen(
        [str(BIN / command[0]), *command[1:]],
        cwd=cwd,
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """Return a shell in an empty directory."""
    return Shell(tmp_path)


IMPORTED_BY_FORKS = (
    *("client_app.app", "server_app.app", "torch.utils.tensorboard"),
    *("flwr.supernode.cli", "flwr.supernode.start_client_internal"),
)


@cache
def get_forks() -> ForkServerContext:
    """Return what starts processes as forks of one that has imported the modules of runs and nodes.

    So kills hit the run and not its start-up, and the imports take a processor's seconds once.
    """
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload([*IMPORTED_BY_FORKS])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLWR_TELEMETRY_ENABLED", "0")  # read when Flower is imported
        forkserver.ensure_running()
    return forks


def read_round_lines(run: Path) -> bytes:
    """Return rounds.jsonl byte by byte, with 0 for what the clock and the wire measure."""
    content = (run / "rounds.jsonl").read_bytes()
    return re.sub(rb'"(duration_seconds|bytes_down|bytes_up)": [-+.e\d]+', rb'"\1": 0', content)


def assert_same_bits(one: Path, other: Path, rounds: int) -> None:
    """Compare two runs' rounds and their models, byte by byte."""
    first, second = (read_round_lines(run).splitlines() for run in (one, other))
    assert len(first) == len(second) == rounds
    for left, right in zip(first, second, strict=True):
        assert left == right
    models = [
        {path.name: path.read_bytes() for path in run.glob("*.safetensors")} for run in (one, other)
    ]
    assert "model.safetensors" in models[0]
    assert models[0] == models[1]


def assert_same_rounds(one: Path, other: Path, tolerance: float = 1e-5) -> None:
    """Compare every number of two runs' rounds."""
    first, second = read_rounds(one), read_rounds(other)
    assert len(first) == len(second) > 0
    for left, right in zip(first, second, strict=True):
        flat_left, flat_right = flatten(left), flatten(right)
        assert flat_left.keys() == flat_right.keys()
        for key, value in flat_left.items():
            expected = value
            if isinstance(value, float):
                expected = pytest.approx(value, abs=tolerance, rel=tolerance)
            assert flat_right[key] == expected, key


@contextmanager
def interrupt_at_round(monkeypatch: pytest.MonkeyPatch, in_round: int) -> Iterator[None]:
    """Let a run break off in a round, before that has any effect."""
    play = Runner.run_round

    def until(runner: Runner, server_round: int) -> None:
        if server_round == in_round:
            raise KeyboardInterrupt
        play(runner, server_round)

    with monkeypatch.context() as patch:
        patch.setattr(Runner, "run_round", until)
        with pytest.raises(KeyboardInterrupt):
            yield


def assert_same_run(one: Path, other: Path) -> None:
    """Compare all files of two runs, to the last bit; only the clock may differ."""
    assert_same_results(one, other)
    manifests = [json.loads((run / "manifest.json").read_text()) for run in (one, other)]
    for key in ("status", "rounds_completed", "summary", "overrides", "experiment", "error"):
        assert manifests[0][key] == manifests[1][key], key
    assert read_scalars(one) == read_scalars(other)


def read_scalars(run: Path) -> dict[str, list[tuple[int, float]]]:
    """Return all scalars of the TensorBoard events as they were written: tag, steps, values."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    from tensorboard.util import tensor_util

    found: dict[str, list[tuple[int, float]]] = {}
    # By the numbers in their names, the time and one within the process: 9 is before 10.
    for path in sorted((run / "tensorboard").iterdir(), key=_read_numbers):
        for event in EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                number = tensor_util.make_ndarray(value.tensor).item()
                found.setdefault(value.tag, []).append((event.step, number))
    return found


def _read_numbers(path: Path) -> list[int]:
    return [int(digits) for digits in re.findall(r"\d+", path.name)]


def flatten(node: Any, prefix: str = "") -> dict[str, Any]:
    """Return a nested record as one level of dotted keys."""
    if not isinstance(node, dict):
        return {prefix: node}
    flat: dict[str, Any] = {}
    for key, value in node.items():
        flat |= flatten(value, f"{prefix}.{key}")
    return flat


def find_results_directory(stdout: str) -> Path:
    """Return the directory that a run prints at its end."""
    lines = [line for line in stdout.splitlines() if line.startswith("Results in ")]
    return Path(lines[-1].removeprefix("Results in ").strip())


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the files of the repository, as a new user has them."""
    folder = tmp_path_factory.mktemp("clone") / "fedquorum"
    folder.mkdir()
    files = subprocess.check_output(
        ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    )
    subprocess.run(
        ["tar", "--null", "--files-from=-", "-cf", str(folder.parent / "files.tar")],
        cwd=ROOT,
        input=files,
        check=True,
    )
    subprocess.run(["tar", "-xf", str(folder.parent / "files.tar")], cwd=folder, check=True)
    return folder


@contextmanager
def start_local_superlink(home: Path) -> Iterator[dict[str, str]]:
    """Return the environment of a SuperLink that no other test has; it is stopped at the end.

    A SuperLink has the working directory and the environment of the process that started it.
    """
    http, control = find_free_port(), find_free_port()
    yield {
        "FLWR_HOME": str(home),
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(http),
        "FLWR_LOCAL_CONTROL_API_PORT": str(control),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        # 1 s by default, before every run. At 0.1 s, asking alone takes a tenth of a core.
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5",
    }
    stop_superlink(http)


@pytest.fixture(scope="module")
def flower_env(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Give a module its own Flower home and ports; its SuperLink is stopped at the end."""
    with start_local_superlink(tmp_path_factory.mktemp("flwr-home")) as variables:
        yield variables


@pytest.fixture(scope="module")
def flower(flower_env: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """Return a shell whose ``flwr`` has its own SuperLink, started by the first run."""
    return Shell(tmp_path_factory.mktemp("flower"), flower_env)


def wait_for(what: str, condition: Callable[[], bool], timeout: float) -> None:
    """Wait until a condition holds, at most ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout:g} s: {what}"
        time.sleep(0.2)


def find_free_port() -> int:
    """Return a port without a listener."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def stop_superlink(port: int) -> None:
    """Stop the SuperLink on ``port``, the one that our first run started, and wait for its end."""
    pattern = f"flower-superlink .*--port {port} "
    for pid in find_processes(pattern):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    wait_for(f"the end of the SuperLink on port {port}", lambda: not find_processes(pattern), 30)


def find_processes(pattern: str) -> dict[int, str]:
    """Return the command lines that match a pattern, by process; small machines lack ``pgrep``."""
    found: dict[int, str] = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # it has ended meanwhile
            found[process.pid] = " ".join(process.cmdline())
    return {pid: line for pid, line in found.items() if re.search(pattern, line)}
