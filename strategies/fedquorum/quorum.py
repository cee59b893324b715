"""A quorum: how many of the clients asked must reply before a round may close.

Shapes: none; clients are ids.
"""

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from .parameters import NON_NEGATIVE, OneOf, Range
from .rule import check_parameters, parameter


@dataclass(frozen=True)
class QuorumSize(Range):
    """A share of clients below 1, or a whole number of them."""

    def describe(self) -> str:
        """Return the range in words."""
        return "a share in (0, 1), or a whole number of clients >= 1"

    def contains(self, value: object) -> bool:
        """Say whether ``value`` is a share or a number of clients."""
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return False
        return 0 < value < 1 or (math.isfinite(value) and value >= 1 and value == int(value))


QUORUM_SIZE = QuorumSize()
QUORUM_OF = OneOf(("asked", "priority"))


@dataclass(frozen=True)
class Quorum:
    """When a round may close before every client has replied.

    Parameters
    ----------
    size : float, optional
        How many clients must have replied: a share below 1 of those asked, or a whole number of
        clients. By default all that were asked.
    of : {"asked", "priority"}
        Whose replies are counted. With ``priority`` only those of priority clients, so that nobody
        waits for a volunteer; a round that asks no priority client counts all.
    grace : float
        Seconds for further replies after the quorum.

    Raises
    ------
    ParameterError
        For a value outside its range.
    """

    size: float | None = parameter(None, QUORUM_SIZE)
    of: str = parameter("asked", QUORUM_OF)
    grace: float = parameter(0.0, NON_NEGATIVE)

    def __post_init__(self) -> None:
        check_parameters(self)

    @property
    def waits_for_all(self) -> bool:
        """Whether no round closes before everybody has replied."""
        return self.size is None and self.of == "asked"

    def required(
        self, asked: Collection[int], priority: Collection[int]
    ) -> tuple[frozenset[int], int]:
        """Return the clients whose replies count towards the quorum, and how many are enough.

        Parameters
        ----------
        asked : collection of int
            The clients asked.
        priority : collection of int
            The priority clients.
        """
        clients = frozenset(asked)
        first = clients.intersection(priority) if self.of == "priority" else clients
        counted = first or clients
        return counted, self._count(len(counted))

    def _count(self, clients: int) -> int:
        """Return how many of so many clients are a quorum."""
        if self.size is None:
            return clients
        if self.size < 1:
            return math.ceil(self.size * clients)
        return min(int(self.size), clients)


class Tally:
    """Counts the replies of one round until they are a quorum.

    Parameters
    ----------
    quorum : Quorum
        How many are enough.
    asked, priority : collection of int
        The clients asked, and the priority clients.
    """

    def __init__(self, quorum: Quorum, asked: Collection[int], priority: Collection[int]) -> None:
        self._waiting, self._enough = quorum.required(asked, priority)
        self._missing = set(self._waiting)

    def add(self, clients: Iterable[int]) -> bool:
        """Count the replies of these clients; say whether those so far are a quorum."""
        self._missing.difference_update(clients)
        return len(self._waiting) - len(self._missing) >= self._enough
