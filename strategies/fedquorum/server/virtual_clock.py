"""Decide which replies are in time, as a pure function of simulated response times.

A round starts at ``Clock.now``. The reply of client k arrives d_k seconds later, and the round
closes after

    min(max_k d_k, q + grace, deadline)

seconds, where q is the time of the reply that completes the quorum. A client that replies later is
late, and busy until its reply arrives or its message expires. Since lateness depends on simulated
seconds alone, it is the same on every engine and machine. Times that differ by no more than the
rounding of sums count as equal: a reply after 0.8 s is in time for rounds of 0.1 and 0.7 s.

Shapes: none; clients are ids, times are in simulated seconds.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from operator import not_

from ..rules.decisions import LateReply
from ..rules.round import ClientOutcome
from .quorum import Quorum

REPLY_STATUSES = ("trained", "declined", "rejected")
"""The statuses of clients that reply; no other client replies."""

LATE_REASON = "the quorum closed the round before its reply came"
NO_REPLY_REASON = "no reply in time"

TIME_TOLERANCE = 1e-12
"""The relative difference up to which two times are equal; a million rounds differ by less."""


@dataclass(frozen=True)
class PendingReply:
    """A reply that had not arrived when its round closed.

    Parameters
    ----------
    server_round : int
    client : int
    sent_at : float
        The time of the message, in simulated seconds.
    seconds : float
        Time from the message to the reply. If it is longer than the deadline, the message expires.
    """

    server_round: int
    client: int
    sent_at: float
    seconds: float

    def compute_free_time(self, deadline: float) -> float:
        """Return the time at which the client is free again."""
        return self.sent_at + min(self.seconds, deadline)


@dataclass(frozen=True)
class Clock:
    """The simulated time between two rounds.

    Parameters
    ----------
    now : float
        Seconds since the first round started.
    pending_replies : tuple of PendingReply
        The replies of closed rounds that have not arrived.
    """

    now: float = 0.0
    pending_replies: tuple[PendingReply, ...] = ()

    @property
    def busy_clients(self) -> frozenset[int]:
        """The clients that are still busy with an earlier round, and receive no message."""
        return frozenset(reply.client for reply in self.pending_replies)

    def has_reached(self, seconds: float) -> bool:
        """Say whether this time is at or after another."""
        return _is_by(seconds, self.now)

    def count_intervals(self, seconds: float) -> int:
        """Return how many multiples of an interval have passed; one counts when it is reached."""
        nearest = round(self.now / seconds)
        return nearest if self.has_reached(nearest * seconds) else nearest - 1


@dataclass(frozen=True)
class RoundClosing:
    """The result of closing a round.

    Parameters
    ----------
    clock : Clock
        The time after the round.
    outcomes : tuple of ClientOutcome
        The outcome of every selected client. A client that replied too late is ``late``, or
        ``failed`` if the deadline closed the round.
    late_replies : tuple of LateReply
        The replies to earlier rounds that arrived during this round.
    """

    clock: Clock
    outcomes: tuple[ClientOutcome, ...]
    late_replies: tuple[LateReply, ...]


def close_virtual_round(
    clock: Clock,
    server_round: int,
    outcomes: Sequence[ClientOutcome],
    quorum: Quorum,
    *,
    priority: Collection[int],
    deadline: float,
) -> RoundClosing:
    """Close a round: decide which replies were in time, and when the round ended.

    If all clients that could reply are busy, the round lasts until the first of them is free.

    Parameters
    ----------
    clock : Clock
        The time at the start of the round.
    server_round : int
        The round, from 1.
    outcomes : sequence of ClientOutcome
        The outcome of every selected client, in time or not; ``seconds`` is d_k.
    quorum : Quorum
    priority : collection of int
        The priority clients.
    deadline : float
        Seconds after which a round is closed and its messages expire.
    """
    reply_seconds = {
        a.client: a.seconds for a in outcomes if _has_replied(a) and a.seconds is not None
    }
    duration = compute_round_duration(
        reply_seconds, [a.client for a in outcomes], quorum, priority, deadline
    )
    now = clock.now + duration
    busy = {a.client for a in outcomes if a.status == "busy"}
    if busy and not reply_seconds:
        now = min(r.compute_free_time(deadline) for r in clock.pending_replies if r.client in busy)
    late = {k: s for k, s in reply_seconds.items() if not _is_by(clock.now + s, now)}
    expired = _is_by(clock.now + deadline, now)
    status, reason = ("failed", NO_REPLY_REASON) if expired else ("late", LATE_REASON)
    pending = (
        *clock.pending_replies,
        *(PendingReply(server_round, k, clock.now, late[k]) for k in sorted(late)),
    )
    ended = [_is_by(reply.compute_free_time(deadline), now) for reply in pending]
    arrived = (r for r in compress(pending, ended) if r.seconds <= deadline)
    return RoundClosing(
        Clock(now, tuple(compress(pending, map(not_, ended)))),
        tuple(
            ClientOutcome(a.client, status, reason, seconds=a.seconds) if a.client in late else a
            for a in outcomes
        ),
        tuple(LateReply(r.server_round, r.client, r.seconds) for r in arrived),
    )


def compute_round_duration(
    reply_seconds: Mapping[int, float],
    selected: Collection[int],
    quorum: Quorum,
    priority: Collection[int],
    deadline: float,
) -> float:
    """Return the length of a round in seconds.

    Parameters
    ----------
    reply_seconds : mapping of int to float
        d_k of the clients that will reply.
    selected : collection of int
        All selected clients, to which a fractional quorum refers.
    quorum, priority, deadline
        As in ``close_virtual_round``.
    """
    last_reply = max(reply_seconds.values(), default=0.0)
    counted, num_required = quorum.find_required_replies(selected, priority)
    counted_seconds = sorted(
        seconds for client, seconds in reply_seconds.items() if client in counted
    )
    quorum_seconds = (
        counted_seconds[num_required - 1] if 0 < num_required <= len(counted_seconds) else math.inf
    )
    return min(last_reply, quorum_seconds + quorum.grace_seconds, deadline)


def _is_by(time: float, end: float) -> bool:
    """Say whether a time is at or before another."""
    return time <= end or math.isclose(time, end, rel_tol=TIME_TOLERANCE)


def _has_replied(outcome: ClientOutcome) -> bool:
    return outcome.status in REPLY_STATUSES
