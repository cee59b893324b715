"""Close a round where late updates count: who arrives in it, who fails, and who stays under way.

A message that was sent at time b_k is answered d_k seconds later, or expires after ``deadline``
seconds, over however many rounds close meanwhile. A round closes once K replies of any age have
arrived, plus the grace period, or when nobody is left to wait for. Updates that are older than the
limit count neither for the model nor for K. Under a virtual clock everything follows from simulated
seconds, on arrays: no step takes longer for each client that stays under way. By the real clock the
grid has seen who replied (``sort_by_reply``).

Shapes: m is the number of clients under way.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ..rules.state_arrays import StateArrays, expect_array
from ..rules.types import BoolArray, FloatArray, IntArray
from .virtual_clock import TIME_TOLERANCE

UNDER_WAY_REASON = "under way: its update counts in the round in which it arrives"
LOST_REASON = "lost: the run was interrupted while it was under way"


@dataclass(frozen=True, eq=False)
class UnderWay:
    """The clients under way, ascending by id, shapes (m,).

    Parameters
    ----------
    client : IntArray
    start_round : IntArray
        The round in which the client was asked, from whose model it trains.
    sent_at : FloatArray
        The time of the message, in simulated seconds.
    seconds : FloatArray
        The time from the message to the reply; infinite as long as nobody knows it.
    """

    client: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    start_round: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    sent_at: FloatArray = field(default_factory=lambda: np.zeros(0))
    seconds: FloatArray = field(default_factory=lambda: np.zeros(0))

    def __len__(self) -> int:
        return len(self.client)

    def add(self, server_round: int, now: float, seconds_by_client: Mapping[int, float]) -> Self:
        """Return the clients under way, with those that a round sent on their way."""
        count = len(seconds_by_client)
        client = np.concatenate([self.client, np.array([*seconds_by_client], dtype=np.int64)])
        order = np.argsort(client)
        return type(self)(
            client[order],
            np.concatenate([self.start_round, np.full(count, server_round, dtype=np.int64)])[order],
            np.concatenate([self.sent_at, np.full(count, now)])[order],
            np.concatenate([self.seconds, np.array([*seconds_by_client.values()], dtype=float)])[
                order
            ],
        )

    def merge(self, other: Self) -> Self:
        """Return the clients of both, of which none is in both."""
        joined = [
            np.concatenate([getattr(self, item.name), getattr(other, item.name)])
            for item in fields(self)
        ]
        return type(self)(*(column[np.argsort(joined[0])] for column in joined))

    def select(self, mask: BoolArray) -> Self:
        """Return the clients of a mask, shape (m,)."""
        return type(self)(*(getattr(self, item.name)[mask] for item in fields(self)))

    def get_state(self) -> StateArrays:
        """Return the arrays by name."""
        return {item.name: getattr(self, item.name) for item in fields(self)}

    @classmethod
    def from_state(cls, state: Mapping[str, NDArray[Any]], prefix: str) -> Self:
        """Return what ``get_state`` gave, from arrays whose names begin with ``prefix``.

        Raises
        ------
        StateError
            If an array is missing, or has another form.
        """
        if f"{prefix}client" not in state:
            return cls()
        count, empty = len(state[f"{prefix}client"]), cls().get_state()
        return cls(
            **{
                name: expect_array(np.zeros(count, array.dtype), f"{prefix}{name}", state)
                for name, array in empty.items()
            }
        )


@dataclass(frozen=True)
class LateClosing:
    """How a round ended; the three groups left it, and ``under_way`` stays.

    Parameters
    ----------
    now : float
        The time at the end of the round, in simulated seconds.
    arrived : UnderWay
        The clients whose updates count in this round.
    expired : UnderWay
        The clients whose messages expired.
    too_old : UnderWay
        The clients that replied with an update older than the limit.
    under_way : UnderWay
        The others.
    lost : UnderWay
        The clients whose messages were lost with an interrupted run.
    """

    now: float
    arrived: UnderWay
    expired: UnderWay
    too_old: UnderWay
    under_way: UnderWay
    lost: UnderWay = field(default_factory=UnderWay)


def _find_young(
    under_way: UnderWay, server_round: int, max_staleness: int | None
) -> NDArray[np.bool_]:
    """Return the mask of the updates that are young enough to count in a round."""
    limit = math.inf if max_staleness is None else max_staleness
    found: NDArray[np.bool_] = server_round - under_way.start_round <= limit
    return found


def sort_by_reply(
    under_way: UnderWay,
    server_round: int,
    *,
    seconds: Mapping[int, float],
    expired: Collection[int],
    lost: Collection[int],
    max_staleness: int | None,
) -> LateClosing:
    """Close a round by the real clock, where the grid has seen who replied.

    Parameters
    ----------
    under_way : UnderWay
        All clients under way, also those asked in this round.
    server_round : int
        The round, from 1.
    seconds : mapping of int to float
        Seconds from the message to the reply, of each client that replied.
    expired, lost : collection of int
        The clients whose messages expired, and those whose messages an interrupted run lost.
    max_staleness : int, optional
        The largest staleness of an update that counts.
    """
    replied, has_expired, is_lost = (
        np.isin(under_way.client, np.array([*clients], dtype=np.int64))
        for clients in (seconds, expired, lost)
    )
    under_way = replace(
        under_way,
        seconds=np.array([seconds.get(k, math.inf) for k in under_way.client.tolist()]),
    )
    is_countable = replied & _find_young(under_way, server_round, max_staleness)
    return LateClosing(
        0.0,
        under_way.select(is_countable),
        under_way.select(has_expired),
        under_way.select(replied & ~is_countable),
        under_way.select(~(replied | has_expired | is_lost)),
        under_way.select(is_lost),
    )


def close_late_round(
    under_way: UnderWay,
    server_round: int,
    *,
    now: float,
    num_required: int,
    grace_seconds: float,
    deadline: float,
    max_staleness: int | None,
) -> LateClosing:
    """Close a round where late updates count.

    Parameters
    ----------
    under_way : UnderWay
        All clients under way, also those asked in this round.
    server_round : int
        The round, from 1.
    now : float
        The time at the start of the round.
    num_required : int
        K, the replies that close the round.
    grace_seconds : float
        How long the round waits for further replies.
    deadline : float
        How long a message lives.
    max_staleness : int, optional
        The largest staleness of an update that counts.
    """
    replies = under_way.seconds <= deadline
    is_countable = replies & _find_young(under_way, server_round, max_staleness)
    # Relative to the round's start: sent_at + seconds would round a new message's time.
    ends = (under_way.sent_at - now) + np.minimum(under_way.seconds, deadline)
    countable = np.sort(ends[is_countable])
    duration = float(ends.max(initial=0.0))
    if 0 < num_required <= len(countable):
        duration = min(duration, float(countable[num_required - 1]) + grace_seconds)
    end = now + max(duration, 0.0)
    times = under_way.sent_at + np.minimum(under_way.seconds, deadline)
    ended = (times <= end) | (
        np.abs(times - end) <= TIME_TOLERANCE * np.maximum(np.abs(times), abs(end))
    )
    return LateClosing(
        end,
        under_way.select(ended & is_countable),
        under_way.select(ended & ~replies),
        under_way.select(ended & replies & ~is_countable),
        under_way.select(~ended),
    )


def select_start_rounds(
    under_way: UnderWay, next_round: int, max_staleness: int | None
) -> frozenset[int]:
    """Return the rounds whose models somebody still trains from, at the start of a round."""
    rounds = np.unique(under_way.start_round)
    if max_staleness is not None:
        rounds = rounds[next_round - rounds <= max_staleness]
    return frozenset(rounds.tolist())
