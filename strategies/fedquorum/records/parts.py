"""The names of a table's parts: ``part-00007.parquet``, and ``part-00000-00031.parquet`` for 32.

A run writes a part with every checkpoint, and merges old ones: the number of its files grows with
the logarithm of the number of checkpoints, not with it. A merged part is written before those that
are in it are removed, so that where both are there the rows of the latter count once.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

_NAME = re.compile(r"part-(\d{5,18})(?:-(\d{5,18}))?\.parquet", re.ASCII)


@dataclass(frozen=True, order=True)
class Span:
    """The parts from ``first`` to ``last`` in one file."""

    first: int
    last: int

    @classmethod
    def of(cls, name: str) -> "Span | None":
        """Return the span in a file's name, None for another name."""
        found = _NAME.fullmatch(name)
        if found is None:
            return None
        first = int(found[1])
        return cls(first, first if found[2] is None else int(found[2]))

    @property
    def name(self) -> str:
        """The name of the file."""
        several = f"-{self.last:05d}" if self.last > self.first else ""
        return f"part-{self.first:05d}{several}.parquet"

    @property
    def width(self) -> int:
        """The number of parts in the span."""
        return self.last - self.first + 1

    def covers(self, other: "Span") -> bool:
        """Say whether the rows of another part are in this one."""
        return self.first <= other.first and other.last <= self.last


def uncovered(names: Iterable[str]) -> list[str]:
    """Return the names of files whose rows are in no other file, in the order of the rows."""
    spans = {name: Span.of(name) for name in names}
    found = [name for name, span in spans.items() if span is None]
    reached = -1
    together = [(span.first, -span.last, name) for name, span in spans.items() if span is not None]
    for _, last, name in sorted(together):
        if -last > reached:
            found.append(name)
            reached = -last
    return found


def is_covered(name: str, names: Iterable[str]) -> bool:
    """Say whether the rows of a part are in another one of these files."""
    part = Span.of(name)
    spans = (Span.of(other) for other in names if other != name)
    return part is not None and any(span is not None and span.covers(part) for span in spans)


def is_made_of(name: str, names: Iterable[str]) -> bool:
    """Say whether a part has all its rows from these, no two of which share any."""
    whole = Span.of(name)
    if whole is None or whole.width == 1:
        return False
    inside = (span for span in map(Span.of, names) if span is not None and whole.covers(span))
    return sum(span.width for span in inside) == whole.width
