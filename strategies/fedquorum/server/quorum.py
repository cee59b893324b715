"""Close a round when a quorum of the selected clients has replied.

Shapes: none; clients are ids.
"""

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from ..rules.parameters import NON_NEGATIVE, OneOf, Range
from ..rules.rounding import round_up
from ..rules.rule import check_parameters, parameter


@dataclass(frozen=True)
class QuorumSize(Range):
    """A range: a fraction of clients below 1, or a whole number of clients."""

    def describe(self) -> str:
        """Return the range in words."""
        return "a share in (0, 1), or a whole number of clients >= 1"

    def contains(self, value: object) -> bool:
        """Say whether ``value`` is a fraction or a number of clients."""
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return False
        return 0 < value < 1 or (math.isfinite(value) and value >= 1 and value == int(value))


QUORUM_SIZE = QuorumSize()
QUORUM_CLIENTS = OneOf(("asked", "priority"))


@dataclass(frozen=True)
class Quorum:
    """The condition under which a round may close before every client has replied.

    Parameters
    ----------
    size : float, optional
        The number of clients that must reply: a fraction below 1 of the selected clients, or a
        whole number of clients. By default all selected clients.
    counts : {"asked", "priority"}
        The clients whose replies count. ``priority`` counts priority clients only, so that a round
        never waits for other clients; a round without a selected priority client counts all.
    grace_seconds : float
        Seconds to wait for further replies after the quorum.

    Raises
    ------
    ParameterError
        If a value is outside its range.
    """

    size: float | None = parameter(None, QUORUM_SIZE)
    counts: str = parameter("asked", QUORUM_CLIENTS)
    grace_seconds: float = parameter(0.0, NON_NEGATIVE)

    def __post_init__(self) -> None:
        check_parameters(self)

    @property
    def waits_for_all(self) -> bool:
        """Whether every round waits for all replies."""
        return self.size is None and self.counts == "asked"

    def find_required_replies(
        self, selected: Collection[int], priority: Collection[int]
    ) -> tuple[frozenset[int], int]:
        """Return the clients whose replies count, and the number of replies that is enough."""
        clients = frozenset(selected)
        preferred = clients.intersection(priority) if self.counts == "priority" else clients
        counted_clients = preferred or clients
        return counted_clients, self.compute_size(len(counted_clients))

    def compute_share(self, selected: Collection[int], priority: Collection[int]) -> float:
        """Return the share of the selected clients whose replies are enough, in (0, 1]."""
        return self.find_required_replies(selected, priority)[1] / max(len(selected), 1)

    def compute_size(self, clients: int) -> int:
        """Return the size of a quorum of ``clients`` clients."""
        if self.size is None:
            return clients
        if self.size < 1:
            return round_up(self.size, clients)
        return min(int(self.size), clients)


class ReplyCounter:
    """Count the replies of one round until they are a quorum.

    Parameters
    ----------
    clients : collection of int
        The clients whose replies count.
    num_required : int
        The number of replies that is enough.
    """

    def __init__(self, clients: Collection[int], num_required: int) -> None:
        self._count, self._enough = len(clients), num_required
        self._missing = set(clients)

    def add(self, clients: Iterable[int]) -> bool:
        """Count the replies of these clients, and say whether the count is a quorum."""
        self._missing.difference_update(clients)
        return self._count - len(self._missing) >= self._enough
