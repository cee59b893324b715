"""Test the errors of Hydra's flags."""

import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from server_app.cli.commands import main

Command = Callable[..., int]


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Command]:
    """Return a function that runs the command in an empty folder and returns its exit status.

    With ``--info``, Hydra lets all logs go to the standard output of the moment.
    """
    monkeypatch.chdir(tmp_path)
    handlers, level = [*logging.root.handlers], logging.root.level

    def run(*arguments: str) -> int:
        monkeypatch.setattr("sys.argv", ["fedquorum", *arguments])
        try:
            return main(list(arguments))
        except SystemExit as end:
            return int(end.code or 0)

    yield run
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--config-path X", "--config-path must be left out, got X: the settings are those of"),
        ("--config-path=/nowhere", "--config-path must be left out, got /nowhere: "),
        ("-cp X", "--config-path must be left out, got X: "),
        ("--config-name Y", "--config-name must be left out, got Y: "),
        ("--config-nam Y", "--config-name must be left out, got Y: "),
        ("-cn Y", "--config-name must be left out, got Y: "),
        ("--config-name", "--config-name/-cn: expected one argument"),
        ("--config-dir nowhere", "--config-dir must be a folder, got "),
        ("--config-dir", "--config-dir/-cd: expected one argument"),
        ("--cfg nonsense", "--cfg/-c: invalid choice: 'nonsense' "),
        ("--cfg", "--cfg/-c: expected one argument"),
        ("--cfg job roundss=3", "roundss is not a setting; there are "),
        ("--cfg job rounds=0", "rounds must be a whole number >= 1, got 0"),
        ("--cfg job strategy=fedua", "strategy must be one of fedau, "),
        ("--package", "--package/-p: expected one argument"),
        ("--package x", "--package must be with --cfg, got x alone (type --cfg=job --package=x)"),
        ("--info nonsense", "--info/-i: invalid choice: 'nonsense' "),
        ("--info config strategy=fedua", "strategy must be one of fedau, "),
        ("--config-dir=. --info config strategy=fedua", "strategy must be one of fedau, "),
        ("--resolve", "--resolve must be with --cfg (type --cfg=job --resolve)"),
        ("--shell-completion", "--shell-completion must be with install=SHELL or "),
        ("-sc install=sh", "--shell-completion must be with install=SHELL or uninstall=SHELL, "),
        ("--experimental-rerun x", "--experimental-rerun must be left out, got x: it loads"),
        ("-m --cfg job", "one of --multirun, --cfg must be given alone, got 2"),
        ("--run --info all", "one of --run, --info must be given alone, got 2"),
        ("--hydra-help=3", "--hydra-help: ignored explicit argument '3'"),
    ],
)
def test_a_mistake_in_a_flag_is_one_line(
    command: Command, capsys: pytest.CaptureFixture[str], arguments: str, message: str
) -> None:
    """The exit status is 1, the line names the flag, and no file is written."""
    assert command(*arguments.split()) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"fedquorum: {message}")
    assert not list(Path().iterdir())


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("--cfg job rounds=3", "rounds: 3"),
        ("--cfg=job --package=strategy", "name: fedalign"),
        ("--info searchpath", "pkg://conf"),
        ("-sc install=bash", "hydra_bash_completion"),
    ],
)
def test_flags_that_show_something(
    command: Command, capsys: pytest.CaptureFixture[str], arguments: str, text: str
) -> None:
    """The flags without a mistake do what Hydra says."""
    assert command(*arguments.split()) == 0
    assert text in capsys.readouterr().out


@pytest.mark.slow
def test_hydras_help(tmp_path: Path) -> None:
    """In a separate process: Hydra configures the log, and absl then closes pytest's streams."""
    command = [sys.executable, "-m", "fedquorum_app", "--hydra-help"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "--multirun" in done.stdout


def test_a_preset_of_the_users_own(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    """``--config-dir`` finds it, as the error of another flag says."""
    preset = Path("own/experiment/mine.yaml")
    preset.parent.mkdir(parents=True)
    preset.write_text("# @package _global_\ndefaults:\n  - custom\nrounds: 7\n")
    assert command("--config-dir=own", "experiment=mine", "--cfg=job") == 0
    assert "rounds: 7" in capsys.readouterr().out
