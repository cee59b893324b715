"""What Windows lacks is not needed by any module, nor by a run, its audit and its resumption.

No test runs on Windows: a process here lacks its modules, and what ``os`` and ``signal`` do not
have there, for the sources of this project alone.
"""

import subprocess
import sys
from pathlib import Path

import pytest
from fedquorum.audit.command_line import format_summary_line

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


def reduced(module):
    there = types.ModuleType(module.__name__)
    lacking = LACKING[module.__name__]
    there.__dict__.update({{k: v for k, v in vars(module).items() if k not in lacking}})
    if module is os:
        there.supports_dir_fd = there.supports_fd = set()
    return there


REDUCED = {{"os": reduced(os), "signal": reduced(signal)}}
real = builtins.__import__


def as_on_windows(name, globals=None, locals=None, fromlist=(), level=0):
    if (globals or {{}}).get("__name__", "").partition(".")[0] in PACKAGES and level == 0:
        if name in MISSING:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
        if name in REDUCED:
            return REDUCED[name]
    return real(name, globals, locals, fromlist, level)


builtins.__import__ = as_on_windows
"""
IMPORT_ALL = """
for package in map(importlib.import_module, PACKAGES):
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)
        print(module.name)
"""
RUN = """
from pathlib import Path
import server_app.loop
from conf.compose import compose_words
from server_app.commands import main
from server_app.job import run_in_process
from server_app.resume import resumed_words


def broken_off(parts, arrays, server_round):
    if server_round == 3:
        raise KeyboardInterrupt
    return play(parts, arrays, server_round)


run, play = Path(sys.argv[1]) / "run", server_app.loop._run_round
words = ("rounds=4", "client.local_epochs=1", "strategy=fedvarp", "engine.reply_memory=0")
server_app.loop._run_round = broken_off
try:
    run_in_process(compose_words((*words, f"strategy.memory_dir={run.parent}/memory")), str(run))
except KeyboardInterrupt:
    server_app.loop._run_round = play
run_in_process(compose_words(resumed_words((f"resume={run}",))), str(run))
report = ["report", str(run), "--output", str(run.parent / "report")]
sys.exit(main(["audit", str(run)]) or main(report))
"""


def as_on_windows(program: str, *words: str) -> str:
    """Run a program in a process whose project lacks what Windows lacks; return its output."""
    return subprocess.check_output(
        [sys.executable, "-c", WINDOWS.format(packages=PACKAGES) + program, *words],
        cwd=ROOT,
        text=True,
    )


@pytest.mark.slow
def test_all_modules_are_imported() -> None:
    """Library, app, settings and plugins."""
    printed = set(as_on_windows(IMPORT_ALL).splitlines())
    assert {"fedquorum.records.safe_files", "client_app.policy", "fedquorum.locks"} <= printed
    assert "hydra_plugins.fedquorum_launcher" in printed


@pytest.mark.slow
def test_a_run_resumes_and_is_audited(tmp_path: Path) -> None:
    """With files beyond the memory, which are mapped; the report reads the records as well."""
    assert format_summary_line(0) in as_on_windows(RUN, str(tmp_path))
    assert (tmp_path / "run" / ".lock").exists()  # Windows opens no directories
    assert list((tmp_path / "report").glob("*.html"))


def test_it_is_missing_there() -> None:
    """So that the tests above can fail."""
    program = """
for module in ("fedquorum.a", "b"):
    for line in ("import fcntl", "import os; os.O_DIRECTORY", "from signal import SIGUSR1"):
        try:
            exec(line, {"__name__": module})
        except (ImportError, AttributeError):
            print(module)
"""
    assert as_on_windows(program).split() == ["fedquorum.a"] * 3
