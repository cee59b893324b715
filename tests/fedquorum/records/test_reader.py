"""Tests of reading runs, whole and damaged."""

import errno
import json
import math
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fedquorum.errors import RunError
from fedquorum.records.callback import FinishedRound
from fedquorum.records.reader import (
    check_tables,
    explain_not_a_run,
    find_runs,
    load_run,
    read_manifest,
    read_runs,
    read_table,
)
from fedquorum.records.tables import CLIENTS_SCHEMA
from fedquorum.rules.decisions import LateReply

from tests.fedquorum.records.made import (
    EVALUATIONS,
    make_round_line,
    make_round_record,
    make_run,
    open_records,
    report,
    write_part,
    write_population,
)


def test_a_run_is_read_as_it_was_recorded(tmp_path: Path) -> None:
    """An infinite epsilon and an undefined loss are retained."""
    first = make_round_record(report(1, epsilon=math.inf))
    second = replace(
        make_round_record(report(2)),
        global_loss=math.nan,
        late_replies=(LateReply(1, 7, 2.5),),
        simulated_seconds=4.0,
        validation={"all": {"accuracy": 0.75, "loss": 0.5}},
    )
    with open_records(tmp_path / "run") as records:
        for record in (first, second):
            records.end_round(FinishedRound(record, report(record.round), EVALUATIONS))
    run = load_run(tmp_path / "run")
    assert (run.status, run.experiment, run.strategy) == (
        "completed",
        "fedalign/synth_low",
        "fedalign",
    )
    assert (run.seed, run.settings) == (7, {"client.lr": 0.05, "seed": 7})
    assert run.config == {"client": {"lr": 0.05}, "seed": 7}
    assert run.rounds[0] == first
    assert math.isnan(run.rounds[1].global_loss)
    assert (run.rounds[0].epsilon, run.rounds[1].test) == (math.inf, None)
    assert run.rounds[1].late_replies == (LateReply(1, 7, 2.5),)
    assert (run.rounds[1].simulated_seconds, run.rounds[0].simulated_seconds) == (4.0, None)
    assert (run.rounds[1].validation or {})["all"] == {"accuracy": 0.75, "loss": 0.5}


# --- whole and damaged -----------------------------------------------------------------------


def test_finds_runs_at_any_depth_once(tmp_path: Path) -> None:
    """The search does not look below a run, and finds no run twice."""
    one = make_run(tmp_path / "a" / "deep" / "one", [])
    two = make_run(tmp_path / "two", [])
    make_run(two / "inside", [])
    assert find_runs([tmp_path, one]) == (one, two)


