"""Who is late under the virtual clock, and how long rounds last."""

import math
from collections.abc import Sequence

import pytest
from fedquorum.decisions import LateReply
from fedquorum.quorum import Quorum
from fedquorum.round import ClientOutcome
from fedquorum.virtual_clock import (
    LATE_REASON,
    NO_REPLY_REASON,
    Clock,
    PendingReply,
    close_virtual_round,
)
from hypothesis import given
from hypothesis import strategies as st


def answers(*seconds: float | None, busy: Sequence[int] = ()) -> list[ClientOutcome]:
    """Return answers of clients 0, 1, ... after so many seconds; None is unavailable."""
    return [
        ClientOutcome(k, "busy" if k in busy else "unavailable")
        if takes is None
        else ClientOutcome(k, "trained", num_examples=1.0, seconds=takes)
        for k, takes in enumerate(seconds)
    ]


def statuses(given_answers: Sequence[ClientOutcome]) -> list[str]:
    return [answer.status for answer in given_answers]


def test_without_a_quorum_a_round_lasts_as_long_as_the_slowest() -> None:
    """All count, and the clock stands where the last reply came."""
    closing = close_virtual_round(
        Clock(5.0), 1, answers(3.0, 1.0, 8.0), Quorum(), priority=(), deadline=100.0
    )
    assert statuses(closing.outcomes) == ["trained"] * 3
    assert closing.clock == Clock(13.0)
    assert closing.late_replies == ()


def test_a_quorum_and_its_grace_close_the_round() -> None:
    """Replies within the grace count; later ones are late, and arrive in the round they reach."""
    clients = answers(1.0, 2.0, 2.5, 4.0, 9.0)
    first = close_virtual_round(
        Clock(), 1, clients, Quorum(2, grace_seconds=0.75), priority=(), deadline=100.0
    )
    assert first.clock.now == 2.75
    assert statuses(first.outcomes) == ["trained"] * 3 + ["late"] * 2
    assert first.outcomes[3] == ClientOutcome(3, "late", LATE_REASON, seconds=4.0)
    assert first.clock.busy_clients == {3, 4}
    second = close_virtual_round(
        first.clock,
        2,
        answers(1.5, 2.0, 2.0, None, None, busy=(3, 4)),
        Quorum(2),
        priority=(),
        deadline=100.0,
    )
    assert second.clock.now == 4.75
    assert second.late_replies == (LateReply(1, 3, 4.0),)
    assert second.clock.pending_replies == (PendingReply(1, 4, 0.0, 9.0),)


def test_the_deadline_closes_the_round() -> None:
    """Who has not replied has failed, its message expires, and it is asked again."""
    closing = close_virtual_round(
        Clock(), 1, answers(1.0, 50.0), Quorum(), priority=(), deadline=10.0
    )
    assert closing.clock == Clock(10.0)
    assert closing.outcomes[1] == ClientOutcome(1, "failed", NO_REPLY_REASON, seconds=50.0)
    assert closing.late_replies == ()


def test_a_message_expires_also_where_a_quorum_closed_its_round() -> None:
    """Its client is busy until then, and its reply never comes."""
    closing = close_virtual_round(
        Clock(), 1, answers(1.0, 50.0), Quorum(1), priority=(), deadline=10.0
    )
    assert statuses(closing.outcomes) == ["trained", "late"]
    assert closing.clock.busy_clients == {1}
    later = close_virtual_round(
        closing.clock, 2, answers(9.5), Quorum(), priority=(), deadline=10.0
    )
    assert later.clock == Clock(10.5)
    assert later.late_replies == ()


def test_a_reply_is_on_its_way_from_the_start_of_its_round() -> None:
    """Sent at 5 and 4 s on its way, it is there at 9, and not 4 s after the run began."""
    first = close_virtual_round(
        Clock(5.0), 2, answers(1.0, 4.0), Quorum(1), priority=(), deadline=99.0
    )
    assert first.clock == Clock(6.0, (PendingReply(2, 1, 5.0, 4.0),))
    second = close_virtual_round(first.clock, 3, answers(2.0), Quorum(), priority=(), deadline=99.0)
    assert second.clock.now == 8.0
    assert second.clock.busy_clients == {1}
    assert second.late_replies == ()
    third = close_virtual_round(second.clock, 4, answers(1.0), Quorum(), priority=(), deadline=99.0)
    assert third.clock == Clock(9.0)
    assert third.late_replies == (LateReply(2, 1, 4.0),)


def test_priority_clients_alone_make_up_a_quorum() -> None:
    """Nobody waits for a volunteer."""
    quorum = Quorum(None, counts="priority")
    closing = close_virtual_round(
        Clock(), 1, answers(3.0, 1.0, 8.0), quorum, priority=(0, 1), deadline=99.0
    )
    assert closing.clock.now == 3.0
    assert statuses(closing.outcomes) == ["trained", "trained", "late"]


def test_clients_that_are_not_there_do_not_reply() -> None:
    """A share of all asked that cannot be reached waits for those that can reply."""
    clients = answers(1.0, 2.0, None, None, None)
    quorum = Quorum(0.6)
    assert (
        close_virtual_round(Clock(), 1, clients, quorum, priority=(), deadline=99.0).clock.now
        == 2.0
    )
    assert (
        close_virtual_round(Clock(), 1, clients, Quorum(1), priority=(), deadline=99.0).clock.now
        == 1.0
    )


