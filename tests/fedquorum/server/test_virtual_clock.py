"""Late clients under the virtual clock, and the duration of rounds."""

import math
from collections.abc import Sequence

import pytest
from fedquorum.rules.decisions import LateReply
from fedquorum.rules.round import ClientOutcome
from fedquorum.server.quorum import Quorum
from fedquorum.server.virtual_clock import (
    LATE_REASON,
    NO_REPLY_REASON,
    Clock,
    PendingReply,
    close_virtual_round,
)
from hypothesis import given
from hypothesis import strategies as st


def make_outcomes(*seconds: float | None, busy: Sequence[int] = ()) -> list[ClientOutcome]:
    """Return outcomes of clients 0, 1, ... after these seconds; None is unavailable."""
    return [
        ClientOutcome(k, "busy" if k in busy else "unavailable")
        if reply_seconds is None
        else ClientOutcome(k, "trained", num_examples=1.0, seconds=reply_seconds)
        for k, reply_seconds in enumerate(seconds)
    ]


def get_statuses(outcomes: Sequence[ClientOutcome]) -> list[str]:
    return [outcome.status for outcome in outcomes]


def test_without_a_quorum_a_round_lasts_as_long_as_the_slowest() -> None:
    """All replies count, and the clock stops at the last reply."""
    closing = close_virtual_round(
        Clock(5.0), 1, make_outcomes(3.0, 1.0, 8.0), Quorum(), priority=(), deadline=100.0
    )
    assert get_statuses(closing.outcomes) == ["trained"] * 3
    assert closing.clock == Clock(13.0)
    assert closing.late_replies == ()


def test_a_quorum_and_its_grace_close_the_round() -> None:
    """Replies within the grace count; later ones are late, and arrive in a later round."""
    clients = make_outcomes(1.0, 2.0, 2.5, 4.0, 9.0)
    first = close_virtual_round(
        Clock(), 1, clients, Quorum(2, grace_seconds=0.75), priority=(), deadline=100.0
    )
    assert first.clock.now == 2.75
    assert get_statuses(first.outcomes) == ["trained"] * 3 + ["late"] * 2
    assert first.outcomes[3] == ClientOutcome(3, "late", LATE_REASON, seconds=4.0)
    assert first.clock.busy_clients == {3, 4}
    second = close_virtual_round(
        first.clock,
        2,
        make_outcomes(1.5, 2.0, 2.0, None, None, busy=(3, 4)),
        Quorum(2),
        priority=(),
        deadline=100.0,
    )
    assert second.clock.now == 4.75
    assert second.late_replies == (LateReply(1, 3, 4.0),)
    assert second.clock.pending_replies == (PendingReply(1, 4, 0.0, 9.0),)


def test_the_deadline_closes_the_round() -> None:
    """A client without a reply has failed, its message expires, and it is free again."""
    closing = close_virtual_round(
        Clock(), 1, make_outcomes(1.0, 50.0), Quorum(), priority=(), deadline=10.0
    )
    assert closing.clock == Clock(10.0)
    assert closing.outcomes[1] == ClientOutcome(1, "failed", NO_REPLY_REASON, seconds=50.0)
    assert closing.late_replies == ()


def test_a_message_expires_even_if_a_quorum_closed_its_round() -> None:
    """Its client is busy until then, and its reply never arrives."""
    closing = close_virtual_round(
        Clock(), 1, make_outcomes(1.0, 50.0), Quorum(1), priority=(), deadline=10.0
    )
    assert get_statuses(closing.outcomes) == ["trained", "late"]
    assert closing.clock.busy_clients == {1}
    later = close_virtual_round(
        closing.clock, 2, make_outcomes(9.5), Quorum(), priority=(), deadline=10.0
    )
    assert later.clock == Clock(10.5)
    assert later.late_replies == ()


def test_a_reply_takes_its_seconds_from_the_start_of_its_round() -> None:
    """Sent at 5 s and taking 4 s, it arrives at 9 s, not 4 s after the start of the run."""
    first = close_virtual_round(
        Clock(5.0), 2, make_outcomes(1.0, 4.0), Quorum(1), priority=(), deadline=99.0
    )
    assert first.clock == Clock(6.0, (PendingReply(2, 1, 5.0, 4.0),))
    second = close_virtual_round(
        first.clock, 3, make_outcomes(2.0), Quorum(), priority=(), deadline=99.0
    )
    assert second.clock.now == 8.0
    assert second.clock.busy_clients == {1}
    assert second.late_replies == ()
    third = close_virtual_round(
        second.clock, 4, make_outcomes(1.0), Quorum(), priority=(), deadline=99.0
    )
    assert third.clock == Clock(9.0)
    assert third.late_replies == (LateReply(2, 1, 4.0),)


def test_priority_clients_alone_make_up_a_quorum() -> None:
    """The round does not wait for other clients."""
    quorum = Quorum(None, counts="priority")
    closing = close_virtual_round(
        Clock(), 1, make_outcomes(3.0, 1.0, 8.0), quorum, priority=(0, 1), deadline=99.0
    )
    assert closing.clock.now == 3.0
    assert get_statuses(closing.outcomes) == ["trained", "trained", "late"]


def test_unavailable_clients_do_not_reply() -> None:
    """A quorum that cannot be reached waits for all clients that can reply."""
    clients = make_outcomes(1.0, 2.0, None, None, None)
    quorum = Quorum(0.6)
    assert (
        close_virtual_round(Clock(), 1, clients, quorum, priority=(), deadline=99.0).clock.now
        == 2.0
    )
    assert (
        close_virtual_round(Clock(), 1, clients, Quorum(1), priority=(), deadline=99.0).clock.now
        == 1.0
    )


