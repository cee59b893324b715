"""Test that the commands that a run prints work as they are printed, in a shell."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conf.compose import compose_overrides, parse_override
from server_app.cli.commands import main
from server_app.runs.next_commands import (
    find_program,
    format_command,
    format_next_commands,
    format_override,
)
from tests.builders_runs import make_client_overrides

ROOT = Path(__file__).parents[3]
RULE = ROOT / "tests" / "fixtures" / "my_rule.py"
OWN_RULE = (
    "strategy=composed",
    "strategy/weighting=custom",
    "strategy.weighting.path=my_rule.py:Tempered",
)
SMALL = ("rounds=2", *make_client_overrides(4, 2, samples=20))
PATHS = ("plain/run", "two words/run", "it's/run", 'a "b"/run', "a=b,c/(d)/run", "über/run")


@pytest.fixture
def in_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the command be in the PATH."""
    monkeypatch.setattr(shutil, "which", lambda _: "/opt/bin/fedquorum")


@pytest.mark.usefixtures("in_path")
@pytest.mark.parametrize("path", PATHS)
def test_a_path_is_quoted_for_the_shell_and_for_hydra(path: str) -> None:
    """The shell's words are the given ones, and Hydra reads the path from its word."""
    word = format_override("hydra.sweep.dir", path)
    assert shlex.split(format_command("-m", word)) == ["fedquorum", "-m", word]
    assert parse_override(word).value() == path


def test_the_program_outside_the_path_has_its_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the one beside Python, or else Python's module."""
    monkeypatch.setattr(shutil, "which", lambda _: None)
    beside = Path(sys.executable).with_name("fedquorum")
    module = [sys.executable, "-m", "fedquorum_app"]
    assert find_program() == ([str(beside)] if beside.exists() else module)
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert find_program() == ["/nowhere/python", "-m", "fedquorum_app"]


@pytest.mark.usefixtures("in_path")
def test_only_rules_of_ones_own_need_trust() -> None:
    """A report imports nothing, and an audit imports rules, but no model."""
    own = compose_overrides((*OWN_RULE[:2], "strategy.weighting.path=a.B")).settings
    model = compose_overrides(("model=module", "model.path=a.B")).settings
    plain = compose_overrides(()).settings
    for settings, needs_trust in (((own,), True), ((model, plain), False), ((plain, own), True)):
        report, audit = format_next_commands(Path("/x y"), settings).splitlines()
        assert report.endswith("fedquorum report '/x y'")
        assert audit.endswith("fedquorum audit '/x y'" + " --trust" * needs_trust)


def run_in_shell(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    bin_folder = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{bin_folder}:{os.environ['PATH']}", "COLUMNS": "400"}
    environment["PYTHONPATH"] = f"{ROOT}:{ROOT / 'strategies'}"
    return subprocess.run(
        ["sh", "-c", command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("sweep", [False, True], ids=["run", "sweep"])
def test_printed_commands_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], sweep: bool
) -> None:
    """Those of a run and of a sweep with a rule of one's own, in a folder with blank and quote."""
    folder = tmp_path / "it's mine"
    folder.mkdir()
    shutil.copy(RULE, folder)
    monkeypatch.chdir(folder)
    words = [*(["-m", "seed=1"] if sweep else []), *SMALL, *OWN_RULE]
    monkeypatch.setattr(sys, "argv", ["fedquorum", *words])
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    starts = ("  figures and tables", "  replay all decisions")
    printed = [line[line.index("fedquorum ") :] for line in lines if line.startswith(starts)]
    assert len(printed) == len(starts)
    for command in printed:
        done = run_in_shell(command, folder)
        assert done.returncode == 0, done.stderr
    assert "every decision matches the records" in done.stdout


@pytest.mark.slow
def test_the_command_to_continue_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupted run with a rule of one's own names what resumes it."""
    folder = tmp_path / "it's mine"
    folder.mkdir()
    shutil.copy(RULE, folder)
    monkeypatch.chdir(folder)
    stop: Any = "from server_app.runs.display import Display\n"
    stop += "def end_round(self, finished): raise KeyboardInterrupt\n"
    stop += "Display.end_round = end_round\nfrom fedquorum_app import main\nmain()"
    words = shlex.join([sys.executable, "-c", stop, *SMALL, *OWN_RULE])
    ended = run_in_shell(words, folder)
    assert ended.returncode == 130, ended.stderr
    command = ended.stderr.splitlines()[-1].partition("to continue: ")[2]
    assert command.endswith(" engine.trust_code=true")
    done = run_in_shell(command, folder)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_module_is_the_command(tmp_path: Path) -> None:
    """``python -m fedquorum_app`` runs the command where its script is not in the PATH."""
    done = run_in_shell(shlex.join([sys.executable, "-m", "fedquorum_app", "--help"]), tmp_path)
    assert done.returncode == 0
    assert "fedquorum audit DIR" in done.stdout
