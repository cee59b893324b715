"""Test ``fedquorum audit``: its output, its exit status, and its errors."""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from fedquorum.audit.cli import format_summary_line
from fedquorum.audit.explain import describe_decision
from fedquorum.audit.replay import read_audit_input

from server_app.cli.commands import main
from tests.server_app.made_runs import change_table, make_real_run

OVERRIDES = {"fedalign": ("strategy.epsilon=0.4",), "qfedavg": ("strategy=qfedavg",)}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that makes a run of a strategy once, and returns its folder."""
    folder = tmp_path_factory.mktemp("runs")

    def run(name: str) -> Path:
        if not (folder / name).exists():
            make_real_run(folder / name, *OVERRIDES[name])
        return folder / name

    return run


def test_the_command_prints_a_summary_of_its_checks(
    runs: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit status is 0 without mismatches; one line lists facts missing in the records."""
    run = str(runs("fedalign"))
    capsys.readouterr()
    assert main(["audit", run]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == run
    assert lines[1].startswith("  fedalign, seed 1, completed: 5 of 5 rounds and ")
    assert lines[2].startswith("  not in the records: ")
    assert lines[-1] == f"  {format_summary_line(0)}"


def set_half_weights(rows: list[dict[str, Any]]) -> None:
    """Set the weight of every client to 0.5."""
    for row in rows:
        row["weight"] = 0.5


def test_the_command_ends_with_1_after_a_mismatch(
    runs: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One run with mismatches is enough, of which at most twenty are printed."""
    for name in OVERRIDES:
        shutil.copytree(runs(name), tmp_path / name)
    change_table(tmp_path / "qfedavg", "clients", set_half_weights)
    assert main(["audit", str(tmp_path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert sum(text.startswith("  mismatch: ") for text in lines) == 20
    assert any(text.startswith("  ... and ") for text in lines)
    assert f"  {format_summary_line(0)}" in lines


def test_the_command_explains_one_decision(
    runs: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """--client and --round print the lines of ``describe_decision``."""
    arguments = ["audit", str(runs("qfedavg")), "--client", "3", "--round", "2"]
    capsys.readouterr()
    assert main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == list(describe_decision(read_audit_input(runs("qfedavg")), 3, 2))


@pytest.mark.parametrize(
    ("client", "number", "message"), [("8", "1", "client must be"), ("0", "6", "round must be")]
)
def test_a_client_or_round_out_of_range_is_refused(
    runs: Callable[[str], Path],
    capsys: pytest.CaptureFixture[str],
    client: str,
    number: str,
    message: str,
) -> None:
    """The error is one line with the option."""
    arguments = ["audit", str(runs("qfedavg")), "--client", client, "--round", number]
    capsys.readouterr()
    assert main(arguments) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"fedquorum audit: {message} ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["audit"], "the following arguments are required: DIR"),
        (
            ["audit", "a", "--client", "1"],
            "--client and --round go together: type --client K --round T",
        ),
    ],
)
def test_missing_arguments_and_options_are_refused(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    """The command prints its usage and one line with the error."""
    with pytest.raises(SystemExit):
        main(arguments)
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_rules_named_by_records_are_imported_only_with_trust(
    runs: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without --trust, the run is refused and the other runs are audited."""
    (tmp_path / "rules.py").write_text(
        "from fedquorum.rules.weighting import TERMWeighting as Tilted\n"
    )
    rule = ("strategy=custom", f"strategy.path={tmp_path}/rules.py:Tilted")
    make_real_run(tmp_path / "a", *rule, "strategy.args={tilt: 1.0}")
    shutil.copytree(runs("qfedavg"), tmp_path / "b")
    file = str(tmp_path / "rules.py")
    (imported,) = [name for name, m in sys.modules.items() if vars(m).get("__file__") == file]
    del sys.modules[imported]
    capsys.readouterr()
    assert main(["audit", str(tmp_path)]) == 1
    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    assert line.startswith(f"fedquorum audit: {tmp_path}/a/config.yaml: strategy.path must be ")
    assert "--trust" in line
    assert imported not in sys.modules
    assert captured.out.splitlines()[0] == str(tmp_path / "b")
    assert captured.out.splitlines()[-1] == f"  {format_summary_line(0)}"
    assert main(["audit", str(tmp_path), "--trust"]) == 0
    assert imported in sys.modules


@pytest.mark.parametrize("path", ["os.system", "{}/planted.py:Rule"])
def test_code_named_by_a_run_is_not_executed(
    runs: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], path: str
) -> None:
    """Neither the audit nor the explanation of a decision imports it."""
    run = Path(shutil.copytree(runs("fedalign"), tmp_path / "run"))
    ran = tmp_path / "ran"
    (tmp_path / "planted.py").write_text(f"open({str(ran)!r}, 'w')")
    settings = yaml.safe_load((run / "config.yaml").read_text())
    settings["strategy"] = {"name": "custom", "path": path.format(tmp_path)}
    settings["strategy"]["args"] = {"command": f"touch {ran}"}
    (run / "config.yaml").write_text(yaml.safe_dump(settings))
    for arguments in ([], ["--client", "0", "--round", "1"]):
        assert main(["audit", str(run), *arguments]) == 1
        assert "strategy.path must be absent" in capsys.readouterr().err
    assert not ran.exists()


def test_a_damaged_run_does_not_stop_the_audit_of_others(
    runs: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The damaged run is one line with the file."""
    for name in ("a", "b"):
        shutil.copytree(runs("fedalign"), tmp_path / name)
    table = pq.read_table(tmp_path / "a" / "population.parquet")
    pq.write_table(pa.concat_tables([table, table]), tmp_path / "a" / "population.parquet")
    capsys.readouterr()
    assert main(["audit", str(tmp_path)]) == 1
    captured = capsys.readouterr()
    assert captured.err.splitlines() == [
        f"fedquorum audit: {tmp_path}/a/population.parquet: expected each client once, got 0 again"
    ]
    assert captured.out.splitlines()[0] == str(tmp_path / "b")
