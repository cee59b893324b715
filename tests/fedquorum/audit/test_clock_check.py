"""Tests of the audit of simulated time: lateness follows from the recorded seconds."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from fedquorum.audit.clock_check import ClockCheck, build_clock_check
from fedquorum.records.round_record import RoundRecord
from fedquorum.rules.decisions import LateReply
from fedquorum.server.quorum import Quorum
from fedquorum.server.virtual_clock import Clock, PendingReply

from tests.fedquorum.records.made import make_round_record, report

STARTED = Clock(2.0, (PendingReply(1, 2, 0.0, 4.0),))
"""The time after round 1, which two replies closed while client 2 was still busy."""

LATE = LateReply(1, 2, 4.0)


def make_check(clock: Clock = STARTED) -> ClockCheck:
    """Return the check of a run whose rounds wait for two replies, at most 10 s."""
    return ClockCheck(Quorum(2), 10.0, clock)


def make_row(client: int, status: str = "trained", seconds: float | None = None) -> dict[str, Any]:
    """Return the columns of a client's row that the check reads; only client 0 has priority."""
    return {"client": client, "priority": client == 0, "status": status, "reply_seconds": seconds}


def make_record(number: int, now: float | None, *late: LateReply) -> RoundRecord:
    """Return the record of a round with this time after it and these late replies."""
    return replace(make_round_record(report(number)), simulated_seconds=now, late_replies=late)


@pytest.mark.parametrize("settings", [{}, {"response_time.name": "none"}])
def test_a_run_without_simulated_time_is_not_checked(settings: Mapping[str, Any]) -> None:
    """A drop-in run lacks the setting, and its default simulates nothing."""
    assert build_clock_check(settings) is None


@pytest.mark.parametrize(
    ("quorum", "expected"),
    [
        ({}, Quorum()),
        (
            {"engine.quorum": 3, "engine.quorum_clients": "priority", "engine.grace_seconds": 2},
            Quorum(3, "priority", 2.0),
        ),
    ],
)
def test_quorum_and_deadline_come_from_the_settings(
    quorum: Mapping[str, Any], expected: Quorum
) -> None:
    """The clock starts at 0."""
    settings = {"response_time.name": "lognormal", "engine.round_timeout": 30, **quorum}
    assert build_clock_check(settings) == ClockCheck(expected, 30.0, Clock())


def test_consistent_rounds_have_no_mismatches() -> None:
    """Each round starts at the end of the previous one, with the same busy clients."""
    checked = make_check(Clock())
    first = [make_row(0, seconds=1.0), make_row(1, "declined", 2.0), make_row(2, "late", 4.0)]
    assert list(checked.find_mismatches(first, make_record(1, 2.0))) == []
    assert checked.clock == STARTED
    second = [make_row(0, seconds=1.5), make_row(1, seconds=3.0), make_row(2, "busy")]
    assert list(checked.find_mismatches(second, make_record(2, 5.0, LATE))) == []
    assert checked.clock == Clock(5.0)


FITS = {
    0: make_row(0, seconds=1.5),
    1: make_row(1, seconds=3.0),
    2: make_row(2, "busy"),
    3: make_row(3, "late", 7.0),
}


@pytest.mark.parametrize(
    ("changed", "mismatches"),
    [
        ({}, []),
        ({2: make_row(2)}, [(2, "status is trained, but the client is busy")]),
        # The records do not show whether such a client was busy.
        ({2: make_row(2, "unavailable")}, []),
        ({2: make_row(2, "failed")}, []),
        (
            {0: make_row(0, "late", 1.5)},
            [(0, "status is late, but 1.5 simulated seconds were in time")],
        ),
        (
            {1: make_row(1, "failed", 3.0)},
            [(1, "status is failed, but 3 simulated seconds were in time")],
        ),
        ({1: make_row(1, "rejected", 3.0)}, []),
        (
            {3: make_row(3, "trained", 7.0)},
            [(3, "status is trained, but after 7 simulated seconds it was late")],
        ),
        ({4: make_row(4, "busy")}, [(4, "status is busy, but the client is not busy")]),
    ],
)
def test_a_status_that_contradicts_the_time_is_named(
    changed: Mapping[int, dict[str, Any]], mismatches: list[tuple[int, str]]
) -> None:
    """The mismatch has the client and the expected status."""
    rows = list({**FITS, **changed}.values())
    assert list(make_check().find_mismatches(rows, make_record(2, 5.0, LATE))) == mismatches


@pytest.mark.parametrize("now", [None, 5.1])
def test_a_wrong_time_is_named(now: float | None) -> None:
    """The replay continues from the expected time, so later rounds are not affected."""
    checked = make_check()
    text = f"simulated_seconds is {now}, but from the clients' seconds follows 5.0"
    assert list(checked.find_mismatches(list(FITS.values()), make_record(2, now, LATE))) == [
        (None, text)
    ]
    assert checked.clock == Clock(5.0, (PendingReply(2, 3, 2.0, 7.0),))


@pytest.mark.parametrize(
    "late",
    [(), (LATE, LATE), (replace(LATE, round=2),), (replace(LATE, reply_seconds=4.1),)],
)
def test_wrong_late_replies_are_named(late: tuple[LateReply, ...]) -> None:
    """There are too few or too many, or they have another round or other seconds."""
    text = f"late_replies is {late}, but from the clients' seconds follows {(LATE,)}"
    found = make_check().find_mismatches(list(FITS.values()), make_record(2, 5.0, *late))
    assert list(found) == [(None, text)]


def test_a_reply_after_the_deadline_has_failed() -> None:
    """Its message expired, unlike that of a round closed by a quorum."""
    rows = [make_row(0, seconds=1.0), make_row(1, "late", 50.0)]
    text = "status is late, but after 50 simulated seconds it was failed"
    assert list(make_check(Clock()).find_mismatches(rows, make_record(1, 10.0))) == [(1, text)]
