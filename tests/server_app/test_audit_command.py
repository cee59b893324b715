"""``fedquorum-report --audit``: what it prints, how it ends, and words that do not go together."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fedquorum.audit.explain import explain
from fedquorum.audit.replay import read_recorded

from server_app.report.command_line import main
from tests.server_app.made_runs import change_table, real_run

WORDS = {"fedalign": ("strategy.epsilon=0.4",), "qfedavg": ("strategy=qfedavg",)}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return what makes a run of each strategy, once."""
    folder = tmp_path_factory.mktemp("runs")

    def run(name: str) -> Path:
        if not (folder / name).exists():
            real_run(folder / name, *WORDS[name])
        return folder / name

    return run


def test_the_command_tells_what_it_did(
    runs: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Status 0 where all fits, and a line for what the records cannot show."""
    run = str(runs("fedalign"))
    capsys.readouterr()
    assert main(["--audit", run]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == run
    assert lines[1].startswith("  fedalign, seed 1, completed: 5 of 5 rounds and ")
    assert lines[2].startswith("  not in the records: why clients stayed silent")
    assert lines[-1] == "  all of them fit"


def halve(rows: list[dict[str, Any]]) -> None:
    """Give every client a weight of a half."""
    for row in rows:
        row["weight"] = 0.5


def test_the_command_ends_with_1_where_something_does_not_fit(
    runs: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One damaged run of a folder is enough; at most twenty lines of it are printed."""
    for name in WORDS:
        shutil.copytree(runs(name), tmp_path / name)
    change_table(tmp_path / "qfedavg", "clients", halve)
    assert main(["--audit", str(tmp_path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert sum(text.startswith("  does not fit: ") for text in lines) == 20
    assert any(text.startswith("  ... and ") for text in lines)
    assert "  all of them fit" in lines


def test_the_command_explains_one_decision(
    runs: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """--client and --round print the lines of the explanation."""
    words = ["--audit", str(runs("qfedavg")), "--client", "3", "--round", "2"]
    capsys.readouterr()
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == list(explain(read_recorded(runs("qfedavg")), 3, 2))


@pytest.mark.parametrize(
    ("client", "number", "told"),
    [
        ("8", "1", "client must be the id of one of the run's 8 clients, got 8"),
        ("0", "6", "round must be from 1 to 5, the run's rounds, got 6"),
    ],
)
def test_a_decision_that_there_is_not(
    runs: Callable[[str], Path],
    capsys: pytest.CaptureFixture[str],
    client: str,
    number: str,
    told: str,
) -> None:
    """One line names the option, what is allowed, and what was given."""
    words = ["--audit", str(runs("qfedavg")), "--client", client, "--round", number]
    capsys.readouterr()
    assert main(words) == 1
    assert capsys.readouterr().err == f"fedquorum-report: {told}\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "expected a DIR with runs, --audit RUN or --watch DIR"),
        (["a", "--audit", "b"], "expected one of DIR, --audit RUN and --watch DIR"),
        (["a", "--client", "1", "--round", "1"], "expected --audit RUN with them"),
        (["--audit", "a", "--client", "1"], "--client and --round go together"),
    ],
)
def test_options_that_do_not_go_together(
    capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    """Usage and one line, as for every mistake in the words of a command."""
    with pytest.raises(SystemExit):
        main(words)
    assert told in capsys.readouterr().err.splitlines()[-1]
