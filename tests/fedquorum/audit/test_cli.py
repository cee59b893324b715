"""Tests of the command ``fedquorum-audit``, which is ``fedquorum audit`` in the app."""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fedquorum.audit.check import audit_run
from fedquorum.audit.cli import MAX_MISMATCHES_SHOWN, format_summary_line, main
from fedquorum.records import provenance

from tests.fedquorum.records.made import change_table
from tests.snapshot import Snapshot

LIBRARY = Path(__file__).parents[3] / "strategies"
ABSENT = ("torch", "hydra", "omegaconf", "flwr", "rich", "server_app", "client_app", "conf")

GetRun = Callable[[str], Path]


def run_command(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """Return the exit status and the output of a command."""
    capsys.readouterr()
    status = main(arguments)
    return status, *capsys.readouterr()


@pytest.mark.parametrize("decision", [(), ("--client", "3", "--round", "2")])
def test_the_exit_status_says_whether_the_records_agree(
    runs: GetRun, tmp_path: Path, capsys: pytest.CaptureFixture[str], decision: tuple[str, ...]
) -> None:
    """A decision is explained in a run with a mismatch, too."""
    spoiled = Path(shutil.copytree(runs("qfedavg"), tmp_path / "spoiled"))
    rounds = (spoiled / "rounds.jsonl").read_text()
    (spoiled / "rounds.jsonl").write_text(rounds.replace('"selected": 8', '"selected": 9'))
    for run, status in ((runs("qfedavg"), 0), (spoiled, 0 if decision else 1)):
        assert run_command([str(run), *decision], capsys)[::2] == (status, "")


def test_errors_and_usage_have_the_name_of_the_program(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The name is that of the call."""
    for program in ("fedquorum-audit", "fedquorum audit"):
        assert main([str(tmp_path)], program=program) == 1
        assert capsys.readouterr().err.startswith(f"{program}: ")
        with pytest.raises(SystemExit):
            main([], program=program)
        assert capsys.readouterr().err.startswith(f"usage: {program} ")


def test_a_damaged_run_hides_no_other(
    runs: GetRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is one line that names the file, and the exit status is 1."""
    for name in ("a", "b"):
        shutil.copytree(runs("qfedavg"), tmp_path / name)
    (tmp_path / "a" / "manifest.json").write_text("{")
    status, out, err = run_command([str(tmp_path)], capsys)
    assert (status, out.splitlines()[-1]) == (1, f"  {format_summary_line(0)}")
    (line,) = err.splitlines()
    assert line.startswith(f"fedquorum-audit: {tmp_path}/a/manifest.json, line 1: expected JSON")


def test_the_output_of_consistent_runs(
    runs: GetRun, capsys: pytest.CaptureFixture[str], snapshot: Snapshot
) -> None:
    """It lists everything that the records cannot show; N replaces a number."""
    directories = [runs(name) for name in ("fedalign", "mifa", "slow", "refused fedau")]
    statuses, outs, _ = zip(*(run_command([str(run)], capsys) for run in directories), strict=True)
    assert statuses == (0, 0, 0, 0)
    out = "".join(outs).replace(str(directories[0].parent), "runs")
    counted = re.sub(r"\d+ (client answers|times)", r"N \1", out)
    endings = "".join(f"  {format_summary_line(count)}\n" for count in (1, 2))
    snapshot("audit/command.txt", counted + endings)


def test_only_the_first_of_many_mismatches_are_shown(
    runs: GetRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last two lines have the numbers of further and of all mismatches."""
    run = Path(shutil.copytree(runs("qfedavg"), tmp_path / "run"))

    def double_weights(rows: list[dict[str, Any]]) -> None:
        for row in rows:
            row["weight"] *= 2.0

    change_table(run, "clients", double_weights)
    status, out, _ = run_command([str(run)], capsys)
    count = len(audit_run(run).mismatches)
    lines = out.splitlines()
    assert (status, count > MAX_MISMATCHES_SHOWN) == (1, True)
    assert sum(line.startswith("  mismatch: ") for line in lines) == MAX_MISMATCHES_SHOWN
    assert lines[-2:] == [f"  ... and {count - MAX_MISMATCHES_SHOWN} more", f"  {count} mismatches"]


def test_a_decision_needs_a_single_run(
    runs: GetRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder with several runs is refused, and so is one option without the other."""
    for name in ("a", "b"):
        shutil.copytree(runs("qfedavg"), tmp_path / name)
    status, _, err = run_command([str(tmp_path), "--client", "0", "--round", "1"], capsys)
    assert status == 1
    assert err.endswith(f"--client and --round need a single run, got {tmp_path} with 2\n")
    with pytest.raises(SystemExit, match="2"):
        main([str(tmp_path), "--client", "0"])


def test_a_missing_package_is_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line says what to install."""
    monkeypatch.setattr(provenance, "AUDIT_PACKAGES", {"yaml": "pyyaml", "nowhere": "not-there"})
    status, _, err = run_command([str(tmp_path)], capsys)
    assert (status, len(err.splitlines())) == (1, 1)
    assert "run records need not-there, which the extra audit brings: pip install not-there" in err


@pytest.mark.slow
def test_the_command_needs_only_the_library(runs: GetRun) -> None:
    """Neither the app, torch, Hydra nor Flower is imported, or could be."""
    program = f"""
import sys
for name in {ABSENT!r}:
    sys.modules[name] = None
sys.path[:0] = [{str(LIBRARY)!r}]
from fedquorum.audit.cli import main
sys.exit(main(sys.argv[1:]))
"""
    command = [sys.executable, "-P", "-c", program, str(runs("fedau"))]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (process.returncode, process.stderr) == (0, "")
    assert process.stdout.splitlines()[-1] == f"  {format_summary_line(0)}"
