"""A run that is followed: read while it is written, and whoever wrote it."""

import math
import os
import threading
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fedquorum.errors import RunError
from fedquorum.records import parquet as parquet_module
from fedquorum.records.folder import RunFolder
from fedquorum.records.parts import Span, is_covered
from fedquorum.records.reader import load_run
from fedquorum.records.tables import CLIENTS_SCHEMA

from conf.compose import compose_words
from server_app.job import run_in_process
from server_app.report.watch import clients as clients_module
from server_app.report.watch import folder as folder_module
from server_app.report.watch import rounds as rounds_module
from server_app.report.watch.charts import charts
from server_app.report.watch.clients import Clients
from server_app.report.watch.folder import WatchedFolder
from server_app.report.watch.rounds import Rounds
from server_app.report.watch.run import FollowedRun
from server_app.report.watch.view import clients_table, run_view
from server_app.report.watch.watch import Watch
from tests.fedquorum.records.made import (
    FIXTURES,
    accuracy,
    append_rounds,
    line,
    make_run,
    write_part,
    write_population,
)
from tests.server_app.made_runs import SMALL

HOUR = 3600.0


def running(directory: Path, *lines: dict[str, Any], **manifest: Any) -> Path:
    """Return a run of ten rounds that goes on."""
    fields: dict[str, Any] = {"status": "running", "rounds": 10, **manifest}
    return make_run(directory, lines, **fields)


def read_rounds(run: Path) -> Rounds:
    """Return a run's rounds as they are read at once."""
    rounds = Rounds(RunFolder(run))
    assert rounds.read(math.inf)
    return rounds


def read_clients(run: Path) -> Clients:
    """Return a run's clients as they are read at once."""
    clients = Clients(RunFolder(run))
    assert clients.read(math.inf)
    return clients


def followed(run: Path) -> FollowedRun:
    """Return what is known of a run by now."""
    found = FollowedRun(RunFolder(run))
    found.refresh(HOUR)
    return found


def count_calls(monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str) -> list[str]:
    """Return a list that gets longer with every call of a module's function."""
    calls: list[str] = []
    function = getattr(module, name)

    def counted(*given: Any) -> Any:
        calls.append(name)
        return function(*given)

    monkeypatch.setattr(module, name, counted)
    return calls


def numbers(rounds: Rounds) -> list[float]:
    """Return the numbers of the rounds that are known."""
    return [float(number) for number in rounds.column("round")]


def table(view: dict[str, Any], name: str) -> dict[str, list[str]]:
    """Return a table of the page: the cells of each row behind its first."""
    (found,) = [one for one in view["tables"] if one["id"] == name]
    return {row[0]: list(row[1:]) for row in found["rows"]}


# --- rounds -----------------------------------------------------------------------------------


def test_lines_are_read_as_they_come(tmp_path: Path) -> None:
    """Nothing yet, one round, then two more; each line once, and a torn one when it is whole."""
    run = running(tmp_path / "run")
    rounds = read_rounds(run)
    assert (numbers(rounds), rounds.last) == ([], None)
    append_rounds(run, line(1, global_loss=2.0))
    assert rounds.read(math.inf)
    assert (numbers(rounds), rounds.latest("global_loss")) == ([1], 2.0)
    append_rounds(run, line(2, bytes_up=5), torn='{"round": 3, "epsilon"')
    rounds.read(math.inf)
    version = rounds.version
    assert (numbers(rounds), rounds.problem, rounds.bytes_up) == ([1, 2], "", 25.0)
    rounds.read(math.inf)
    assert rounds.version == version
    text = (run / "rounds.jsonl").read_text()
    (run / "rounds.jsonl").write_text(text[: text.index('{"round": 3')])
    append_rounds(run, line(3, late=2))
    rounds.read(math.inf)
    assert (numbers(rounds), rounds.answers["late"]) == ([1, 2, 3], 2.0)


