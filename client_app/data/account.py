"""Describe how a data set was interpreted, at the start of a run and in its manifest."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from fedquorum.intake import shown

TARGETS = {"sequence": "the next of {} tokens", "number": "a number", "class": "one of {} classes"}
MOST_NAMES = 8
LONGEST_NAMES = 300


@dataclass(frozen=True)
class Account:
    """The interpretation of a data set.

    Parameters
    ----------
    clients : int
        How many clients there are.
    target : str
        What is predicted, in words.
    inputs : str
        What it is predicted from, in words.
    rows : int, optional
        Rows of all clients, None where nobody has counted them.
    left_out : mapping of str to int
        The clients with fewer rows than ``data.min_samples``, and how many rows they have.
    columns_left_out : mapping of str to str
        The columns that are no inputs although nobody said so, and what they seem to hold.
    doubts : tuple of str
        What may have been taken for something else than it is, one sentence each.
    """

    clients: int
    target: str
    inputs: str
    rows: int | None = None
    left_out: Mapping[str, int] = field(default_factory=dict)
    columns_left_out: Mapping[str, str] = field(default_factory=dict)
    doubts: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return it as the manifest has it."""
        return {**asdict(self), "doubts": list(self.doubts)}

    def lines(self, name: str) -> Iterator[str]:
        """Yield it for people, each line whole; ``name`` is that of the data set."""
        rows = "" if self.rows is None else f", {self.rows:,} rows"
        yield shown(
            f"Data {name}: {_clients(self.clients)}{rows}; target {self.target}; inputs "
            f"{self.inputs}",
            LONGEST_NAMES,
        )
        if self.left_out:
            clients = _listed(f"{client} ({rows})" for client, rows in self.left_out.items())
            yield shown(
                f"Left out by data.min_samples: {_clients(len(self.left_out))} with too few rows: "
                f"{clients}",
                LONGEST_NAMES,
            )
        if self.columns_left_out:
            columns = _listed(f"{column} ({why})" for column, why in self.columns_left_out.items())
            yield shown(
                f"Columns left out: {columns}. data.columns takes the columns that it names.",
                LONGEST_NAMES,
            )
        for doubt in self.doubts:
            yield shown(f"Warning: {doubt}", LONGEST_NAMES)


def _clients(count: int) -> str:
    return f"{count:,} client" + ("" if count == 1 else "s")


def target_words(target: str, num_classes: int) -> str:
    """Return the target in words."""
    return TARGETS[target].format(f"{num_classes:,}")


def input_words(input_shape: Sequence[int], num_tokens: int | None) -> str:
    """Return the inputs in words."""
    shape = " x ".join(map(str, input_shape))
    return f"{shape} numbers" if num_tokens is None else f"{shape} of {num_tokens:,} tokens"


def _listed(names: Iterator[str]) -> str:
    """Return names one after the other, the first of many."""
    known = list(names)
    more = f", and {len(known) - MOST_NAMES} more" if len(known) > MOST_NAMES else ""
    return ", ".join(known[:MOST_NAMES]) + more
