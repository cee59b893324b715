"""Test which command the first argument starts, and the error if it starts none."""

import subprocess
import sys
from pathlib import Path

import pytest

from server_app.cli.commands import COMMANDS, main
from server_app.cli.help import USAGE

SLOW = ("torch", "flwr", "pyarrow", "pandas", "matplotlib", "client_app.app")
"""Packages that take long to import, and that no help needs."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_help_lists_every_command() -> None:
    """Each command has its own line."""
    for name in COMMANDS:
        assert f"\n  fedquorum {name} " in USAGE


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_has_a_help_with_its_name(name: str) -> None:
    """It imports no slow package, and the audit does not even import Hydra."""
    unneeded = (*SLOW, "hydra") if name == "audit" else SLOW
    code = (
        "import atexit, sys; "
        f"atexit.register(lambda: print([m for m in {unneeded} if m in sys.modules])); "
        "from fedquorum_app import main; sys.exit(main())"
    )
    command = [sys.executable, "-c", code, name, "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"fedquorum {name} " in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["reprot"], "got 'reprot' (did you mean report?)"),
        (["audti", "outputs"], "got 'audti' (did you mean audit?)"),
        (["sed"], "got 'sed' (did you mean seed?)"),
        (["outputs/compare"], "got 'outputs/compare' (type fedquorum --help)"),
    ],
)
def test_an_unknown_command_is_refused(
    arguments: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error is one line with all commands; the exit status is that of a wrong flag."""
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("fedquorum: the first word must be audit, data, predict, report, study, ")
    assert err.endswith(f"{hint}\n")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [[], ["--help"], ["-m", "seed=1,2"], ["data=csv"], ["+tracker.x=1"], ["~tracker"], ["seed"]],
)
def test_other_arguments_start_a_run(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A setting may have a command's name; Hydra explains a setting without a value."""
    calls: list[bool] = []
    monkeypatch.setattr("server_app.cli.fedquorum.main", lambda: calls.append(True))
    assert main(arguments) == 0
    assert calls == [True]


def test_a_folder_may_have_a_commands_name(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first argument is the command, and the second one the folder."""
    for name in COMMANDS:
        (folder / name).mkdir()
    assert main(["audit", "report"]) == 1
    assert capsys.readouterr().err.startswith("fedquorum audit: expected a folder with runs ")