def test_only_what_is_new_is_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the run is, a refresh costs what was written since the last one."""
    parsed = count_calls(monkeypatch, rounds_module, "parse_round")
    run = running(tmp_path / "run", *map(line, range(1, 1001)))
    rounds = read_rounds(run)
    assert len(parsed) == 1000
    append_rounds(run, line(1001))
    rounds.read(math.inf)
    assert (len(parsed), rounds.latest("round")) == (1001, 1001)
    rounds.read(math.inf)
    assert len(parsed) == 1001


def test_a_long_file_is_read_in_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No refresh takes longer than its time, and the page says how far it is."""
    monkeypatch.setattr(rounds_module, "BLOCK", 2000)
    run = running(tmp_path / "run", *map(line, range(1, 21)))
    rounds = Rounds(RunFolder(run))
    steps = 0
    while not rounds.read(0.0):
        steps += 1
        assert 0 < rounds.fraction_read <= 1
        assert len(numbers(rounds)) < 21
    assert steps > 3
    assert (numbers(rounds), rounds.fraction_read) == (list(range(1, 21)), 1.0)


@pytest.mark.parametrize("further", [1, 4])
def test_a_resumed_run_is_read_anew(tmp_path: Path, further: int) -> None:
    """The rounds behind its checkpoint are gone, even if it has passed them by the next look."""
    run = running(tmp_path / "run", line(1), line(2), line(3, global_loss=3.0))
    rounds = read_rounds(run)
    first, *_ = (run / "rounds.jsonl").read_bytes().splitlines(keepends=True)
    os.truncate(run / "rounds.jsonl", len(first))
    append_rounds(run, *(line(n, global_loss=9.0) for n in range(2, 2 + further)))
    rounds.read(math.inf)
    assert numbers(rounds) == list(range(1, 2 + further))
    assert list(rounds.column("global_loss")[1:]) == [9.0] * further
    assert rounds.bytes_down == 10 * (1 + further)


def test_a_run_that_is_removed_is_forgotten(tmp_path: Path) -> None:
    """As by a sweep that does a job again."""
    run = running(tmp_path / "run", line(1))
    rounds = read_rounds(run)
    (run / "rounds.jsonl").unlink()
    rounds.read(math.inf)
    assert (numbers(rounds), rounds.last) == ([], None)


@pytest.mark.parametrize(
    ("damaged", "problem"),
    [
        ("{", "expected one round as a JSON object"),
        ("[" * 100_000, "expected one round as a JSON object"),
        ('{"round": 2}', "asked is missing"),
        ("", "expected one round"),
        ("trained", "trained must be a whole number"),
        ("unknown", "unknown must be a list"),
        ("late_replies", "late_replies must be a list"),
        ("round", "expected a round after 1, got 1"),
        ("bytes_up", "bytes_up must be a whole number <= 9007199254740992"),
        ("seconds", "seconds must be a number of at most 1.8e308, got a larger one"),
    ],
)
def test_a_damaged_line_is_one_problem(tmp_path: Path, damaged: str, problem: str) -> None:
    """It is named with its number, and the rounds after it are shown."""
    wrong: dict[str, Any] = {
        "trained": {"trained": "\x1b[31m" + "x" * 1000},
        "unknown": {"unknown": 5},
        "late_replies": {"late_replies": {"round": 1}},
        "round": {"round": 1},
        "bytes_up": {"bytes_up": 10**400},
        "seconds": {"seconds": 10**400},
    }
    run = running(tmp_path / "run", line(1))
    if damaged in wrong:
        append_rounds(run, line(2, **wrong[damaged]) if damaged != "round" else line(1))
    else:
        append_rounds(run, torn=damaged + "\n")
    append_rounds(run, line(3))
    rounds = read_rounds(run)
    assert (numbers(rounds), rounds.damaged) == ([1, 3], 1)
    assert rounds.problem.startswith(f"{run}/rounds.jsonl, line 2: {problem}")
    assert len(rounds.problem) < 500
    assert rounds.problem.isprintable()
    append_rounds(run, torn="no round\n")
    found = followed(run)
    assert [problem.endswith(" (and 1 more)") for problem in found.problems] == [True]