def test_time_advances_if_all_clients_are_busy() -> None:
    """Until the first selected client is free; a round without clients takes no time."""
    clock = Clock(5.0, (PendingReply(1, 0, 0.0, 7.0), PendingReply(1, 1, 0.0, 50.0)))
    waiting = close_virtual_round(
        clock, 2, make_outcomes(None, None, busy=(0, 1)), Quorum(), priority=(), deadline=9.0
    )
    assert waiting.clock == Clock(7.0, (PendingReply(1, 1, 0.0, 50.0),))
    assert waiting.late_replies == (LateReply(1, 0, 7.0),)
    absent = close_virtual_round(
        clock, 2, make_outcomes(None, None), Quorum(), priority=(), deadline=9.0
    )
    assert absent.clock == clock


def test_the_client_that_a_round_waits_for_is_free_at_its_end() -> None:
    """The round ends when the client is free, not after the rounded difference."""
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
def test_a_client_is_free_after_all_were_busy(
    now: float, replies: list[tuple[float, float]], deadline: float
) -> None:
    """A round that waits ends with a free client, however the sums are rounded."""
    pending = tuple(
        PendingReply(1, k, now * fraction, s) for k, (fraction, s) in enumerate(replies)
    )
    pending = tuple(reply for reply in pending if reply.compute_free_time(deadline) > now)
    clock, busy_outcomes = Clock(now, pending), [ClientOutcome(r.client, "busy") for r in pending]
    closing = close_virtual_round(clock, 2, busy_outcomes, Quorum(), priority=(), deadline=deadline)
    assert not pending or closing.clock.busy_clients < clock.busy_clients


@pytest.mark.parametrize(("now", "duration", "ends"), [(0.1, 0.7, 0.8), (0.7, 0.1, 0.8)])
def test_times_are_equal_up_to_the_rounding_of_sums(
    now: float, duration: float, ends: float
) -> None:
    """0.1 + 0.7 is 0.7999999999999999; the reply after 0.8 s is in time, and its client is free."""
    assert now + duration < ends
    clock = Clock(now, (PendingReply(1, 1, 0.0, ends),))
    closing = close_virtual_round(
        clock, 2, make_outcomes(duration), Quorum(), priority=(), deadline=99.0
    )
    assert closing.clock.busy_clients == frozenset()
    assert closing.late_replies == (LateReply(1, 1, ends),)
    # The same holds for a reply within the grace, and for the deadline.
    quorum = Quorum(1, grace_seconds=duration)
    closing = close_virtual_round(
        Clock(), 1, make_outcomes(now, ends), quorum, priority=(), deadline=99.0
    )
    assert get_statuses(closing.outcomes) == ["trained", "trained"]
    closing = close_virtual_round(
        Clock(), 1, make_outcomes(now, 50.0), quorum, priority=(), deadline=ends
    )
    assert get_statuses(closing.outcomes) == ["trained", "failed"]
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
    """Time never decreases, a reply in time arrives by the end, and no client is lost."""
    outcomes = make_outcomes(*seconds)
    closing = close_virtual_round(
        Clock(3.0), 4, outcomes, quorum, priority=priority, deadline=deadline
    )
    duration = closing.clock.now - 3.0
    assert 0.0 <= duration <= deadline + 1e-9
    for before, after in zip(outcomes, closing.outcomes, strict=True):
        if before.seconds is None:
            assert after == before
        elif after.status == "trained":
            assert before.seconds <= duration + 1e-9
        else:
            assert before.seconds > duration - 1e-9
            assert (after.status == "failed") == math.isclose(duration, deadline)
            assert (after.client in closing.clock.busy_clients) == (after.status == "late")
    # A reached quorum has at least the required size.
    counted, num_required = quorum.find_required_replies(range(len(seconds)), priority)
    repliers = [
        k
        for k in counted
        if (reply_seconds := seconds[k]) is not None and reply_seconds <= deadline
    ]
    in_time = {a.client for a in closing.outcomes if a.status == "trained"}
    assert len(in_time & counted) >= min(num_required, len(repliers))


@pytest.mark.parametrize("size", [None, 1, 0.5])
def test_faster_clients_are_never_later(size: float | None) -> None:
    """The order of the outcomes does not matter, only their seconds."""
    clients = make_outcomes(4.0, 1.0, 3.0, 2.0)
    closing = close_virtual_round(Clock(), 1, clients, Quorum(size), priority=(), deadline=99.0)
    in_time = [a.seconds or 0.0 for a in closing.outcomes if a.status == "trained"]
    late = [a.seconds or 0.0 for a in closing.outcomes if a.status == "late"]
    assert max(in_time) < min(late, default=math.inf)


def test_a_time_that_rounding_misses_counts_as_reached() -> None:
    """0.1 + 0.2 + ... has passed as many intervals as the decimal numbers say."""
    now, passed = 0.0, []
    for _ in range(10):
        now += 0.1
        passed.append(Clock(now).count_intervals(0.3))
    assert passed == [0, 0, 1, 1, 1, 2, 2, 2, 3, 3]
    assert now < 1.0
    assert Clock(now).has_reached(1.0)
    assert not Clock(now).has_reached(1.001)
    assert [Clock(at).count_intervals(4.0) for at in (0.0, 3.9, 4.0, 7.9, 41.0)] == [0, 0, 1, 1, 10]
