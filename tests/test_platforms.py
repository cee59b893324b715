"""Test that no module, run, audit or resume needs what Windows lacks.

No test runs on Windows. Instead, a process hides the modules, and the names in ``os`` and
``signal``, that Windows lacks, from the sources of this project only.
"""

import subprocess
import sys
from pathlib import Path

import pytest
from fedquorum.audit.cli import format_summary_line

ROOT = Path(__file__).parent.parent
PACKAGES = ("fedquorum", "client_app", "server_app", "conf", "hydra_plugins")
WINDOWS = """
import builtins, os, pkgutil, importlib, signal, sys, types

PACKAGES = {packages!r}
MISSING = ("fcntl", "grp", "pty", "pwd", "resource", "syslog", "termios", "tty")
LACKING = {{
    "os": (
        *("O_CLOEXEC", "O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK", "fchmod", "fork", "getuid"),
        *("geteuid", "getloadavg", "killpg", "mkfifo", "posix_fallocate", "pread", "pwrite"),
        *("register_at_fork", "sched_getaffinity", "setsid", "statvfs", "sysconf", "uname"),
    ),
    "signal": ("SIGHUP", "SIGKILL", "SIGQUIT", "SIGUSR1", "SIGUSR2", "pthread_sigmask", "alarm"),
}}


def drop_missing(module):
    reduced = types.ModuleType(module.__name__)
    lacking = LACKING[module.__name__]
    reduced.__dict__.update({{k: v for k, v in vars(module).items() if k not in lacking}})
    if module is os:
        reduced.supports_dir_fd = reduced.supports_fd = set()
    return reduced


REDUCED = {{"os": drop_missing(os), "signal": drop_missing(signal)}}
real = builtins.__import__


def import_as_on_windows(name, globals=None, locals=None, fromlist=(), level=0):
    if (globals or {{}}).get("__name__", "").partition(".")[0] in PACKAGES and level == 0:
        if name in MISSING:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
        if name in REDUCED:
            return REDUCED[name]
    return real(name, globals, locals, fromlist, level)


builtins.__import__ = import_as_on_windows
"""
IMPORT_ALL = """
for package in map(importlib.import_module, PACKAGES):
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)
        print(module.name)
"""
RUN = """
from pathlib import Path
from fedquorum.records.runner import Runner
from conf.compose import compose_overrides
from server_app.cli.commands import main
from server_app.runs.job import run_in_process
from server_app.runs.resume import merge_resumed_overrides


def interrupt_in_round_3(runner, server_round):
    if server_round == 3:
        raise KeyboardInterrupt
    return play(runner, server_round)


run, play = Path(sys.argv[1]) / "run", Runner.run_round
overrides = ("rounds=4", "client.local_epochs=1", "strategy=fedvarp", "engine.reply_memory=0")
Runner.run_round = interrupt_in_round_3
try:
    first = (*overrides, f"strategy.memory_dir={run.parent}/memory")
    run_in_process(compose_overrides(first), str(run))
except KeyboardInterrupt:
    Runner.run_round = play
run_in_process(compose_overrides(merge_resumed_overrides((f"resume={run}",))), str(run))
report = ["report", str(run), "--output", str(run.parent / "report")]
sys.exit(main(["audit", str(run)]) or main(report))
"""


def run_as_on_windows(program: str, *arguments: str) -> str:
    """Run a program whose imports in this project are as on Windows; return its output."""
    return subprocess.check_output(
        [sys.executable, "-c", WINDOWS.format(packages=PACKAGES) + program, *arguments],
        cwd=ROOT,
        text=True,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder for a run."""
    return tmp_path_factory.mktemp("windows")


@pytest.fixture(scope="module")
def output(folder: Path) -> str:
    """Run both programs in one process, which takes as long to start as each of them."""
    return run_as_on_windows(IMPORT_ALL + RUN, str(folder))


@pytest.mark.slow
def test_all_modules_import_as_on_windows(output: str) -> None:
    """Library, app, settings and plugins."""
    printed = set(output.splitlines())
    assert {"fedquorum.records.safe_files", "client_app.node.policy", "fedquorum.io"} <= printed
    assert "hydra_plugins.fedquorum_launcher" in printed


@pytest.mark.slow
def test_a_run_resumes_and_is_audited_as_on_windows(output: str, folder: Path) -> None:
    """Replies and memory are in mapped files; the report reads the records, too."""
    assert format_summary_line(0) in output
    assert (folder / "run" / ".lock").exists()  # Windows opens no directories
    assert list((folder / "report").glob("*.html"))


def test_missing_names_fail_to_import() -> None:
    """Otherwise the tests above could not fail."""
    program = """
for module in ("fedquorum.a", "b"):
    for line in ("import fcntl", "import os; os.O_DIRECTORY", "from signal import SIGUSR1"):
        try:
            exec(line, {"__name__": module})
        except (ImportError, AttributeError):
            print(module)
"""
    assert run_as_on_windows(program).split() == ["fedquorum.a"] * 3
