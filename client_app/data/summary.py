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
        Number of clients.
    target : str
        Description of the target.
    inputs : str
        Description of the inputs.
    rows : int, optional
        Rows of all clients, None if they have not been counted.
    dropped_clients : mapping of str to int
        The clients with fewer rows than ``data.min_samples``, and their number of rows.
    dropped_columns : mapping of str to str
        The columns that were automatically excluded from the inputs, and what they seem to hold.
    client_names : tuple of str
        The clients' names by id; empty if the data does not name them. They are printed, but not
        part of the manifest, because ``population.parquet`` has them.
    numbers : tuple of str
        The columns of numbers.
    categories : mapping of str to int
        The columns of categories, and the number of each one's categories.
    classes : mapping of str to float
        The classes, and their shares of the rows.
    missing : mapping of str to float
        The columns with missing cells, and the share of rows without a value.
    invalid : mapping of str to int
        The columns with cells that ``data.invalid_cells=missing`` takes as missing, and how many.
    other_categories : mapping of str to int
        The columns with categories that became "other", and how many categories did.
    files_passed_over : mapping of str to int
        The kinds of files in a folder that were not read, such as ``.gif``, and how many.
    target_scale : mapping of str to float
        The ``mean`` and ``deviation`` by which the targets of a regression are scaled.
    warnings : tuple of str
        Possible misinterpretations, one sentence each.
    """

    clients: int
    target: str
    inputs: str
    rows: int | None = None
    dropped_clients: Mapping[str, int] = field(default_factory=dict)
    dropped_columns: Mapping[str, str] = field(default_factory=dict)
    client_names: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    categories: Mapping[str, int] = field(default_factory=dict)
    classes: Mapping[str, float] = field(default_factory=dict)
    missing: Mapping[str, float] = field(default_factory=dict)
    invalid: Mapping[str, int] = field(default_factory=dict)
    other_categories: Mapping[str, int] = field(default_factory=dict)
    files_passed_over: Mapping[str, int] = field(default_factory=dict)
    target_scale: Mapping[str, float] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the summary in the form of the manifest."""
        facts = asdict(self)
        del facts["client_names"]
        return {**facts, "numbers": list(self.numbers), "warnings": list(self.warnings)}

    def format_lines(self, name: str) -> Iterator[str]:
        """Yield lines to print; ``name`` is that of the data set."""
        rows = "" if self.rows is None else f", {self.rows:,} rows"
        yield sanitize(
            f"Data {name}: {_format_clients(self.clients)}{rows}; target {self.target}; inputs "
            f"{self.inputs}",
            MAX_NAMES_LENGTH,
        )
        if self.dropped_clients:
            clients = _join_names(
                f"{client} ({rows})" for client, rows in self.dropped_clients.items()
            )
            yield sanitize(
                f"Left out by data.min_samples: {_format_clients(len(self.dropped_clients))} with "
                f"too few rows: {clients}",
                MAX_NAMES_LENGTH,
            )
        if self.dropped_columns:
            columns = _join_names(
                f"{column} ({why})" for column, why in self.dropped_columns.items()
            )
            yield sanitize(
                f"Columns left out: {columns}. data.columns takes the columns that it names.",
                MAX_NAMES_LENGTH,
            )
        if self.files_passed_over:
            files = _join_names(
                f"{count:,} {ending}" for ending, count in self.files_passed_over.items()
            )
            yield sanitize(f"Files passed over: {files}", MAX_NAMES_LENGTH)
        for warning in self.warnings:
            yield sanitize(f"Warning: {warning}", MAX_NAMES_LENGTH)


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
    """Join names with commas, at most ``MAX_LISTED_NAMES`` of them."""
    listed = list(names)
    more = f", and {len(listed) - MAX_LISTED_NAMES} more" if len(listed) > MAX_LISTED_NAMES else ""
    return ", ".join(listed[:MAX_LISTED_NAMES]) + more