def test_an_endless_line_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What stands before it is shown."""
    monkeypatch.setattr(rounds_module, "LONGEST_LINE", 3000)
    monkeypatch.setattr(rounds_module, "BLOCK", 1000)
    run = running(tmp_path / "run", line(1))
    append_rounds(run, torn="x" * 10_000)
    rounds = read_rounds(run)
    assert numbers(rounds) == [1]
    assert "line 2: expected at most" in rounds.problem
    append_rounds(run, torn="x" * 10_000)
    rounds.read(math.inf)
    assert rounds.damaged == 1


# --- clients ----------------------------------------------------------------------------------


def test_parts_are_read_as_they_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each client its last row counts; a part is opened once."""
    opened = count_calls(monkeypatch, clients_module, "_read_table")
    run = running(tmp_path / "run")
    clients = read_clients(run)
    assert list(clients.seen.client) == []
    write_population(run, rates=[1.0] * 4, priority=[True, False, False, False])
    write_part(run, 0, [{"round": 1, "client": 2}, {"round": 1, "client": 0, "priority": True}])
    clients.read(math.inf)
    write_part(
        run,
        1,
        [
            {"round": 2, "client": 2, "status": "late", "seconds": 2.5},
            {"round": 2, "client": 0, "priority": True},
            {"round": 3, "client": 2, "status": "failed", "reason": "it broke"},
        ],
    )
    clients.read(math.inf)
    clients.read(math.inf)
    seen = clients.seen
    assert list(seen.client) == [0, 1, 2, 3]
    assert list(seen.priority) == [True, False, False, False]
    assert list(seen.round) == [2, 0, 3, 0]
    assert list(seen.trained) == [2, 0, 1, 0]
    assert list(seen.late) == [0, 0, 1, 0]
    assert [clients_module.SHOWN_STATUSES[place] for place in seen.status] == [
        *("trained", "not asked yet", "failed", "not asked yet")
    ]
    assert list(seen.reason) == [None, None, "it broke", None]
    assert len(opened) == 3


