"""Test that a resume refuses other data before it changes any record."""

import json
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from fedquorum.audit.check import audit_run
from fedquorum.errors import SettingsError
from fedquorum.records.checkpoint import CheckpointStore
from fedquorum.records.data_fingerprint import get_fingerprint
from fedquorum.records.reader import read_manifest

from client_app.data import load
from server_app.cli.commands import main
from server_app.runs.data_check import UNKNOWN
from server_app.runs.resume import merge_resumed_overrides
from tests.builders_runs import assert_same_results, make_client_overrides, run_here

SITES = ("North", "South", "West")
ROWS = tuple(
    f"{SITES[i % 3]},{20 + i},{i % 7 + 0.5},{'yes' if i % 5 < 2 else 'no'}" for i in range(60)
)
SETTINGS = (
    "experiment=custom",
    "data=csv",
    "data.client_column=site",
    "data.target=ill",
    "strategy=fedavg",
    "client.local_epochs=1",
)


def write(path: Path, rows: tuple[str, ...]) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(["site,age,dose,ill", *rows]) + "\n")
    return path


def start(directory: Path, table: Path, *overrides: str) -> Path:
    """Run as a new process does, which has no data in memory."""
    load._last.clear()
    return run_here(directory, *SETTINGS, "rounds=2", f"data.path={table}", *overrides)


def resume(run: Path, *overrides: str) -> Path:
    load._last.clear()
    merged = merge_resumed_overrides([f"resume={run}", "rounds=3", *overrides])
    return run_here(run, *(item for item in merged if not item.startswith("hydra.")))


def read_files(run: Path) -> dict[str, bytes]:
    return {str(p.relative_to(run)): p.read_bytes() for p in run.rglob("*") if p.is_file()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "text"),
    [
        (ROWS[3:], r"rows of clients North 20 -> 19, South 20 -> 19, West 20 -> 19"),
        ((f"{ROWS[0][:-3]}no", *ROWS[1:]), r"targets of client North changed"),
        ((ROWS[0].replace("20", "99"), *ROWS[1:]), r"inputs \(the file's content changed\)"),
        ((*ROWS, "Centre,1,1,yes", "Centre,2,1,no"), r"client Centre new"),
    ],
    ids=["rows-gone", "label-flipped", "input", "site-more"],
)
def test_other_data_is_refused_before_anything_changes(
    tmp_path: Path, rows: tuple[str, ...], text: str
) -> None:
    """The line names what differs and what to type, and the run's folder keeps every byte."""
    table = write(tmp_path / "t.csv", ROWS)
    run = start(tmp_path / "run", table)
    before = read_files(run)
    write(table, rows)
    with pytest.raises(
        SettingsError,
        match=rf"^data\.path must lead to the data of the run so far, got .*t\.csv with other "
        rf"data: {text}\. Bring that data back \(data\.path=PLACE if it has moved\), or start a "
        r"new run without resume=",
    ):
        resume(run)
    assert read_files(run) == before
    write(table, ROWS)
    os.utime(table, (1, 1))
    resume(run)
    assert_same_results(run, start(tmp_path / "whole", table, "rounds=3"))


def test_moved_data_resumes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``data.path`` may name another place of the same data, which the audit accepts."""
    table = write(tmp_path / "t.csv", ROWS)
    run = start(tmp_path / "run", table)
    moved = write(tmp_path / "moved" / "copy.csv", ROWS)
    table.unlink()
    resume(run, f"data.path={moved}")
    assert audit_run(run).mismatches == ()
    manifest = read_manifest(run)
    assert manifest["resumed"][0]["before"]["data.path"] == str(table)
    write(moved, ROWS[1:])
    with pytest.raises(SettingsError, match="rows of client North 20 -> 19"):
        resume(run)
    assert UNKNOWN not in capsys.readouterr().out


def test_records_without_a_fingerprint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Those of earlier versions resume with a line, and their data may not move."""
    table = write(tmp_path / "t.csv", ROWS)
    run = start(tmp_path / "run", table)
    assert get_fingerprint(read_manifest(run))["rows"] == len(ROWS)
    forget_fingerprint(run)
    moved = write(tmp_path / "moved" / "t.csv", ROWS)
    with pytest.raises(SettingsError, match=r"^data\.path must be .*as in the run so far"):
        resume(run, f"data.path={moved}")
    capsys.readouterr()
    resume(run)
    assert UNKNOWN in " ".join(capsys.readouterr().out.split())
    assert get_fingerprint(read_manifest(run))["rows"] == len(ROWS)


def forget_fingerprint(run: Path) -> None:
    """Remove the fingerprint from the records of a run."""
    manifest = json.loads((run / "manifest.json").read_text())
    del manifest["data"]["fingerprint"]
    (run / "manifest.json").write_text(json.dumps(manifest))
    store = CheckpointStore(run)
    checkpoint = store.find_newest().checkpoint
    assert checkpoint is not None
    store.save(replace(checkpoint, data={}))


def test_the_audit_compares_manifest_and_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It shows the fingerprint, and a manifest with another one is a mismatch."""
    run = start(tmp_path / "run", write(tmp_path / "t.csv", ROWS))
    capsys.readouterr()
    assert main(["audit", str(run)]) == 0
    assert "  data: the content of 1 file (SHA-256 " in capsys.readouterr().out
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["data"]["fingerprint"]["by_client"]["1"]["rows"] = 99
    (run / "manifest.json").write_text(json.dumps(manifest))
    texts = [mismatch.text for mismatch in audit_run(run).mismatches]
    assert texts
    assert all("the data is not that of round-00000" in text for text in texts)
    assert "rows of client 1 20 -> 99" in texts[0]
    shutil.rmtree(run / "checkpoints")
    assert audit_run(run).mismatches == ()


def test_generated_data_resumes(tmp_path: Path) -> None:
    """It has no files, so nothing is read."""
    overrides = make_client_overrides(4, 2)
    load._last.clear()
    run = run_here(tmp_path / "run", *overrides, "rounds=2")
    assert get_fingerprint(read_manifest(run)) == {"inputs": {"by": "settings"}}
    resume(run)


@pytest.mark.slow
def test_the_command_refuses_other_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """``fedquorum resume=RUN`` prints one line and ends with 1."""

    def call(*arguments: str) -> Callable[[], int]:
        load._last.clear()
        monkeypatch.setattr(sys, "argv", ["fedquorum", *arguments])
        return lambda: main(list(arguments))

    table = write(tmp_path / "t.csv", ROWS)
    run = tmp_path / "run"
    assert call(*SETTINGS, "rounds=2", f"data.path={table}", f"hydra.run.dir={run}")() == 0
    write(table, ROWS[1:])
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        call(f"resume={run}", "rounds=4")()
    assert end.value.code == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("fedquorum: data.path must lead to the data of the run so far")
    assert "rows of client North 20 -> 19" in line
    write(table, ROWS)
    assert call(f"resume={run}", "rounds=4")() == 0