def test_time_advances_where_all_are_busy() -> None:
    """Until the first of those asked is free; a round of nobody takes no time."""
    clock = Clock(5.0, (PendingReply(1, 0, 0.0, 7.0), PendingReply(1, 1, 0.0, 50.0)))
    waiting = close_virtual_round(
        clock, 2, answers(None, None, busy=(0, 1)), Quorum(), priority=(), deadline=9.0
    )
    assert waiting.clock == Clock(7.0, (PendingReply(1, 1, 0.0, 50.0),))
    assert waiting.late_replies == (LateReply(1, 0, 7.0),)
    absent = close_virtual_round(clock, 2, answers(None, None), Quorum(), priority=(), deadline=9.0)
    assert absent.clock == clock


def test_whoever_is_waited_for_is_free() -> None:
    """The round ends when the client is free, not when the rounded difference has passed."""
    reply = PendingReply(1, 0, sent_at=1.523623164705616, seconds=55.0)
    clock = Clock(9.54728146016318, (reply,))
    busy = [ClientOutcome(0, "busy", "its reply is on its way")]
    closing = close_virtual_round(clock, 2, busy, Quorum(), priority=[0], deadline=3600.0)
    assert closing.clock == Clock(reply.compute_free_time(3600.0))
    assert closing.late_replies == (LateReply(1, 0, 55.0),)


@given(
    now=st.floats(0.0, 1e6),
    replies=st.lists(st.tuples(st.floats(0.0, 1.0), st.floats(1e-3, 1e3)), min_size=1, max_size=5),
    deadline=st.floats(0.5, 1e3),
)
def test_somebody_is_free_after_all_were_busy(
    now: float, replies: list[tuple[float, float]], deadline: float
) -> None:
    """A round that waits ends with a client that can be asked, wherever the sums are rounded."""
    pending = tuple(PendingReply(1, k, now * part, s) for k, (part, s) in enumerate(replies))
    pending = tuple(reply for reply in pending if reply.compute_free_time(deadline) > now)
    clock, asked = Clock(now, pending), [ClientOutcome(r.client, "busy") for r in pending]
    closing = close_virtual_round(clock, 2, asked, Quorum(), priority=(), deadline=deadline)
    assert not pending or closing.clock.busy_clients < clock.busy_clients


@pytest.mark.parametrize(("now", "lasts", "ends"), [(0.1, 0.7, 0.8), (0.7, 0.1, 0.8)])
def test_times_are_the_same_up_to_the_rounding_of_sums(
    now: float, lasts: float, ends: float
) -> None:
    """0.1 + 0.7 is 0.7999999999999999; the reply after 0.8 s is there, and its client is free."""
    assert now + lasts < ends
    clock = Clock(now, (PendingReply(1, 1, 0.0, ends),))
    closing = close_virtual_round(clock, 2, answers(lasts), Quorum(), priority=(), deadline=99.0)
    assert closing.clock.busy_clients == frozenset()
    assert closing.late_replies == (LateReply(1, 1, ends),)
    # The same of a reply within the grace, and of the deadline.
    quorum = Quorum(1, grace_seconds=lasts)
    closing = close_virtual_round(
        Clock(), 1, answers(now, ends), quorum, priority=(), deadline=99.0
    )
    assert statuses(closing.outcomes) == ["trained", "trained"]
    closing = close_virtual_round(
        Clock(), 1, answers(now, 50.0), quorum, priority=(), deadline=ends
    )
    assert statuses(closing.outcomes) == ["trained", "failed"]
    assert closing.clock.busy_clients == frozenset()


QUORUMS = st.builds(
    Quorum,
    st.one_of(st.none(), st.integers(1, 12), st.floats(0.01, 0.99)),
    st.sampled_from(["asked", "priority"]),
    st.floats(0.0, 20.0),
)


@given(
    st.lists(st.one_of(st.none(), st.floats(0.01, 100.0)), max_size=12),
    QUORUMS,
    st.sets(st.integers(0, 11)),
    st.floats(0.5, 120.0),
)
def test_any_round(
    seconds: list[float | None], quorum: Quorum, priority: set[int], deadline: float
) -> None:
    """Time never runs back; who is in time was there by the end, and nobody is lost."""
    given_answers = answers(*seconds)
    closing = close_virtual_round(
        Clock(3.0), 4, given_answers, quorum, priority=priority, deadline=deadline
    )
    lasts = closing.clock.now - 3.0
    assert 0.0 <= lasts <= deadline + 1e-9
    for before, after in zip(given_answers, closing.outcomes, strict=True):
        if before.seconds is None:
            assert after == before
        elif after.status == "trained":
            assert before.seconds <= lasts + 1e-9
        else:
            assert before.seconds > lasts - 1e-9
            assert (after.status == "failed") == math.isclose(lasts, deadline)
            assert (after.client in closing.clock.busy_clients) == (after.status == "late")
    # A quorum that is reached is no smaller than it must be.
    counted, enough = quorum.find_required_replies(range(len(seconds)), priority)
    there = [k for k in counted if (takes := seconds[k]) is not None and takes <= deadline]
    in_time = {a.client for a in closing.outcomes if a.status == "trained"}
    assert len(in_time & counted) >= min(enough, len(there))


@pytest.mark.parametrize("size", [None, 1, 0.5])
def test_faster_clients_are_never_later(size: float | None) -> None:
    """The order of the answers does not matter, only their seconds."""
    clients = answers(4.0, 1.0, 3.0, 2.0)
    closing = close_virtual_round(Clock(), 1, clients, Quorum(size), priority=(), deadline=99.0)
    in_time = [a.seconds or 0.0 for a in closing.outcomes if a.status == "trained"]
    late = [a.seconds or 0.0 for a in closing.outcomes if a.status == "late"]
    assert max(in_time) < min(late, default=math.inf)
