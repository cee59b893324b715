"""Check that lateness follows from the simulated seconds in a run's records."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..records.round_record import RoundRecord
from ..rules.decisions import LateReply
from ..rules.round import ClientOutcome
from ..rules.staleness import LateUpdates
from ..server.quorum import Quorum
from ..server.under_way import UnderWay, close_late_round
from ..server.virtual_clock import Clock, RoundClosing, close_virtual_round
from .replay import TableRow, read_late_updates

IN_TIME = "in time"


@dataclass
class LateClockCheck:
    """Replays the virtual clock of a run in which late updates count, round by round.

    Parameters
    ----------
    quorum, deadline
        As in ``ClockCheck``.
    late : LateUpdates
    now : float
        The time after the rounds so far.
    under_way : UnderWay
        The clients under way after them.
    """

    quorum: Quorum
    deadline: float
    late: LateUpdates
    now: float = 0.0
    under_way: UnderWay = field(default_factory=UnderWay)

    def find_mismatches(
        self, rows: Sequence[TableRow], record: RoundRecord
    ) -> Iterator[tuple[int | None, str]]:
        """Yield the mismatches of a round with their clients, and advance to the next round."""
        number, before = record.round, self.under_way
        asked_before = dict(zip(before.client.tolist(), before.start_round.tolist(), strict=True))
        asked = [row for row in rows if row["client"] not in asked_before]
        sent = {row["client"]: row for row in asked if row["start_round"] is not None}
        limit = self.late.concurrency
        closing = close_late_round(
            before.add(
                number, self.now, {k: float(row["reply_seconds"]) for k, row in sent.items()}
            ),
            number,
            now=self.now,
            num_required=self.quorum.compute_size(
                len(asked) + len(before) if limit is None else limit
            ),
            grace_seconds=self.quorum.grace_seconds,
            deadline=self.deadline,
            max_staleness=self.late.max_staleness,
        )
        expected = {
            **_list_expected(closing.expired, "expired"),
            **_list_expected(closing.too_old, "is too old"),
            **_list_expected(closing.arrived, "arrived"),
            **_list_expected(closing.under_way, "is under way"),
        }
        for row in rows:
            client, start = row["client"], row["start_round"]
            known, fate = expected.get(client, (None, "did not set out"))
            if start != known:
                yield client, _describe_difference("start_round", start, known)
            statuses = _STATUSES_BY_FATE[fate]
            if statuses and row["status"] not in statuses:
                yield client, f"status is {row['status']}, but by simulated seconds it {fate}"
        present = {row["client"] for row in rows}
        for client in sorted(asked_before.keys() - present):
            if expected[client][1] != "is under way":
                yield client, f"has no row, but by simulated seconds it {expected[client][1]}"
        if not _is_close(record.simulated_seconds, closing.now):
            yield (
                None,
                _describe_difference("simulated_seconds", record.simulated_seconds, closing.now),
            )
        self.now, self.under_way = closing.now, closing.under_way


_STATUSES_BY_FATE: Mapping[str, tuple[str, ...]] = {
    "expired": ("failed",),
    "is too old": ("rejected",),
    "arrived": ("trained", "declined", "rejected", "failed"),
    "is under way": ("late",),
    "did not set out": ("unavailable", "failed", "rejected"),
}
"""The statuses that a row may have, by what the clock says about its client."""


def _list_expected(group: UnderWay, fate: str) -> dict[int, tuple[int | None, str]]:
    """Return the start round and the fate of each client of a group."""
    pairs = zip(group.client.tolist(), group.start_round.tolist(), strict=True)
    return {client: (start, fate) for client, start in pairs}


@dataclass
class ClockCheck:
    """Replays the virtual clock of a run, round by round.

    Parameters
    ----------
    quorum : Quorum
    deadline : float
        The run's ``engine.round_timeout``.
    clock : Clock
        The time after the rounds so far.
    """

    quorum: Quorum
    deadline: float
    clock: Clock = field(default_factory=Clock)

    def find_mismatches(
        self, rows: Sequence[TableRow], record: RoundRecord
    ) -> Iterator[tuple[int | None, str]]:
        """Yield the mismatches of a round with their clients, and advance to the next round."""
        busy = self.clock.busy_clients
        closing = close_virtual_round(
            self.clock,
            record.round,
            [_to_outcome(row) for row in rows],
            self.quorum,
            priority=frozenset(row["client"] for row in rows if row["priority"]),
            deadline=self.deadline,
        )
        for row in rows:
            if (row["client"] in busy) != (row["status"] == "busy") and _is_connected(row):
                is_not = "is" if row["client"] in busy else "is not"
                yield row["client"], f"status is {row['status']}, but the client {is_not} busy"
        yield from _find_status_mismatches(rows, closing)
        if not _is_close(record.simulated_seconds, closing.clock.now):
            yield (
                None,
                _describe_difference(
                    "simulated_seconds", record.simulated_seconds, closing.clock.now
                ),
            )
        if not _has_same_replies(record.late_replies, closing.late_replies):
            yield (
                None,
                _describe_difference("late_replies", record.late_replies, closing.late_replies),
            )
        self.clock = closing.clock


def build_clock_check(settings: Mapping[str, Any]) -> ClockCheck | LateClockCheck | None:
    """Return the check of a run with these settings; None without a virtual clock."""
    if settings.get("response_time.name", "none") == "none":
        return None
    quorum = Quorum(
        settings.get("engine.quorum"),
        str(settings.get("engine.quorum_clients", "asked")),
        float(settings.get("engine.grace_seconds", 0.0)),
    )
    deadline, late = float(settings["engine.round_timeout"]), read_late_updates(settings)
    if late is None:
        return ClockCheck(quorum, deadline)
    return LateClockCheck(quorum, deadline, late)


def _to_outcome(row: TableRow) -> ClientOutcome:
    """Return a client's reply, in time or late."""
    if row.get("reply_seconds") is None:
        return ClientOutcome(row["client"], "busy" if row["status"] == "busy" else "failed")
    return ClientOutcome(row["client"], "trained", IN_TIME, seconds=row["reply_seconds"])


def _find_status_mismatches(
    rows: Sequence[TableRow], closing: RoundClosing
) -> Iterator[tuple[int | None, str]]:
    for row, outcome in zip(rows, closing.outcomes, strict=True):
        if row.get("reply_seconds") is None:
            continue
        is_late = outcome.reason != IN_TIME
        if is_late and row["status"] != outcome.status:
            text = f"after {row['reply_seconds']:g} simulated seconds it was {outcome.status}"
            yield row["client"], f"status is {row['status']}, but {text}"
        if not is_late and row["status"] in ("late", "failed"):
            text = f"{row['reply_seconds']:g} simulated seconds were in time"
            yield row["client"], f"status is {row['status']}, but {text}"


def _is_connected(row: TableRow) -> bool:
    return bool(row["status"] not in ("unavailable", "failed"))


def _has_same_replies(recorded: Sequence[LateReply], expected: Sequence[LateReply]) -> bool:
    return len(recorded) == len(expected) and all(
        (left.round, left.client) == (right.round, right.client)
        and math.isclose(left.reply_seconds, right.reply_seconds, rel_tol=1e-9)
        for left, right in zip(recorded, expected, strict=True)
    )


def _is_close(recorded: float | None, expected: float) -> bool:
    return recorded is not None and math.isclose(recorded, expected, rel_tol=1e-9)


def _describe_difference(name: str, recorded: object, expected: object) -> str:
    return f"{name} is {recorded}, but from the clients' seconds follows {expected}"
