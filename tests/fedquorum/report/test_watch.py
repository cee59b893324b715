"""Tests of watched runs: reading while another process writes, and untrusted records."""

import json
import math
import os
import re
import threading
import time
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fedquorum.records.reader import load_run
from fedquorum.records.tables import CLIENTS_SCHEMA
from fedquorum.report import watch as watch_module
from fedquorum.report.client_status import ClientStatusTable
from fedquorum.report.watch import MAX_DRAWING_FRACTION, RunWatcher

from tests.builders_runs import run_here
from tests.fedquorum.records.made import (
    add_rounds,
    make_round_line,
    make_run,
    write_part,
    write_population,
)
from tests.server_app.made_runs import SMALL
from tests.server_app.pages import read_page_text
from tests.snapshot import Snapshot

HOUR = 3600.0


def make_running_run(directory: Path, *lines: dict[str, Any], **manifest: Any) -> Path:
    """Make a running run of ten rounds."""
    fields: dict[str, Any] = {"status": "running", "rounds": 10, **manifest}
    return make_run(directory, lines, **fields)


def draw_runs(root: Path) -> RunWatcher:
    """Draw a folder's runs once."""
    watch = RunWatcher(root)
    watch.draw()
    return watch


def list_paragraphs(watch: RunWatcher, kind: str) -> list[str]:
    """List the page's lines of a kind: progress or warning."""
    found = re.findall(rf'<p class="{kind}">(.*?)</p>', watch.content, re.DOTALL)
    return [unescape(text) for text in found]


def read_metric(watch: RunWatcher, name: str) -> float:
    """Read a metric without labels."""
    assert watch.metrics is not None
    found = re.search(rf"^fedquorum_{name} (.*)$", watch.metrics.decode(), re.MULTILINE)
    assert found
    return float(found[1])


def make_old(run: Path, seconds: float) -> None:
    """Set the last write of a run back by ``seconds``."""
    then = time.time() - seconds
    for name in ("rounds.jsonl", "manifest.json"):
        os.utime(run / name, (then, then))


# --- while a run is running ---------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_is_watched_before_its_first_record(tmp_path: Path) -> None:
    """The folder is empty, then has a manifest, then rounds, and then the run ends."""
    run = tmp_path / "run"
    run.mkdir()
    watch = RunWatcher(run)
    assert list_paragraphs(watch, "progress") == ["Reading the records ..."]
    watch.draw()
    (expected,) = list_paragraphs(watch, "warning")
    assert expected.startswith("no run yet")
    assert expected.endswith(f"got {run}")
    made = make_running_run(tmp_path / "made")
    for path in sorted(made.iterdir(), key=lambda path: path.name == "manifest.json"):
        path.rename(run / path.name)
    watch.draw()
    title = "fedalign/synth_low, FedALIGN, seed 1"
    assert list_paragraphs(watch, "progress") == [f"{title}: no round yet of 10"]
    add_rounds(run, make_round_line(1))
    watch.draw()
    facts = "round 1 of 10, 0.1 s a round, about 0:00:01 left"
    assert list_paragraphs(watch, "progress") == [f"{title}: {facts}"]
    assert "training loss F(w), nats" in watch.content
    manifest = (run / "manifest.json").read_text().replace("running", "completed")
    (run / "manifest.json").write_text(manifest)
    watch.draw()
    assert list_paragraphs(watch, "progress") == list_paragraphs(watch, "warning") == []
    assert "50.00" in watch.content


def test_the_progress_of_a_run_that_ends_by_its_clock(tmp_path: Path) -> None:
    """Its rounds are only a bound; the time left follows from the simulated seconds."""
    run = make_running_run(tmp_path / "run", settings="engine: {simulated_seconds: 50.0}\n")
    add_rounds(run, make_round_line(1, simulated_seconds=20.0))
    watch = RunWatcher(run)
    watch.draw()
    facts = "round 1, 20 of 50 simulated seconds, 0.1 s a round, about 0:00:00 left"
    (progress,) = list_paragraphs(watch, "progress")
    assert progress.endswith(facts)