def test_parts_that_are_merged_are_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their rows have been counted; where one has new rows, all are read."""
    opened = count_calls(monkeypatch, clients_module, "_read_table")
    run = running(tmp_path / "run")
    clients = read_clients(run)
    for number in range(4):
        write_part(run, number, [{"round": number + 1, "client": 0, "status": "late"}])
    clients.read(math.inf)
    before = len(opened)
    merge_parts(run, Span(0, 1))
    clients.read(math.inf)
    assert (len(opened), clients.seen.late.tolist()) == (before, [4])
    write_part(run, 4, [{"round": 5, "client": 0, "status": "late"}])
    merge_parts(run, Span(0, 4))
    clients.read(math.inf)
    assert clients.seen.late.tolist() == [5]
    assert clients.parts == (1, 1)


def merge_parts(run: Path, merged: Span) -> None:
    """Replace the parts that a larger one has the rows of."""
    folder = run / "clients"
    covered = sorted(path for path in folder.iterdir() if is_covered(path.name, [merged.name]))
    table = pa.concat_tables([pq.read_table(path) for path in covered])
    pq.write_table(table, folder / merged.name)
    for path in covered:
        path.unlink()


def test_many_parts_are_read_in_steps(tmp_path: Path) -> None:
    """No refresh takes longer than its time, and the page says how far it is."""
    run = running(tmp_path / "run", line(1))
    for number in range(3):
        write_part(run, number, [{"round": 1 + number, "client": number}])
    found = FollowedRun(RunFolder(run))
    told = []
    while not found.complete:
        found.refresh(0.0)
        told.append(next(iter(run_view(found)["notes"]), ""))
    assert told == [
        *(
            f"Reading the records: 100 % of the rounds, {read} of 3 parts of the table of clients"
            for read in (1, 2)
        ),
        "",
    ]


def test_clients_of_a_resumed_run_are_read_anew(tmp_path: Path) -> None:
    """A part that is gone, or another one by its name, counts no longer."""
    run = running(tmp_path / "run")
    write_part(run, 0, [{"round": 1, "client": 0}])
    second = write_part(run, 1, [{"round": 2, "client": 0, "status": "late"}])
    clients = read_clients(run)
    second.unlink()
    clients.read(math.inf)
    assert (list(clients.seen.round), list(clients.seen.late)) == ([1], [0])
    write_part(run, 1, [{"round": 2, "client": 0, "status": "busy", "reason": "still at work"}])
    clients.read(math.inf)
    assert list(clients.seen.reason) == ["still at work"]


def replaced(run: Path, **columns: pa.Array) -> None:
    """Write a part of one row with other columns; None leaves one out."""
    path = write_part(run, 1, [{"round": 2, "client": 1}])
    whole = pq.read_table(path)
    kept = {name: whole[name] for name in whole.column_names} | columns
    pq.write_table(pa.table({n: c for n, c in kept.items() if c is not None}), path)


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"status": None}, "expected a column status"),
        ({"status": pa.array(["gone"])}, "expected a status of trained, "),
        ({"status": pa.array([1])}, "expected texts in status, got int64"),
        ({"client": pa.array([None], pa.int32())}, "expected client in every row"),
        ({"client": pa.array(["x"])}, "Failed to parse string: 'x'"),
        ({"round": pa.array([2**63], pa.uint64())}, "Integer value"),
    ],
)
def test_a_damaged_part_is_one_problem(
    tmp_path: Path, columns: dict[str, pa.Array], problem: str
) -> None:
    """The other parts count."""
    run = running(tmp_path / "run")
    write_part(run, 0, [{"round": 1, "client": 0}])
    replaced(run, **columns)
    write_part(run, 2, [{"round": 3, "client": 2}])
    clients = read_clients(run)
    assert clients.problem.startswith(f"{run}/clients/part-00001.parquet: {problem}")
    assert list(clients.seen.client) == [0, 2]


def test_what_is_no_table_or_too_large_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it is unpacked."""
    run = running(tmp_path / "run")
    write_part(run, 0, [{"round": 1, "client": 0}]).write_bytes(b"PAR1 and no more")
    (run / "population.parquet").write_bytes(b"")
    assert "population.parquet: " in read_clients(run).problem
    (run / "population.parquet").unlink()
    assert "part-00000.parquet: " in read_clients(run).problem
    monkeypatch.setattr(parquet_module, "MOST_ROWS", 1)
    write_part(run, 0, [{"round": 1, "client": 0}] * 2)
    assert "expected at most 1 rows and 1024 MiB, got 2 rows" in read_clients(run).problem
    monkeypatch.setattr(parquet_module, "MOST_ROWS", 2)
    monkeypatch.setattr(clients_module, "MOST_CLIENTS", 1)
    write_part(run, 0, [{"round": 1, "client": 0}, {"round": 1, "client": 1}])
    assert "expected at most 1 clients, got 2" in read_clients(run).problem


def test_tables_of_the_version_before_are_read() -> None:
    """They have fewer columns."""
    clients = read_clients(FIXTURES / "fedalign")
    assert clients.problem == ""
    assert clients.parts == (3, 3)
    assert set(clients.seen.round) == {12}


# --- nothing outside the run is read ----------------------------------------------------------


@pytest.mark.parametrize("name", ["manifest.json", "config.yaml", "rounds.jsonl", "clients"])
def test_no_link_is_followed(tmp_path: Path, name: str) -> None:
    """Not even to a file that would do; the page has one line for it."""
    other = running(tmp_path / "other", line(1, global_loss=7.5))
    write_part(other, 0, [{"round": 1, "client": 5}])
    run = running(tmp_path / "runs" / "run")
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(other / name)
    found = followed(run)
    assert [problem for problem in found.problems if "links are not followed" in problem]
    assert len(found.problems) == 1
    assert (found.rounds.last, list(found.clients.seen.client)) == (None, [])


