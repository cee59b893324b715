"""Tests of the benchmark of start times."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import start
from benchmarks.start import CASES, HERE, ProcessTime, format_start_table, measure_process


def test_a_table_has_smallest_and_median() -> None:
    """The table has a row for each case and version."""
    runs = [ProcessTime(3.0, 6.0), ProcessTime(1.0, 9.0), ProcessTime(2.0, 7.0)]
    lines = format_start_table(
        {("--help", "before"): runs, ("--help", "now"): runs[:1]}
    ).splitlines()
    assert lines[2:] == [
        "| --help | before | 1.00 | 2.00 | 6.00 | 7.00 |",
        "| --help | now | 3.00 | 3.00 | 6.00 | 6.00 |",
    ]


def test_versions_are_interleaved(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A change of the machine's speed then affects both versions."""
    order: list[tuple[str, Path]] = []

    def log_process(arguments: tuple[str, ...], checkout: Path) -> ProcessTime:
        order.append((arguments[-1], checkout))
        return ProcessTime(1.0, 1.0)

    monkeypatch.setattr(start, "measure_process", log_process)
    only = ["--only", "rounds=-1", "roundz=3"]
    monkeypatch.setattr("sys.argv", ["start.py", "--times", "2", "--baseline", "/x", *only])
    start.main()
    cases = [(case, path) for case in ("rounds=-1", "roundz=3") for path in (Path("/x"), HERE)]
    assert order == cases * 2
    assert len(capsys.readouterr().out.splitlines()) == 2 + 4


def test_a_process_runs_the_code_of_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process imports the checkout's packages, and its times are positive."""
    commands: list[list[str]] = []
    run = subprocess.run

    def run_check(command: list[str], **options: object) -> object:
        commands.append(command)
        code = "import sys, server_app; sys.exit(server_app.__file__ != sys.argv[1])"
        done = run([sys.executable, "-c", code, str(HERE / "server_app/__init__.py")], **options)  # type: ignore[call-overload]
        assert done.returncode == 0, done.stderr
        return done

    monkeypatch.setattr(subprocess, "run", run_check)
    seconds = measure_process(CASES["help"], HERE)
    assert commands == [[sys.executable, "-c", *CASES["help"]]]
    assert seconds.cpu > 0
    assert seconds.wall > 0
