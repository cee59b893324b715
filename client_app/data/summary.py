"""Describe how a data set was interpreted, at the start of a run and in its manifest."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import count
from pathlib import PurePath
from typing import Any

from fedquorum.records.data_facts import list_data_lines

from client_app.data.scaling import AgreedScales

TARGET_TEXTS = {
    "sequence": "the next of {} tokens",
    "number": "a number",
    "class": "one of {} classes",
}
NO_SCALES = AgreedScales()


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
    division : str
        How the rows became those of the clients, in words; empty for a table.
    client_names : tuple of str
        The clients' names by id; empty if the data does not name them. They are printed, but not
        part of the manifest, because ``population.parquet`` has them.
    numbers : tuple of str
        The columns of numbers.
    categories : mapping of str to int
        The columns of categories, and the number of each one's categories.
    classes : mapping of str to float or None
        The classes by number, and their shares of the rows if they are known.
    missing : mapping of str to float
        The columns with missing cells, and the share of rows without a value.
    invalid : mapping of str to int
        The columns with cells that ``data.invalid_cells=missing`` takes as missing, and how many.
    other_categories : mapping of str to int
        The columns with categories that became "other", and how many categories did.
    files_passed_over : mapping of str to int
        The kinds of files in a folder that were not read, such as ``.gif``, and how many.
    constant_accuracy : mapping of str to float
        The test accuracy of always guessing the largest class, by group of clients; see
        ``client_app.data.describe``.
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
    division: str = ""
    client_names: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    categories: Mapping[str, int] = field(default_factory=dict)
    classes: Mapping[str, float | None] = field(default_factory=dict)
    missing: Mapping[str, float] = field(default_factory=dict)
    invalid: Mapping[str, int] = field(default_factory=dict)
    other_categories: Mapping[str, int] = field(default_factory=dict)
    files_passed_over: Mapping[str, int] = field(default_factory=dict)
    constant_accuracy: Mapping[str, float] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    scales: AgreedScales = NO_SCALES

    def to_dict(self) -> dict[str, Any]:
        """Return the summary in the form of the manifest."""
        facts = {item.name: getattr(self, item.name) for item in fields(self)}
        del facts["client_names"]
        listed = {key: [*v] if isinstance(v, tuple) else v for key, v in facts.items()}
        return {**listed, "scales": self.scales.to_dict()}

    def without_client_names(self) -> "DataSummary":
        """Return the summary for records without names.

        Clients left out have numbers, and files have their endings alone, because a client may have
        its file's name. Warnings have ids already; see ``label_clients``.
        """
        files: Counter[str] = Counter()
        for name, number in self.files_passed_over.items():
            ending = name if name.startswith(".") else PurePath(name).suffix or "other"
            files[ending] += number
        return replace(
            self,
            client_names=(),
            dropped_clients=dict(
                zip(map(str, count(1)), self.dropped_clients.values(), strict=False)
            ),
            files_passed_over=dict(files),
        )

    def format_lines(self, name: str) -> list[str]:
        """Return lines to print; ``name`` is that of the data set."""
        return list_data_lines(name, self.to_dict(), self.client_names)


def describe_target(target: str, num_classes: int) -> str:
    """Return the target in words."""
    return TARGET_TEXTS[target].format(f"{num_classes:,}")


def describe_inputs(input_shape: Sequence[int], num_tokens: int | None) -> str:
    """Return the inputs in words."""
    shape = " x ".join(map(str, input_shape))
    return f"{shape} numbers" if num_tokens is None else f"{shape} of {num_tokens:,} tokens"