def test_neither_linked_parts_nor_linked_runs_are_read(tmp_path: Path) -> None:
    """A part may not be one, nor a run below the folder."""
    other = running(tmp_path / "other", line(1))
    part = write_part(other, 0, [{"round": 1, "client": 5}])
    run = running(tmp_path / "runs" / "run")
    (run / "clients").mkdir()
    (run / "clients" / part.name).symlink_to(part)
    clients = read_clients(run)
    assert "links are not followed" in clients.problem
    assert list(clients.seen.client) == []
    (tmp_path / "runs" / "linked").symlink_to(other)
    folder = WatchedFolder(tmp_path / "runs")
    folder.scan()
    assert list(folder.manifests) == ["run"]
    with pytest.raises(RunError, match=r"there is no run \.\./other below"):
        folder.follow("../other", 1.0)


def test_a_pipe_does_not_block(tmp_path: Path) -> None:
    """Nor is a folder read as a file."""
    run = running(tmp_path / "run")
    (run / "rounds.jsonl").unlink()
    os.mkfifo(run / "rounds.jsonl")
    assert "rounds.jsonl: expected a regular file" in read_rounds(run).problem
    (run / "config.yaml").unlink()
    (run / "config.yaml").mkdir()
    assert "config.yaml" in followed(run).problems[0]


# --- which run ----------------------------------------------------------------------------------


def scanned(folder: WatchedFolder) -> WatchedFolder:
    """Look for runs again, at once."""
    folder._next_scan = 0.0
    folder.scan()
    return folder


def test_the_newest_run_that_runs_is_shown(tmp_path: Path) -> None:
    """Where none runs, the newest of all; a run that begins later takes its place."""
    folder = WatchedFolder(tmp_path)
    with pytest.raises(RunError, match="no run has begun below"):
        folder.follow(None, 1.0)
    days = [f"2026-01-0{day}T00:00:00+00:00" for day in (1, 2, 3, 4)]
    make_run(tmp_path / "old", [], started=days[0])
    make_run(tmp_path / "new", [], started=days[3], status="failed", error="x")
    assert scanned(folder).newest() == "new"
    running(tmp_path / "sweep" / "0", started=days[1])
    running(tmp_path / "sweep" / "1", started=days[2])
    assert scanned(folder).newest() == "sweep/1"
    name, run = folder.follow("old", 1.0)
    assert (name, run.path) == ("old", tmp_path / "old")
    assert folder.follow("old", 1.0)[1] is run


def test_a_run_by_itself_is_shown_before_it_has_written_anything(tmp_path: Path) -> None:
    """First there is an empty folder, then a manifest, then rounds."""
    run = tmp_path / "run"
    run.mkdir()
    watch = Watch(run)
    waiting = watch.data(None, "")
    assert (waiting["run"], waiting["waiting"]) == (None, f"no run has begun below {run} yet")
    (run / "config.yaml").write_text("evaluation:\n  metric: auroc\n")
    made = running(tmp_path / "made")
    (made / "manifest.json").rename(run / "manifest.json")
    watch._folder._next_scan = 0.0
    begun = watch.data(None, "")
    assert (begun["run"], begun["runs"], begun["progress"]) == (".", None, "no round yet of 10")
    append_rounds(run, line(1))
    going_on = watch.data(None, begun["drawn"])
    assert going_on["progress"] == "round 1 of 10, about 0:00:01 left"
    assert watch._folder.follow(None, 1.0)[1].metric == "auroc"


