"""Decide which replies are in time, as a pure function of simulated response times.

A round begins at ``Clock.now``. The reply of client k arrives d_k seconds later, and the round
closes after

    min(max_k d_k, q + grace, deadline)

seconds, where q is the time of the reply that completes the quorum. A client that replies later is
late, and busy until its reply arrives or its message expires. Since lateness depends on simulated
seconds alone, it is the same on every engine and machine. Times that differ by no more than the
rounding of sums are the same: a reply after 0.8 s is there when rounds of 0.1 and 0.7 s are over.

Shapes: none; clients are ids, times are in simulated seconds.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from operator import not_

from .quorum import Quorum
from .report import LateReply
from .round import ClientAnswer

REPLIED = ("trained", "declined", "rejected")
"""The statuses of clients that reply; no other client replies."""

LATE = "the quorum closed the round before its reply came"
NO_REPLY = "no reply in time"

ROUNDING = 1e-12
"""Relative difference up to which two times are the same; a million rounds differ by less."""


@dataclass(frozen=True)
class OnItsWay:
    """A reply that had not arrived when its round closed.

    Parameters
    ----------
    server_round : int
        The round.
    client : int
        The client that replies.
    sent : float
        The time at which the message was sent.
    seconds : float
        Time from the message to the reply. If it is longer than the deadline, the message expires.
    """

    server_round: int
    client: int
    sent: float
    seconds: float

    def ends(self, deadline: float) -> float:
        """Return the time at which the client is free again."""
        return self.sent + min(self.seconds, deadline)


@dataclass(frozen=True)
class Clock:
    """The simulated time between two rounds.

    Parameters
    ----------
    now : float
        Seconds since the first round began.
    on_their_way : tuple of OnItsWay
        The replies of closed rounds that have not arrived.
    """

    now: float = 0.0
    on_their_way: tuple[OnItsWay, ...] = ()

    @property
    def busy(self) -> frozenset[int]:
        """The clients that still work for an earlier round, and receive no message."""
        return frozenset(reply.client for reply in self.on_their_way)


@dataclass(frozen=True)
class Closing:
    """The result of closing a round.

    Parameters
    ----------
    clock : Clock
        The time after the round.
    answers : tuple of ClientAnswer
        The answer of every client asked. A client that replied too late is ``late``, or ``failed``
        if the deadline closed the round.
    late : tuple of LateReply
        The replies to earlier rounds that arrived meanwhile.
    """

    clock: Clock
    answers: tuple[ClientAnswer, ...]
    late: tuple[LateReply, ...]


def close(
    clock: Clock,
    server_round: int,
    answers: Sequence[ClientAnswer],
    quorum: Quorum,
    *,
    priority: Collection[int],
    deadline: float,
) -> Closing:
    """Close a round: decide which replies were in time, and when the round ended.

    If all clients that could reply are busy, the round lasts until the first of them is free.

    Parameters
    ----------
    clock : Clock
        The time at the beginning of the round.
    server_round : int
        The round, from 1.
    answers : sequence of ClientAnswer
        The answer of every client asked, in time or not; ``seconds`` is d_k.
    quorum : Quorum
        The number of replies that closes the round.
    priority : collection of int
        The priority clients.
    deadline : float
        Seconds after which a round is closed and its messages expire.
    """
    takes = {a.client: a.seconds for a in answers if _replied(a) and a.seconds is not None}
    lasts = duration(takes, [a.client for a in answers], quorum, priority, deadline)
    now = clock.now + lasts
    busy = {a.client for a in answers if a.status == "busy"}
    if busy and not takes:
        now = min(r.ends(deadline) for r in clock.on_their_way if r.client in busy)
    missed = {k: s for k, s in takes.items() if not _is_by(clock.now + s, now)}
    expired = _is_by(clock.now + deadline, now)
    status, reason = ("failed", NO_REPLY) if expired else ("late", LATE)
    pending = (
        *clock.on_their_way,
        *(OnItsWay(server_round, k, clock.now, missed[k]) for k in sorted(missed)),
    )
    ended = [_is_by(reply.ends(deadline), now) for reply in pending]
    arrived = (r for r in compress(pending, ended) if r.seconds <= deadline)
    return Closing(
        Clock(now, tuple(compress(pending, map(not_, ended)))),
        tuple(
            ClientAnswer(a.client, status, reason, seconds=a.seconds) if a.client in missed else a
            for a in answers
        ),
        tuple(LateReply(r.server_round, r.client, r.seconds) for r in arrived),
    )


def duration(
    takes: Mapping[int, float],
    asked: Collection[int],
    quorum: Quorum,
    priority: Collection[int],
    deadline: float,
) -> float:
    """Return the length of a round in seconds.

    Parameters
    ----------
    takes : mapping of int to float
        d_k of the clients whose replies are on their way.
    asked : collection of int
        All clients asked, to which a share refers.
    quorum, priority, deadline
        As in ``close``.
    """
    everybody = max(takes.values(), default=0.0)
    counted, enough = quorum.required(asked, priority)
    counting = sorted(seconds for client, seconds in takes.items() if client in counted)
    reached = counting[enough - 1] if 0 < enough <= len(counting) else math.inf
    return min(everybody, reached + quorum.grace_seconds, deadline)


def _is_by(time: float, end: float) -> bool:
    """Say whether a time is not after another."""
    return time <= end or math.isclose(time, end, rel_tol=ROUNDING)


def _replied(answer: ClientAnswer) -> bool:
    return answer.status in REPLIED
