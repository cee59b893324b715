"""Which command the first word starts, and what a word that starts none is answered with."""

import subprocess
import sys
from pathlib import Path

import pytest

from server_app.commands import COMMANDS, main
from server_app.help import USAGE

SLOW = ("torch", "flwr", "pyarrow", "pandas", "matplotlib", "client_app.app")
"""What takes long to import, and no help needs."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_help_lists_every_command() -> None:
    """Each on a line of its own."""
    for name in COMMANDS:
        assert f"\n  fedquorum {name} " in USAGE


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_has_a_help_with_its_name(name: str) -> None:
    """It waits for no slow import; the audit needs not even Hydra."""
    absent = (*SLOW, "hydra") if name == "audit" else SLOW
    code = (
        "import atexit, sys; "
        f"atexit.register(lambda: print([m for m in {absent} if m in sys.modules])); "
        "from fedquorum_app import main; sys.exit(main())"
    )
    command = [sys.executable, "-c", code, name, "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"fedquorum {name} " in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["reprot"], "got 'reprot' (did you mean report?)"),
        (["audti", "outputs"], "got 'audti' (did you mean audit?)"),
        (["sed"], "got 'sed' (did you mean seed?)"),
        (["outputs/compare"], "got 'outputs/compare' (type fedquorum --help)"),
    ],
)
def test_a_word_that_starts_nothing(
    words: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line with all commands, and the exit status of a wrong flag."""
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("fedquorum: the first word must be audit, data, report, study, a flag, ")
    assert err.endswith(f"{hint}\n")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [[], ["--help"], ["-m", "seed=1,2"], ["data=csv"], ["+tracker.x=1"], ["~tracker"], ["seed"]],
)
def test_other_words_are_of_a_run(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A setting may have a command's name; one without a value is for Hydra's grammar."""
    ran: list[bool] = []
    monkeypatch.setattr("server_app.command_line.main", lambda: ran.append(True))
    assert main(words) == 0
    assert ran == [True]


def test_a_folder_may_have_a_commands_name(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first word is the command, and the second the folder."""
    for name in COMMANDS:
        (folder / name).mkdir()
    assert main(["audit", "report"]) == 1
    assert capsys.readouterr().err.startswith("fedquorum audit: expected a folder with runs ")