def test_a_damaged_run_is_in_the_list(tmp_path: Path) -> None:
    """With what is wrong with it; it is not chosen over one that can be read."""
    running(tmp_path / "good")
    make_run(tmp_path / "bad", []).joinpath("manifest.json").write_text("[" * 100_000)
    watch = Watch(tmp_path)
    data = watch.data(None, "")
    assert data["run"] == "good"
    rows = {row[0]: row[1:] for row in data["runs"]["rows"]}
    assert rows["good"][:2] == ("shown", "running")
    assert f"{tmp_path}/bad/manifest.json: expected JSON" in rows["bad"][1]
    assert watch.data("bad", "")["problems"] == [rows["bad"][1]]
    assert "there is no run nowhere" in watch.data("nowhere", "")["waiting"]


def test_a_folder_without_end_is_searched_in_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page says so; and of many runs it holds only a few in memory."""
    for name in "abcdef":
        running(tmp_path / name)
    folder = WatchedFolder(tmp_path)
    for name in "abcdef":
        folder.follow(name, 1.0)
    assert list(folder._followed) == ["c", "d", "e", "f"]
    monkeypatch.setattr(folder_module, "MOST_FOLDERS", 3)
    assert scanned(folder).problem == "only the first 3 folders were searched for runs"
    assert list(folder.manifests) == ["a", "b"]


# --- what is shown ------------------------------------------------------------------------------


def test_the_numbers_of_the_last_round(tmp_path: Path) -> None:
    """Durations, loss, who is connected, who was late, and sums over rounds."""
    late = [{"round": 1, "client": 1, "seconds": 12.345}]
    run = running(
        tmp_path / "run",
        line(1, seconds=0.5, test=accuracy(0.5)),
        line(2, seconds=1.5, late=1, busy=2, late_replies=late, bytes_up=2_000_000, test=None),
    )
    write_population(run, rates=[1.0] * 4, priority=[True] * 4)
    write_part(
        run,
        0,
        [
            {"round": 2, "client": 0, "priority": True},
            {"round": 2, "client": 1, "priority": True, "status": "late"},
            {"round": 2, "client": 2, "priority": True, "status": "unavailable", "reason": "away"},
        ],
    )
    found = followed(run)
    view = run_view(found)
    assert view["title"] == "fedalign/synth_low, fedalign, seed 1"
    assert (view["progress"], view["share"]) == ("round 2 of 10, about 0:00:08 left", 0.2)
    assert table(view, "facts") == {
        "seconds a round": ["1.5 (mean of the last 20: 1)"],
        "training loss F(w)": ["1.0000 nats"],
        "training accuracy": ["50.0 %"],
        "updates admitted": ["3 of 4 clients asked"],
        "clients connected": ["2 of 4 (1 unavailable, 1 not asked yet)"],
        "late replies": ["1; client 1 replied to round 1 after 12.3 s"],
        "messages so far": ["20 B to the nodes, 2 MB from them"],
        "began": ["2026-01-01T00:00:00+00:00"],
    }
    assert table(view, "test")["priority"] == ["50.0", "-", "25.0", "-", "1.0000"]
    assert table(view, "statuses")["late"] == ["1", "1"]
    assert table(view, "statuses")["trained"] == ["3", "6"]
    shown_table = clients_table(found)
    assert shown_table.headings == (
        *("client", "priority", "status", "in round", "reason", "last trained", "late in rounds"),
        "last late reply",
    )
    assert shown_table.rows[1] == (
        *("1", "yes", "late", "2", "", "-", "1", "to round 1 after 12.3 s"),
    )
    assert shown_table.rows[3] == ("3", "yes", "not asked yet", "-", "", "-", "", "")


def test_simulated_seconds_are_shown_where_there_are_any(tmp_path: Path) -> None:
    """A run without a virtual clock says nothing of one."""
    plain = followed(running(tmp_path / "plain", line(1), line(2)))
    timed = followed(
        running(
            tmp_path / "timed", line(1, simulated_seconds=3.5), line(2, simulated_seconds=1234.56)
        )
    )
    assert "simulated seconds" not in table(run_view(plain), "facts")
    assert table(run_view(timed), "facts")["simulated seconds"] == ["1,234.6"]

    def x_labels(run: FollowedRun) -> list[str]:
        return [panel.x_label for chart in charts(run.rounds, run.metric) for panel in chart.panels]

    assert set(x_labels(plain)) == {"round"}
    assert x_labels(timed).count("simulated seconds") == 1


def test_the_charts_show_what_was_measured(tmp_path: Path) -> None:
    """Mean and worst client by round, F(w), statuses that occurred, seconds; no empty panel."""
    run = running(
        tmp_path / "run",
        line(1, test=accuracy(0.5, None), silent=1),
        line(2, test=None, silent=0, failed=2),
        line(3, test=accuracy(0.75, None), silent=0),
    )
    training, rounds = charts(read_rounds(run), "accuracy")
    tested, loss = training.panels
    assert (tested.title, tested.y_label) == ("priority clients", "test accuracy, %")
    assert loss.y_label == "training loss F(w), nats"
    mean, worst = tested.lines
    assert (mean.label, list(mean.x), list(mean.y)) == ("mean", [1, 3], [50.0, 75.0])
    assert (worst.label, list(worst.y)) == ("worst client", [25.0, 37.5])
    asked, seconds = rounds.panels
    assert [one.label for one in asked.lines] == ["trained", "silent", "failed"]
    assert (seconds.y_label, list(seconds.lines[0].y)) == ("seconds a round", [0.1] * 3)
    losses, *_ = charts(read_rounds(run), "loss")
    assert losses.panels[0].y_label == "test loss, nats"
    assert list(losses.panels[0].lines[0].y) == [1.0, 1.0]
    assert charts(read_rounds(running(tmp_path / "empty")), "accuracy") == ()


def test_a_long_run_is_drawn_with_few_points(tmp_path: Path) -> None:
    """And numbers beyond what a browser draws are left out."""
    run = running(tmp_path / "run", *map(line, range(1, 1502)), line(1502, global_loss=1e300))
    for chart in charts(read_rounds(run), "accuracy"):
        for panel in chart.panels:
            assert all(300 < len(one.x) <= 402 for one in panel.lines)
            assert all(np.isfinite(one.y.astype(np.float32)).all() for one in panel.lines)


def test_of_many_clients_those_that_matter_are_shown(tmp_path: Path) -> None:
    """100,000 of them; the failed and late ones come first, and the title says how many."""
    run = running(tmp_path / "run", line(1))
    count = 100_000
    columns: dict[str, Any] = {f.name: pa.nulls(count, f.type) for f in CLIENTS_SCHEMA}
    status = np.full(count, "trained", dtype=object)
    status[[70_000, 90_000]] = ["late", "failed"]
    columns |= {
        "round": np.ones(count, np.int32),
        "client": np.arange(count, dtype=np.int32),
        "priority": np.zeros(count, np.bool_),
        "status": pa.array(status.tolist()),
        "weight": np.zeros(count),
    }
    (run / "clients").mkdir()
    pq.write_table(pa.table(columns, CLIENTS_SCHEMA), run / "clients" / "part-00000.parquet")
    shown_table = clients_table(followed(run))
    assert shown_table.title == (
        "Clients (100,000), of which 500 are shown: failed, rejected, late and busy ones before "
        "others"
    )
    assert len(shown_table.rows) == 500
    assert [row[0] for row in shown_table.rows[:3]] == ["90000", "70000", "0"]


def test_charts_are_drawn_for_a_share_of_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounds that end faster than they can be drawn do not keep the machine busy."""
    run = running(tmp_path / "run", line(1))
    watch = Watch(run)
    first = watch.data(None, "")
    assert first["charts"]
    assert watch.data(None, first["drawn"])["charts"] is None
    append_rounds(run, line(2))
    soon = watch.data(None, first["drawn"])
    assert (soon["progress"].partition(",")[0], soon["charts"]) == ("round 2 of 10", None)
    monkeypatch.setattr(time, "monotonic", lambda now=time.monotonic: now() + HOUR)
    later = watch.data(None, first["drawn"])
    assert later["charts"]
    assert later["drawn"] != first["drawn"]