@pytest.mark.slow
def test_nothing_is_read_or_drawn_without_new_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of several runs, only the one with new records is read."""
    read: list[str] = []

    def note_read(directory: Path) -> Any:
        read.append(directory.name)
        return load_run(directory)

    monkeypatch.setattr(watch_module, "load_run", note_read)
    for name in "ab":
        make_running_run(tmp_path / name, make_round_line(1))
    watch = draw_runs(tmp_path)
    before = watch.content
    watch.draw()
    assert watch.content is before
    add_rounds(tmp_path / "a", make_round_line(2))
    watch.draw()
    assert watch.content is not before
    write_part(tmp_path / "b", 0, [{"round": 1, "client": 0}])
    watch.draw()
    assert read == ["a", "b", "a", "b"]


def test_a_torn_line_is_read_once_it_is_complete(tmp_path: Path) -> None:
    """A reading may happen during a write."""
    run = make_running_run(tmp_path / "run", make_round_line(1))
    whole = (run / "rounds.jsonl").read_text()
    add_rounds(run, torn='{"round": 2, "epsilon"')
    watch = draw_runs(run)
    assert (read_metric(watch, "round"), list_paragraphs(watch, "warning")) == (1, [])
    (run / "rounds.jsonl").write_text(whole)
    add_rounds(run, make_round_line(2))
    watch.draw()
    assert read_metric(watch, "round") == 2


@pytest.mark.slow
def test_a_resumed_run_is_read_again(tmp_path: Path) -> None:
    """The rounds and rows after its checkpoint disappear."""
    run = make_running_run(
        tmp_path / "run", make_round_line(1), make_round_line(2), make_round_line(3)
    )
    write_part(run, 0, [{"round": 1, "client": 0}])
    second = write_part(run, 1, [{"round": 3, "client": 0, "status": "late"}])
    watch = draw_runs(run)
    assert (read_metric(watch, "round"), "<td>late</td>" in watch.content) == (3, True)
    first, *_ = (run / "rounds.jsonl").read_bytes().splitlines(keepends=True)
    os.truncate(run / "rounds.jsonl", len(first))
    second.unlink()
    add_rounds(run, make_round_line(2, global_loss=9.0))
    watch.draw()
    assert (read_metric(watch, "round"), read_metric(watch, "global_loss")) == (2, 9.0)
    assert "<td>late</td>" not in watch.content


def test_drawing_takes_a_fraction_of_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounds that end faster than drawing do not keep the machine busy."""
    work, pauses = iter([0.0, 0.01, 7.0, 10.0]), list[float]()

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(time, "thread_time", lambda: next(work))
    monkeypatch.setattr(time, "sleep", pause)
    with pytest.raises(KeyboardInterrupt):
        RunWatcher(tmp_path).draw_forever()
    assert pauses == [1.0, pytest.approx(3.0 / MAX_DRAWING_FRACTION)]


