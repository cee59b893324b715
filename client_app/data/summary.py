"""Describe how a data set was interpreted, at the start of a run and in its manifest."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from fedquorum.sanitize import sanitize

from client_app.data.scaling import AgreedScales

TARGET_TEXTS = {
    "sequence": "the next of {} tokens",
    "number": "a number",
    "class": "one of {} classes",
}
NO_SCALES = AgreedScales()
MIN_WHOLE, MAX_WHOLE = 1e5, 1e15
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
    warnings : tuple of str
        Possible misinterpretations, one sentence each.
    scales : AgreedScales
        The scales that all clients share.
    """

    clients: int
    target: str
    inputs: str
    rows: int | None = None
    dropped_clients: Mapping[str, int] = field(default_factory=dict)
    dropped_columns: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    scales: AgreedScales = NO_SCALES

    def to_dict(self) -> dict[str, Any]:
        """Return the summary in the form of the manifest."""
        given = {item.name: getattr(self, item.name) for item in fields(self)}
        return {**given, "warnings": list(self.warnings), "scales": self.scales.to_dict()}

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
        if self.scales.target is not None:
            mean, deviation = self.scales.target.mean[0], self.scales.target.deviation[0]
            yield (
                f"Scale of the target: mean {format_number(mean)}, standard deviation "
                f"{format_number(deviation)}; the loss is in squared standard deviations, and "
                "metrics are in the target's own unit"
            )
        for warning in self.warnings:
            yield sanitize(f"Warning: {warning}", MAX_NAMES_LENGTH)


def format_number(value: float) -> str:
    """Return a number with six digits, or with all digits of its whole part."""
    return f"{value:,.0f}" if MIN_WHOLE <= abs(value) < MAX_WHOLE else f"{value:,.6g}"


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