@pytest.mark.parametrize(
    ("status", "age", "shown_status", "note"),
    [
        ("running", 0.0, "running", ""),
        ("running", 30.0, "running", "The last record is 30 s old."),
        ("running", 7200.0, "perhaps killed", "Nothing was recorded for 2 h: the run may have"),
        ("completed", 7200.0, "completed", ""),
    ],
)
def test_a_killed_run_is_told(
    tmp_path: Path, status: str, age: float, shown_status: str, note: str
) -> None:
    """Its manifest says ``running`` for ever, but its rounds do not go on."""
    run = running(tmp_path / "run", line(1, seconds=1.0), status=status)
    then = time.time() - age
    for name in ("rounds.jsonl", "manifest.json"):
        os.utime(run / name, (then, then))
    view = run_view(followed(run))
    assert view["status"] == shown_status
    assert [found.startswith(note) for found in view["notes"]] == ([True] if note else [])


def test_a_run_of_slow_rounds_is_not_taken_for_killed(tmp_path: Path) -> None:
    """What is long is measured by its rounds."""
    run = running(tmp_path / "run", line(1, seconds=HOUR))
    then = time.time() - 2 * HOUR
    for name in ("rounds.jsonl", "manifest.json"):
        os.utime(run / name, (then, then))
    assert not followed(run).seems_killed