@pytest.mark.slow
def test_a_run_of_100_000_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Curves have at most 401 points, and checking for new records takes no time."""
    # On a busy machine the run would seem killed after the first drawing, and be drawn again.
    monkeypatch.setattr("fedquorum.report.watched_run.PATIENCE_SECONDS", math.inf)
    rounds = 100_000
    run = make_running_run(tmp_path / "run", rounds=2 * rounds)
    first, _, last = json.dumps(make_round_line(0)).partition("0")
    lines = (f"{first}{number}{last}\n" for number in range(1, rounds + 1))
    (run / "rounds.jsonl").write_text("".join(lines))
    watch = draw_runs(run)
    assert "round 100,000 of 200,000" in list_paragraphs(watch, "progress")[0]
    assert len(watch.content) < 200_000
    start = time.thread_time()
    watch.draw()
    assert time.thread_time() - start < 0.1


@pytest.mark.slow
def test_a_run_is_watched_to_its_end(tmp_path: Path) -> None:
    """Another thread draws a short real run while it is running."""
    directory, ended = tmp_path / "run", threading.Event()
    directory.mkdir()
    watch, seen = RunWatcher(tmp_path), set[str]()

    def draw_repeatedly() -> None:
        while not ended.is_set():
            watch.draw()
            seen.update(list_paragraphs(watch, "progress"))
            time.sleep(0.1)

    drawing = threading.Thread(target=draw_repeatedly)
    drawing.start()
    try:
        run_here(directory, *SMALL, "rounds=30")
    finally:
        ended.set()
        drawing.join()
    watch.draw()
    written = load_run(directory)
    assert len(seen) > 1
    assert (list_paragraphs(watch, "progress"), list_paragraphs(watch, "warning")) == ([], [])
    assert read_metric(watch, "round") == written.rounds[-1].round == 30
    assert read_metric(watch, r'bytes_total{direction="up"}') == sum(
        r.bytes_up for r in written.rounds
    )
    assert list(ClientStatusTable(written).table["round"]) == [30] * 8


@pytest.mark.parametrize(
    ("status", "age", "killed"),
    [("running", 30.0, False), ("running", 2 * HOUR, True), ("completed", 2 * HOUR, False)],
)
def test_a_killed_run_is_reported(tmp_path: Path, status: str, age: float, killed: bool) -> None:
    """Its manifest says ``running`` forever, but it records no more rounds."""
    run = make_running_run(
        tmp_path / "run", make_round_line(1, duration_seconds=1.0), status=status
    )
    make_old(run, age)
    progress = " ".join(list_paragraphs(draw_runs(run), "progress"))
    assert ("perhaps killed: fedquorum resume=DIR" in progress) == killed
    assert ("nothing recorded since 20" in progress) == killed


@pytest.mark.slow
def test_a_killed_run_is_reported_without_new_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page is drawn again once a run has recorded nothing for too long."""
    watch = draw_runs(make_running_run(tmp_path / "run", make_round_line(1)))
    assert "perhaps killed" not in watch.content
    monkeypatch.setattr(time, "time", lambda now=time.time: now() + HOUR)
    watch.draw()
    assert "perhaps killed" in watch.content


def test_a_run_of_slow_rounds_is_not_taken_for_killed(tmp_path: Path) -> None:
    """The limit depends on the duration of its rounds."""
    run = make_running_run(tmp_path / "run", make_round_line(1, duration_seconds=HOUR))
    make_old(run, 2 * HOUR)
    assert "perhaps killed" not in draw_runs(run).content


def test_huge_numbers_have_no_time_left(tmp_path: Path) -> None:
    """An absurd duration is not formatted."""
    run = make_running_run(
        tmp_path / "run", make_round_line(1, duration_seconds=1e99), rounds=10**12
    )
    (progress,) = list_paragraphs(draw_runs(run), "progress")
    assert progress.endswith("round 1 of 1,000,000,000,000, 1e+99 s a round")


# --- a folder with runs -------------------------------------------------------------------------


@pytest.mark.slow
def test_all_runs_are_on_the_page_and_the_newest_has_its_clients(tmp_path: Path) -> None:
    """The newest is the running run that started last, or else the newest of all."""
    days = [f"2026-01-0{day}T00:00:00+00:00" for day in (1, 2, 3, 4)]
    folders = ("old", "new", "sweep/0", "sweep/1")
    for name, seed, started in zip(
        folders, (4, 1, 2, 3), (days[0], days[3], *days[1:3]), strict=True
    ):
        status = "running" if name.startswith("sweep") else "completed"
        run = make_run(
            tmp_path / name, [make_round_line(1)], seed=seed, status=status, started=started
        )
        write_part(run, 0, [{"round": 1, "client": 0}])
    watch = draw_runs(tmp_path)
    assert "4 runs, 1 experiment." in watch.content
    assert [line.partition(":")[0][-1] for line in list_paragraphs(watch, "progress")] == ["2", "3"]
    summary = "1 of 1 clients connected"
    assert f"<span>fedalign/synth_low, FedALIGN, seed 3: {summary}</span>" in watch.content
    assert watch.metrics is not None
    assert b'run="sweep/1"' in watch.metrics
    assert b'fedquorum_runs{status="running"} 2.0' in watch.metrics
    for name in ("0", "1"):
        manifest = tmp_path / "sweep" / name / "manifest.json"
        manifest.write_text(manifest.read_text().replace("running", "interrupted"))
    watch.draw()
    assert f"<span>fedalign/synth_low, FedALIGN, seed 1: {summary}</span>" in watch.content


