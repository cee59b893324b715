"""Describe how a data set was interpreted, at the start of a run and in its manifest."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from fedquorum.sanitize import sanitize

TARGET_TEXTS = {
    "sequence": "the next of {} tokens",
    "number": "a number",
    "class": "one of {} classes",
}
MAX_LISTED_NAMES = 8
MAX_NAMES_LENGTH = 300


@dataclass(frozen=True)
class DataSummary:
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

    def to_dict(self) -> dict[str, Any]:
        """Return it as the manifest has it."""
        return {**asdict(self), "doubts": list(self.doubts)}

    def format_lines(self, name: str) -> Iterator[str]:
        """Yield it for people, each line whole; ``name`` is that of the data set."""
        rows = "" if self.rows is None else f", {self.rows:,} rows"
        yield sanitize(
            f"Data {name}: {_format_clients(self.clients)}{rows}; target {self.target}; inputs "
            f"{self.inputs}",
            MAX_NAMES_LENGTH,
        )
        if self.left_out:
            clients = _join_names(f"{client} ({rows})" for client, rows in self.left_out.items())
            yield sanitize(
                f"Left out by data.min_samples: {_format_clients(len(self.left_out))} with too few rows: "
                f"{clients}",
                MAX_NAMES_LENGTH,
            )
        if self.columns_left_out:
            columns = _join_names(
                f"{column} ({why})" for column, why in self.columns_left_out.items()
            )
            yield sanitize(
                f"Columns left out: {columns}. data.columns takes the columns that it names.",
                MAX_NAMES_LENGTH,
            )
        for doubt in self.doubts:
            yield sanitize(f"Warning: {doubt}", MAX_NAMES_LENGTH)


def _format_clients(count: int) -> str:
    return f"{count:,} client" + ("" if count == 1 else "s")


def describe_target(target: str, num_classes: int) -> str:
    """Return the target in words."""
    return TARGET_TEXTS[target].format(f"{num_classes:,}")


def describe_inputs(input_shape: Sequence[int], num_tokens: int | None) -> str:
    """Return the inputs in words."""
    shape = " x ".join(map(str, input_shape))
    return f"{shape} numbers" if num_tokens is None else f"{shape} of {num_tokens:,} tokens"


def _join_names(names: Iterator[str]) -> str:
    """Return names one after the other, the first of many."""
    listed = list(names)
    more = f", and {len(listed) - MAX_LISTED_NAMES} more" if len(listed) > MAX_LISTED_NAMES else ""
    return ", ".join(listed[:MAX_LISTED_NAMES]) + more
