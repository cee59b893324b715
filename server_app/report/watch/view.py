"""What the page says of a run: words and tables, ready to be shown as texts."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from fedquorum.intake import shown
from fedquorum.metrics import metric_called
from fedquorum.records.round_record import groups_of
from fedquorum.report import STATUSES, LateReply

from server_app.display import time_left
from server_app.report.tables import METRIC_NAMES, TextTable
from server_app.report.watch.clients import (
    NOT_ASKED,
    NOT_CONNECTED,
    SHOWN_STATUSES,
    LastSeen,
)
from server_app.report.watch.folder import WatchedFolder
from server_app.report.watch.run import FollowedRun

MOST_CLIENTS_SHOWN = 500
MOST_RUNS_SHOWN = 100
LONGEST_LEFT = 1e9  # seconds
SILENCE = 10.0  # seconds, before it is told of
_FIRST_SHOWN = ("failed", "rejected", "late", "busy", "unavailable", NOT_ASKED, "silent", "trained")
"""Which clients are shown where not all are."""


def run_view(run: FollowedRun) -> dict[str, Any]:
    """Return what the page shows of a run, without its charts and the table of its clients."""
    manifest, rounds = run.manifest, run.rounds
    done = 0 if rounds.last is None else rounds.last.round
    return {
        "title": f"{manifest.text('experiment')}, {manifest.text('strategy')}, "
        f"seed {manifest.text('seed')}",
        "directory": str(run.path).encode(errors="replace").decode(),
        "status": "perhaps killed" if run.seems_killed else manifest.status,
        "progress": _progress(run, done),
        "share": min(1.0, done / run.planned) if run.planned else 0.0,
        "problems": run.problems,
        "notes": list(_notes(run)),
        "tables": [
            _table("facts", TextTable("", ("", ""), tuple(_facts(run)))),
            _table("test", _test_table(run)),
            _table("statuses", _status_table(run)),
        ],
    }


def runs_table(folder: WatchedFolder, shown_run: str) -> TextTable:
    """Return the runs in the folder: those that run first, then the latest."""
    manifests = sorted(
        folder.manifests.items(),
        key=lambda item: (item[1].status == "running", item[1].started, item[0]),
        reverse=True,
    )
    title = f"Runs ({len(manifests):,})"
    if len(manifests) > MOST_RUNS_SHOWN:
        title += f", of which {MOST_RUNS_SHOWN} are shown"
    rows = tuple(
        (
            name,
            "shown" if name == shown_run else "",
            one.status or one.problem or "no manifest",
            *(one.text(field) for field in ("experiment", "strategy", "seed")),
            one.started,
        )
        for name, one in manifests[:MOST_RUNS_SHOWN]
    )
    return TextTable(title, ("run", "", "status", "experiment", "strategy", "seed", "began"), rows)


def clients_table(run: FollowedRun) -> TextTable:
    """Return what became of each client last; of many clients, only those that matter most."""
    seen = run.clients.seen
    places = _most_important(seen)
    title = f"Clients ({len(seen.client):,})"
    if len(places) < len(seen.client):
        title += (
            f", of which {len(places)} are shown: failed, rejected, late and busy ones before "
            "others"
        )
    headings = (
        *("client", "priority", "status", "in round", "reason", "reply took", "last trained"),
        *("late in rounds", "last late reply"),
    )
    rows = tuple(_client_row(run, int(place)) for place in places)
    # nobody needs a column of which nothing is known
    columns = [i for i in range(len(headings)) if i == 0 or any(row[i] for row in rows)]
    return TextTable(
        title,
        tuple(headings[i] for i in columns),
        tuple(tuple(row[i] for i in columns) for row in rows),
    )


def _table(name: str, table: TextTable) -> dict[str, Any]:
    """Return a table as the page reads it."""
    return {"id": name, "title": table.title, "headings": table.headings, "rows": table.rows}


def _progress(run: FollowedRun, done: int) -> str:
    planned = f" of {run.planned:,}" if run.planned else ""
    words = f"round {done:,}{planned}" if done else f"no round yet{planned}"
    left = _time_left(run, done) if run.manifest.status == "running" else ""
    return f"{words}, about {left}" if left else words


def _time_left(run: FollowedRun, done: int) -> str:
    if not 0 < done < run.planned or run.seems_killed:
        return ""
    try:
        usual = run.rounds.recent_seconds()
        enough = usual * (run.planned - done) < LONGEST_LEFT
    except OverflowError:
        return ""
    return time_left(usual * done, done / run.planned) if enough else ""


def _notes(run: FollowedRun) -> Iterator[str]:
    """Yield what a reader has to know beside the numbers."""
    error = run.manifest.text("error")
    if error:
        yield f"The run failed: {error}"
    silent = run.silent_for
    if run.seems_killed:
        yield (
            f"Nothing was recorded for {_duration(silent)}: the run may have been killed. "
            f"If it was, fedquorum resume=DIR goes on with it."
        )
    elif silent > SILENCE:
        yield f"The last record is {_duration(silent)} old."
    if not run.complete:
        read, there = run.clients.parts
        yield (
            f"Reading the records: {100 * run.rounds.fraction_read:.0f} % of the rounds, {read:,} "
            f"of {there:,} parts of the table of clients"
        )


def _facts(run: FollowedRun) -> Iterator[tuple[str, str]]:
    """Yield the numbers of the run by now."""
    rounds, seen = run.rounds, run.clients.seen
    last = rounds.last
    if last is not None:
        usual = rounds.recent_seconds()
        yield "seconds a round", f"{last.seconds:.3g} (mean of the last 20: {usual:.3g})"
        clock = rounds.latest("simulated_seconds")
        if not math.isnan(clock):
            yield "simulated seconds", f"{clock:,.1f}"
        if not math.isnan(last.global_loss):
            yield "training loss F(w)", f"{last.global_loss:.4f} nats"
            yield "training accuracy", _percent(last.global_accuracy)
        yield "updates admitted", f"{last.admitted:,} of {last.asked:,} clients asked"
    if len(seen.client):
        yield "clients connected", _connected(seen)
    if rounds.last_late is not None:
        latest = f"client {rounds.last_late.client} replied {_lateness(rounds.last_late)}"
        yield "late replies", f"{rounds.late_replies:,}; {latest}"
    if last is not None:
        down, up = _size(rounds.bytes_down), _size(rounds.bytes_up)
        yield "messages so far", f"{down} to the nodes, {up} from them"
    yield "began", run.manifest.started or "-"


def _connected(seen: LastSeen) -> str:
    away, never = (seen.count((status,)) for status in NOT_CONNECTED)
    words = f"{len(seen.client) - away - never:,} of {len(seen.client):,}"
    details = [
        f"{count:,} {status}"
        for count, status in ((away, "unavailable"), (never, NOT_ASKED))
        if count
    ]
    return f"{words} ({', '.join(details)})" if details else words


def _lateness(reply: LateReply) -> str:
    return shown(f"to round {reply.round} after {reply.seconds:.3g} s")


def _test_table(run: FollowedRun) -> TextTable:
    """Return the last test metrics, by groups of clients."""
    record = run.rounds.last_tested
    if record is None or record.test is None:
        return TextTable("Test parts: not evaluated yet", (), ())
    headings = ("clients", "mean, by data", "average", "worst", "best", "loss, nats")
    rows = tuple(
        (group.replace("_", "-"), *_test_row(values, run.metric))
        for group in groups_of(record.test)
        if (values := record.test[group]) is not None
    )
    title = f"Test parts: {METRIC_NAMES[run.metric]}, of the model after round {record.round:,}"
    return TextTable(title, headings, rows)


def _test_row(values: Mapping[str, float], metric: str) -> tuple[str, ...]:
    known = metric_called(metric)
    factor, digits = known.factor, 1 if known.is_share else 4
    numbers = [values.get(name, math.nan) for name in (metric, "average", "worst", "best")]
    loss = values.get("loss", math.nan)
    return (*(_number(factor * one, digits) for one in numbers), _number(loss, 4))


def _status_table(run: FollowedRun) -> TextTable:
    """Return what became of the clients asked, in the last round and in all."""
    last = run.rounds.last
    if last is None:
        return TextTable("Clients asked: none yet", (), ())
    rows = tuple(
        (status, f"{run.rounds.latest(status):,.0f}", f"{run.rounds.answers[status]:,.0f}")
        for status in STATUSES
    )
    headings = ("clients asked", f"round {last.round:,}", "all rounds")
    return TextTable("What became of the clients asked", headings, rows)


def _most_important(seen: LastSeen) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the places of the clients that are shown, ascending by client id if all are."""
    if len(seen.client) <= MOST_CLIENTS_SHOWN:
        return np.arange(len(seen.client))
    ranks = np.array([_FIRST_SHOWN.index(status) for status in SHOWN_STATUSES])
    return np.lexsort((seen.client, ranks[seen.status]))[:MOST_CLIENTS_SHOWN]


def _client_row(run: FollowedRun, place: int) -> tuple[str, ...]:
    seen = run.clients.seen
    client, late, seconds = int(seen.client[place]), int(seen.late[place]), seen.seconds[place]
    reply = run.rounds.late.get(client)
    return (
        str(client),
        "yes" if seen.priority[place] else "",
        SHOWN_STATUSES[seen.status[place]],
        _round(seen.round[place]),
        seen.reason[place] or "",
        "" if math.isnan(seconds) else f"{seconds:.3g} s",
        _round(seen.trained[place]),
        f"{late:,}" if late else "",
        "" if reply is None else _lateness(reply),
    )


def _round(number: int) -> str:
    return f"{number:,}" if number else "-"


def _number(value: float, digits: int) -> str:
    return "-" if math.isnan(value) else f"{value:.{digits}f}"


def _percent(fraction: float) -> str:
    return "-" if math.isnan(fraction) else f"{100 * fraction:.1f} %"


def _size(count: float) -> str:
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:.3g} {unit}"
    return f"{count:.0f} B"


def _duration(seconds: float) -> str:
    for unit, length in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