@pytest.mark.parametrize("name", ["manifest.json", "config.yaml", "rounds.jsonl", "clients"])
def test_an_unreadable_record_is_one_line(tmp_path: Path, name: str) -> None:
    """The line names the file; the other runs are drawn."""
    make_running_run(tmp_path / "good", make_round_line(1), seed=7)
    bad = make_running_run(tmp_path / "bad", make_round_line(1))
    if name == "clients":
        (bad / name).mkdir()
        (bad / name / "part-00000.parquet").write_bytes(b"PAR1 and no more")
    else:
        (bad / name).write_text("[" * 100_000 + "\x1b[31m\n")
    watch = draw_runs(tmp_path)
    (problem,) = list_paragraphs(watch, "warning")
    assert problem.startswith(f"{bad}/{name}")
    assert len(problem) < 500
    assert problem.isprintable()
    assert "seed 7: round 1 of 10" in watch.content
    assert read_metric(watch, "unreadable_records") == 1


def test_no_link_is_followed(tmp_path: Path) -> None:
    """Neither a link to a run, nor one in a run's folder."""
    other = make_running_run(tmp_path / "other", make_round_line(1))
    part = write_part(other, 0, [{"round": 1, "client": 5}])
    run = make_running_run(tmp_path / "runs" / "run", make_round_line(1))
    (tmp_path / "runs" / "linked").symlink_to(other)
    assert "1 run, 1 experiment." in draw_runs(tmp_path / "runs").content
    (run / "clients").mkdir()
    (run / "clients" / part.name).symlink_to(part)
    assert "links are not followed" in list_paragraphs(draw_runs(tmp_path / "runs"), "warning")[0]
    (run / "clients" / part.name).unlink()
    (run / "rounds.jsonl").unlink()
    (run / "rounds.jsonl").symlink_to(other / "rounds.jsonl")
    assert "links are not followed" in list_paragraphs(draw_runs(tmp_path / "runs"), "warning")[0]


def test_a_pipe_does_not_block(tmp_path: Path) -> None:
    """A pipe is not a record."""
    run = make_running_run(tmp_path / "run")
    (run / "rounds.jsonl").unlink()
    os.mkfifo(run / "rounds.jsonl")
    assert "rounds.jsonl: expected a regular file" in list_paragraphs(draw_runs(run), "warning")[0]


def test_an_unexpected_error_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing continues with the next records."""
    run = make_running_run(tmp_path / "run", make_round_line(1))

    def fail(_: Any) -> None:
        raise ZeroDivisionError("secret")

    with monkeypatch.context() as patched:
        patched.setattr(watch_module, "build_experiments", fail)
        watch = draw_runs(run)
    assert list_paragraphs(watch, "warning") == ["the records cannot be drawn (ZeroDivisionError)"]
    add_rounds(run, make_round_line(2))
    watch.draw()
    assert list_paragraphs(watch, "warning") == []


# --- clients now --------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_last_status_of_each_client(tmp_path: Path) -> None:
    """Each client's last row counts; held-out clients are absent."""
    late = [{"round": 1, "client": 2, "reply_seconds": 12.345}]
    run = make_running_run(
        tmp_path / "run", make_round_line(1), make_round_line(3, late=1, late_replies=late)
    )
    write_part(run, 0, [{"round": 1, "client": 2}, {"round": 1, "client": 0, "priority": True}])
    rows: list[dict[str, Any]] = [
        {"round": 2, "client": 2, "status": "late", "reply_seconds": 2.5},
        {"round": 2, "client": 0, "priority": True},
        {"round": 3, "client": 2, "status": "failed", "reason": "it <broke>\x1b"},
        {"round": 3, "client": 1, "status": "unavailable", "reason": "away"},
    ]
    write_part(run, 1, rows)
    names = ["North", "<b>", None, None]
    write_population(run, [1.0] * 4, [True, False, False, False], names)
    table = ClientStatusTable(load_run(run)).to_text_table("x")
    assert table.title == "x: 2 of 4 clients connected, 1 unavailable, 1 not selected yet"
    assert table.headings == (
        *("client", "priority", "status", "in round", "reason", "last trained", "late in rounds"),
        "last late reply",
    )
    assert table.rows == (
        ("North", "yes", "trained", "2", "", "2", "", ""),
        ("<b>", "", "unavailable", "3", "away", "-", "", ""),
        ("2", "", "failed", "3", "it <broke>", "1", "1", "to round 1 after 12.3 s"),
        ("3", "", "not selected yet", "-", "", "-", "", ""),
    )
    content = draw_runs(run).content
    assert "it &lt;broke&gt;" in content
    assert "&lt;b&gt;" in content
    assert "<b>" not in content