def test_an_unreadable_folder_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is left out and reported if the caller handles errors."""
    one = make_run(tmp_path / "one", [])
    (tmp_path / "closed").mkdir()
    scan = os.scandir

    def deny_closed(path: str) -> object:
        if path.endswith("closed"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", deny_closed)
    expected = rf"expected a folder that can be read, got {tmp_path}/closed \(Permission denied\)"
    with pytest.raises(RunError, match=expected):
        find_runs([tmp_path])
    runs, (problem,) = read_runs([tmp_path])
    assert [run.directory for run in runs] == [one]
    assert re.fullmatch(expected, problem)


def test_a_folder_without_runs_is_named(tmp_path: Path) -> None:
    """The folder has no run, or does not exist."""
    expected = rf"^expected a folder with runs \(manifest.json\) in it, got {tmp_path}$"
    with pytest.raises(RunError, match=expected):
        find_runs([tmp_path])
    missing = (
        rf"^expected a folder that can be read, got {tmp_path}/a \(No such file or directory\)$"
    )
    with pytest.raises(RunError, match=missing):
        read_runs([tmp_path / "a"])


def test_the_reason_why_a_folder_is_no_run_is_reported(tmp_path: Path) -> None:
    """The folder is missing, has no manifest, or has a damaged one."""
    run = make_run(tmp_path / "run", [])
    assert explain_not_a_run(tmp_path / "a") == f"{tmp_path}/a: there is no such folder"
    assert explain_not_a_run(tmp_path) == f"{tmp_path}: it has no manifest.json"
    assert explain_not_a_run(run, RunError("line 1")) == f"{run}: line 1"


@pytest.mark.parametrize("torn", ['{"round": 3, "epsi', "{", '{"round": 3'])
def test_a_torn_last_line_is_ignored(tmp_path: Path, torn: str) -> None:
    """The partial line of an interrupted process is ignored, and earlier rounds are kept."""
    run = make_run(tmp_path / "run", [make_round_line(1), make_round_line(2)], status="interrupted")
    with (run / "rounds.jsonl").open("a") as file:
        file.write(torn)
    assert [record.round for record in load_run(run).rounds] == [1, 2]


def test_a_complete_last_line_without_line_end_counts(tmp_path: Path) -> None:
    """An editor that drops the last line end drops no round."""
    run = make_run(tmp_path / "run", [make_round_line(1), make_round_line(2)])
    text = (run / "rounds.jsonl").read_text()
    (run / "rounds.jsonl").write_text(text.rstrip("\n"))
    assert [record.round for record in load_run(run).rounds] == [1, 2]


@pytest.mark.parametrize(
    ("damaged", "problem"),
    [
        ('{"round": 2, "epsi', "expected one round as a JSON object, got something else"),
        ("[2]", r"a record must be a JSON object, got \[2\]"),
        (json.dumps({"round": 2}), "selected is missing"),
        (json.dumps(make_round_line(2, trained=-1)), "trained must be a whole number >= 0, got -1"),
        (
            json.dumps(make_round_line(2, theta="much")),
            "theta must be a number, null or inf, got 'much'",
        ),
        (json.dumps(make_round_line(2, test={"all": {"worst": 1}})), "accuracy is missing"),
        ("[" * 100_000, "expected one round as a JSON object, got something else"),
        (
            json.dumps(make_round_line(2, duration_seconds=10**400)),
            "duration_seconds must be a number of at most 1.8e308, got a larger",
        ),
        (json.dumps(make_round_line(2, unregistered=1)), "unregistered must be a list, got 1"),
        (json.dumps(make_round_line(2, late_replies={})), "late_replies must be a list, got {}"),
    ],
)
def test_a_damaged_line_is_named(tmp_path: Path, damaged: str, problem: str) -> None:
    """The error names the file, the line number and the problem."""
    run = make_run(tmp_path / "run", [make_round_line(1)])
    with (run / "rounds.jsonl").open("a") as file:
        file.write(damaged + "\n" + json.dumps(make_round_line(3)) + "\n")
    with pytest.raises(RunError, match=rf"run/rounds\.jsonl, line 2: {problem}"):
        load_run(run)


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("manifest.json", '{\n"status": }', r"manifest\.json, line 2: expected JSON"),
        ("manifest.json", "{}", r"manifest\.json: format is missing"),
        ("manifest.json", '{"format": 1}', r"manifest\.json: experiment is missing"),
        (
            "manifest.json",
            '{"format": 2}',
            r"manifest\.json: format must be 1, .*, got 2: read them",
        ),
        ("manifest.json", "[" * 100_000, r"manifest\.json: expected JSON, got lists in lists"),
        ("config.yaml", "a: 1\nb: [", r"config\.yaml, line \d: expected YAML"),
        ("config.yaml", "- 1\n", r"config\.yaml: expected settings by name, got list"),
        ("config.yaml", "a: &a 1\nb: *a\n", r"config\.yaml, line 2: .* found undefined alias"),
        ("config.yaml", "a: \xff\n", r"config\.yaml: expected YAML in UTF-8"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, name: str, text: str, problem: str) -> None:
    """Manifest and settings are checked like the rounds."""
    run = make_run(tmp_path / "run", [make_round_line(1)])
    (run / name).write_text(text, encoding="latin-1")
    with pytest.raises(RunError, match=problem):
        load_run(run)


def test_an_invalid_status_is_refused(tmp_path: Path) -> None:
    """Runs have one of four statuses."""
    run = make_run(tmp_path / "run", [], status="done")
    with pytest.raises(RunError, match=r"status must be one of completed, .*, got 'done'"):
        load_run(run)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """For a run without rounds.jsonl, the error names that file."""
    run = make_run(tmp_path / "run", [])
    (run / "rounds.jsonl").unlink()
    with pytest.raises(RunError, match=r"expected a file of a run, got .*rounds\.jsonl"):
        load_run(run)


# --- untrusted runs ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"experiment": "\x1b[31m"}, "experiment must be one line of at most 200 bytes"),
        ({"strategy": "x" * 201}, "strategy must be one line"),
        ({"rounds": 2**60}, "rounds must be a whole number <= 9007199254740992, got a larger one"),
        ({"summary": {"mixing": [1]}}, "mixing must be a JSON object"),
        ({"summary": {"mixing": {"regret": "x"}}}, "regret must be a number, null or inf"),
        ({"summary": {"admitted_rounds": {"0": -1}}}, "0 must be a whole number >= 0"),
        ({"experiment": 5}, "experiment must be a text, got 5"),
        ({"overrides": "rounds=5"}, "overrides must be a list of texts, got 'rounds=5'"),
        (
            {"overrides": ["rounds=5", 5]},
            r"overrides must be a list of texts, got \['rounds=5', 5\]",
        ),
    ],
)
def test_an_unusable_manifest_is_refused(
    tmp_path: Path, changes: dict[str, Any], problem: str
) -> None:
    """Reports use its fields as file names, cells and terms of sums."""
    run = make_run(tmp_path / "run", [make_round_line(1)], **changes)
    with pytest.raises(RunError, match=rf"manifest\.json: {problem}") as refused:
        load_run(run)
    assert str(refused.value).isprintable()


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"bytes_up": 2**60}, "bytes_up must be a whole number <= "),
        ({"global_loss": 10**309}, "global_loss must be a number of at most 1.8e308, got"),
        ({"global_loss": "nan"}, "global_loss must be a number, null or inf, got 'nan'"),
        ({"refused": "out of memory"}, "refused must be null or one of 'the model would not be"),
        ({"unregistered": [[]]}, r"unregistered must be a whole number >= 0, got \[\]"),
        ({"theta": "\x1b" * 1000}, "theta must be a number"),
    ],
)
def test_an_unusable_round_is_refused(
    tmp_path: Path, changes: dict[str, Any], problem: str
) -> None:
    """The error has the line number, is short and printable."""
    run = make_run(tmp_path / "run", [make_round_line(1, **changes)])
    with pytest.raises(RunError, match=rf"rounds\.jsonl, line 1: {problem}") as refused:
        load_run(run)
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize("name", ["manifest.json", "config.yaml", "rounds.jsonl", "clients"])
def test_a_record_behind_a_link_is_not_read(tmp_path: Path, name: str) -> None:
    """Links are not followed, wherever they lead."""
    run = make_run(tmp_path / "run", [make_round_line(1)])
    write_part(run, 0, [{"round": 1, "client": 0}])
    (run / name).rename(tmp_path / "elsewhere")
    (run / name).symlink_to(tmp_path / "elsewhere")
    runs, (problem,) = read_runs([tmp_path])
    assert runs == ()
    assert problem == f"{run / name} cannot be read: links are not followed"


def test_a_population_with_a_client_twice_is_refused(tmp_path: Path) -> None:
    """The client would count twice."""
    run = make_run(tmp_path / "run", [make_round_line(1)])
    write_population(run, [0.5, 0.5], [True, False])
    table = pq.read_table(run / "population.parquet")
    pq.write_table(pa.concat_tables([table, table]), run / "population.parquet")
    with pytest.raises(RunError, match="expected each client once, got 0 again"):
        check_tables(run)


# --- single records ---------------------------------------------------------------------------


def test_a_manifest_without_arithmetic_gets_an_empty_one(tmp_path: Path) -> None:
    """The run was never resumed, and its manifest has no arithmetic."""
    manifest = read_manifest(make_run(tmp_path / "run", []))
    assert (manifest["resumed"], manifest["arithmetic"]) == ([], {})
    assert manifest["experiment"] == "fedalign/synth_low"


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"resumed": {}}, "resumed must be a list, got {}"),
        ({"arithmetic": [1]}, r"arithmetic must be a dict, got \[1\]"),
    ],
)
def test_a_manifest_that_cannot_be_resumed_is_refused(
    tmp_path: Path, changes: dict[str, Any], problem: str
) -> None:
    """The error names the path and the field."""
    run = make_run(tmp_path / "run", [], **changes)
    with pytest.raises(RunError, match=rf"^{run}/manifest\.json: {problem}$"):
        read_manifest(run)


def test_a_table_without_files_has_no_rows(tmp_path: Path) -> None:
    """A run that stopped before the first file has all columns; without a folder, it has none."""
    run = make_run(tmp_path / "run", [])
    (run / "clients").mkdir()
    table = read_table(run / "clients")
    assert (table.num_rows, table.schema) == (0, CLIENTS_SCHEMA)
    missing = rf"^expected a folder of a run, got {run}/evaluations \(No such file or directory\)$"
    with pytest.raises(RunError, match=missing):
        read_table(run / "evaluations")
