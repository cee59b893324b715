"""``fedquorum audit``: what it prints, how it ends, and words that do not go together."""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from fedquorum.audit.command_line import format_summary_line
from fedquorum.audit.explain import describe_decision
from fedquorum.audit.replay import read_audit_input

from server_app.commands import main
from tests.server_app.made_runs import change_table, make_real_run

WORDS = {"fedalign": ("strategy.epsilon=0.4",), "qfedavg": ("strategy=qfedavg",)}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return what makes a run of each strategy, once."""
    folder = tmp_path_factory.mktemp("runs")

    def run(name: str) -> Path:
        if not (folder / name).exists():
            make_real_run(folder / name, *WORDS[name])
        return folder / name

    return run


def test_the_command_reports_what_it_checked(
    runs: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Status 0 where all fits, and a line for what the records cannot show."""
    run = str(runs("fedalign"))
    capsys.readouterr()
    assert main(["audit", run]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == run
    assert lines[1].startswith("  fedalign, seed 1, completed: 5 of 5 rounds and ")
    assert lines[2].startswith("  not in the records: ")
    assert lines[-1] == f"  {format_summary_line(0)}"


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
    assert main(["audit", str(tmp_path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert sum(text.startswith("  mismatch: ") for text in lines) == 20
    assert any(text.startswith("  ... and ") for text in lines)
    assert f"  {format_summary_line(0)}" in lines


def test_the_command_explains_one_decision(
    runs: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """--client and --round print the lines of the explanation."""
    words = ["audit", str(runs("qfedavg")), "--client", "3", "--round", "2"]
    capsys.readouterr()
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == list(describe_decision(read_audit_input(runs("qfedavg")), 3, 2))


@pytest.mark.parametrize(
    ("client", "number", "told"), [("8", "1", "client must be"), ("0", "6", "round must be")]
)
def test_a_decision_that_there_is_not(
    runs: Callable[[str], Path],
    capsys: pytest.CaptureFixture[str],
    client: str,
    number: str,
    told: str,
) -> None:
    """One line names the option, what is allowed, and what was given."""
    words = ["audit", str(runs("qfedavg")), "--client", client, "--round", number]
    capsys.readouterr()
    assert main(words) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"fedquorum audit: {told} ")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["audit"], "the following arguments are required: DIR"),
        (
            ["audit", "a", "--client", "1"],
            "--client and --round go together: type --client K --round T",
        ),
    ],
)
def test_options_that_do_not_go_together(
    capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    """Usage and one line, as for every mistake in the words of a command."""
    with pytest.raises(SystemExit):
        main(words)
    assert told in capsys.readouterr().err.splitlines()[-1]


def test_rules_that_records_name_are_not_imported(
    runs: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Unless whoever asks says so; the other runs are decided again."""
    (tmp_path / "rules.py").write_text("from fedquorum.weighting import TERMWeighting as Tilted\n")
    rule = ("strategy=custom", f"strategy.path={tmp_path}/rules.py:Tilted")
    make_real_run(tmp_path / "a", *rule, "strategy.args={tilt: 1.0}")
    shutil.copytree(runs("qfedavg"), tmp_path / "b")
    file = str(tmp_path / "rules.py")
    (imported,) = [name for name, m in sys.modules.items() if vars(m).get("__file__") == file]
    del sys.modules[imported]
    capsys.readouterr()
    assert main(["audit", str(tmp_path)]) == 1
    told = capsys.readouterr()
    (line,) = told.err.splitlines()
    assert line.startswith(f"fedquorum audit: {tmp_path}/a/config.yaml: strategy.path must be ")
    assert "--trust" in line
    assert imported not in sys.modules
    assert told.out.splitlines()[0] == str(tmp_path / "b")
    assert told.out.splitlines()[-1] == f"  {format_summary_line(0)}"
    assert main(["audit", str(tmp_path), "--trust"]) == 0
    assert imported in sys.modules


@pytest.mark.parametrize("path", ["os.system", "{}/planted.py:Rule"])
def test_a_run_that_names_code_runs_none(
    runs: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], path: str
) -> None:
    """Neither where it is decided again nor where a decision is explained."""
    run = Path(shutil.copytree(runs("fedalign"), tmp_path / "run"))
    ran = tmp_path / "ran"
    (tmp_path / "planted.py").write_text(f"open({str(ran)!r}, 'w')")
    settings = yaml.safe_load((run / "config.yaml").read_text())
    settings["strategy"] = {"name": "custom", "path": path.format(tmp_path)}
    settings["strategy"]["args"] = {"command": f"touch {ran}"}
    (run / "config.yaml").write_text(yaml.safe_dump(settings))
    for words in ([], ["--client", "0", "--round", "1"]):
        assert main(["audit", str(run), *words]) == 1
        assert "strategy.path must be absent" in capsys.readouterr().err
    assert not ran.exists()


def test_a_damaged_run_hides_no_other(
    runs: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is a line that names the file."""
    for name in ("a", "b"):
        shutil.copytree(runs("fedalign"), tmp_path / name)
    table = pq.read_table(tmp_path / "a" / "population.parquet")
    pq.write_table(pa.concat_tables([table, table]), tmp_path / "a" / "population.parquet")
    capsys.readouterr()
    assert main(["audit", str(tmp_path)]) == 1
    told = capsys.readouterr()
    assert told.err.splitlines() == [
        f"fedquorum audit: {tmp_path}/a/population.parquet: expected each client once, got 0 again"
    ]
    assert told.out.splitlines()[0] == str(tmp_path / "b")