def test_priority_is_no_column_where_all_clients_have_it(tmp_path: Path) -> None:
    """It would say nothing."""
    run = make_running_run(tmp_path / "run", make_round_line(1))
    write_part(run, 0, [{"round": 1, "client": k, "priority": True} for k in (0, 1)])
    table = ClientStatusTable(load_run(run)).to_text_table("x")
    assert table.headings == ("client", "status", "in round", "last trained")


def test_the_nodes_of_a_deployment_are_shown(tmp_path: Path) -> None:
    """A broken node has its id and its key; a client that never connected has neither."""
    run = make_running_run(tmp_path / "run", make_round_line(1))
    write_part(run, 0, [{"round": 1, "client": 0, "status": "failed", "reason": "no GPU"}])
    write_population(run, [1.0] * 2, [True, False])
    path = run / "population.parquet"
    table = pq.read_table(path).drop_columns(["node", "node_key"])
    table = table.append_column("node", pa.array(["123", None]))
    pq.write_table(table.append_column("node_key", pa.array(["SHA256:a", None])), path)
    table = ClientStatusTable(load_run(run)).to_text_table("x")
    assert table.headings[-2:] == ("node", "node key")
    assert [row[-2:] for row in table.rows] == [("123", "SHA256:a"), ("", "")]
    assert table.rows[0][1:4] == ("failed", "1", "no GPU")


def test_the_page_shows_the_clients(tmp_path: Path, snapshot: Snapshot) -> None:
    """The clients' statuses are below the report's content."""
    run = make_running_run(tmp_path / "run", make_round_line(1), make_round_line(2))
    write_part(run, 0, [{"round": 2, "client": 0}, {"round": 2, "client": 1, "status": "late"}])
    *_, clients = draw_runs(run).content.partition('<section id="clients-now">')
    snapshot("report/watched.txt", read_page_text(clients))


def test_clients_before_the_first_round(tmp_path: Path) -> None:
    """First no client is registered, then all are, but none was selected."""
    run = make_running_run(tmp_path / "run")
    assert ClientStatusTable(load_run(run)).to_text_table("x").rows == ()
    write_population(run, rates=[1.0] * 2, priority=[True, False])
    table = ClientStatusTable(load_run(run)).to_text_table("x")
    assert table.rows == (
        ("0", "yes", "not selected yet", "-", "-"),
        ("1", "", "not selected yet", "-", "-"),
    )
    assert table.title == "x: 0 of 2 clients connected, 2 not selected yet"


def test_only_the_most_important_of_many_clients_are_shown(tmp_path: Path) -> None:
    """Of 100,000, the failed and late ones come first, and the title has the number."""
    run = make_running_run(tmp_path / "run", make_round_line(1))
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
    table = ClientStatusTable(load_run(run)).to_text_table("x")
    assert "100,000 of 100,000 clients connected; 500 are shown" in table.title
    assert [row[0] for row in table.rows[:3]] == ["90000", "70000", "0"]
    assert len(table.rows) == 500
