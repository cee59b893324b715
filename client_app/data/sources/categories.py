"""Turn columns of categories into flags of 0 and 1."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from client_app.data.base import Inputs, Labels
from client_app.data.coding.cells import Cells
from client_app.data.coding.stated_values import match_values
from client_app.data.coding.values import Value
from client_app.data.sources.labels import find_names

OTHER = "other"


@dataclass(frozen=True, eq=False)
class CategoryColumn:
    """A column of n categories.

    Attributes
    ----------
    values : tuple
        The category of each flag, in order; None for a missing one.
    codes : array of int64
        (n,), the index in ``values`` of each row, -1 for a value that is not among them.
    names : tuple of str
        All different values of the file, in order; empty if the settings name the values.
    counts : array of int64
        The number of rows of each of ``names``.
    other : str or None
        The value of the flag that the rarer values share, if there are too many.
    """

    values: tuple[Value, ...]
    codes: Labels
    names: tuple[str, ...] = ()
    counts: Labels = field(default_factory=lambda: np.empty(0, np.int64))
    other: str | None = None

    @classmethod
    def find(cls, column: Any, max_values: int) -> "CategoryColumn":
        """Return the categories of a file, the ``max_values`` most frequent ones and others."""
        names, codes = find_names(column)
        counts = np.bincount(codes[codes >= 0], minlength=len(names))
        values: list[Value] = [*names]
        other = None
        if len(names) > max_values:
            kept = np.sort(np.argsort(-counts, kind="stable")[:max_values])
            other = OTHER
            while other in names:
                other = f"({other})"
            values = [*(names[i] for i in kept), other]
            position = np.full(len(names) + 1, max_values)
            position[kept] = np.arange(max_values)
            position[-1] = -1
            codes = position[codes]
        if (codes < 0).any():
            codes = np.where(codes < 0, len(values), codes)
            values.append(None)
        return cls(tuple(values), codes, names, counts, other)

    @classmethod
    def match(cls, column: Any, values: tuple[Value, ...]) -> "CategoryColumn":
        """Return the categories that the settings name."""
        cells = Cells.encode(column)
        missing = values.index(None) if None in values else -1
        return cls(values, cells.expand(match_values(cells.texts, values), missing))

    @property
    def missing(self) -> float:
        """The share of missing cells."""
        return float((self.codes == self.values.index(None)).mean()) if None in self.values else 0.0

    @property
    def num_others(self) -> int:
        """The number of values that share a flag."""
        return 0 if self.other is None else len(self.names) - self.values.index(self.other)


def build_flags(columns: Iterable[CategoryColumn], num_rows: int) -> Inputs:
    """Return the flags (n, q) of all columns, side by side."""
    columns = [*columns]
    flags = np.zeros((num_rows, sum(len(column.values) for column in columns)), np.float32)
    first = 0
    for column in columns:
        flags[np.arange(num_rows), first + column.codes] = 1
        first += len(column.values)
    return flags