def test_why_a_run_failed_is_told(tmp_path: Path) -> None:
    """As its manifest says it."""
    run = make_run(tmp_path / "run", [line(1)], status="failed", error="ValueError: <no>", rounds=7)
    view = run_view(followed(run))
    assert (view["status"], view["notes"]) == ("failed", ["The run failed: ValueError: <no>"])
    assert view["progress"] == "round 1 of 7"


def test_numbers_without_measure_do_no_harm(tmp_path: Path) -> None:
    """A run of more rounds than there is time for has no time left to tell."""
    run = running(tmp_path / "run", line(1, seconds=1e99), rounds=10**12)
    assert run_view(followed(run))["progress"] == "round 1 of 1,000,000,000,000"


def test_a_damaged_setting_is_one_problem(tmp_path: Path) -> None:
    """An alias bomb, or what is no YAML; the metric is then the usual one."""
    for name, text, problem in (
        ("alias", "a: &a 1\nb: *a\n", "config.yaml, line 2: expected YAML"),
        ("bytes", "a: \xff\n", "config.yaml: "),
        ("metric", "evaluation:\n  metric: <b>\n", ""),
    ):
        run = running(tmp_path / name, line(1))
        (run / "config.yaml").write_text(text, encoding="latin-1")
        found = followed(run)
        assert (found.metric, len(found.problems)) == ("accuracy", int(bool(problem)))
        assert problem in "".join(found.problems)


@pytest.mark.slow
def test_a_run_is_followed_to_its_end(tmp_path: Path) -> None:
    """A short real run, looked at from another thread while it goes on."""
    directory, ended = tmp_path / "run", threading.Event()
    directory.mkdir()
    watch, progress = Watch(tmp_path), set[str]()

    def look() -> None:
        while not ended.is_set():
            progress.add(str(watch.data(None, "").get("progress")))
            time.sleep(0.01)

    looking = threading.Thread(target=look)
    looking.start()
    try:
        run_in_process(compose_words((*SMALL, "rounds=30")), str(directory))
    finally:
        ended.set()
        looking.join()
    name, run = watch._folder.follow(None, HOUR)
    written = load_run(directory)
    assert len(progress) > 1
    assert (name, run.problems, run.manifest.status) == ("run", [], "completed")
    assert numbers(run.rounds) == [record.round for record in written.rounds]
    assert run.rounds.last == written.rounds[-1]
    assert list(run.clients.seen.round) == [30] * 8
    assert run.rounds.bytes_up == sum(record.bytes_up for record in written.rounds)
