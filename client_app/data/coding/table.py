"""Code the rows of a table: numbers, which are scaled, and categories, which become flags.

Shapes: n rows, p columns of numbers, q flags. An input is float32 (p + q,).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self

import numpy as np
from fedquorum.errors import DataError, SettingsError, suggest_name
from fedquorum.sanitize import abbreviate, sanitize

from client_app.data.base import Inputs, Labels
from client_app.data.coding.base import Coding, EncodedRows
from client_app.data.coding.values import UNKNOWN, Value, format_value
from client_app.data.moments import Numbers
from client_app.data.overrides import list_replacements
from client_app.data.scaling import NumberScale

ScalingKind = Literal["none", "client", "agreed", "device"]
SCALING_KINDS: Sequence[ScalingKind] = ("none", "client", "agreed", "device")
MAX_NAMES = 5
MAX_STATISTICS = 200_000
"""The most numbers of clients' scales in a model card; with more it has their mean alone."""

ON_DEVICE = "with its data as data=FILE (fedquorum predict DIR ROWS.csv --client ID --data FILE)"
"""How to predict where the scale stayed."""


@dataclass(frozen=True)
class CategoryCoding:
    """The coding of a column of categories: a flag for each of q categories.

    Parameters
    ----------
    name : str
    values : tuple
        The categories, in the order of the flags; None is a missing cell.
    other : str, optional
        The one of ``values`` that stands for all other values.
    untrained : tuple
        Those of ``values`` that no training row has: they are other values.
    """

    name: str
    values: tuple[Value, ...]
    other: str | None = None
    untrained: tuple[Value, ...] = ()

    @property
    def flags(self) -> tuple[str, ...]:
        """The names of the flags, ``column=category``."""
        return tuple(
            f"{self.name}={'' if value is None else format_value(value)}" for value in self.values
        )

    def merge_others(self, found: Labels) -> Labels:
        """Return the flags (n,) of values that are at these places (n,) in ``values``.

        ``UNKNOWN`` and untrained values have the flag of other values, or -1 if there is none. An
        empty cell without a place stays -1.
        """
        untrained = [self.values.index(value) for value in self.untrained]
        other = -1 if self.other is None else self.values.index(self.other)
        if other in untrained:
            other = -1
        merged: Labels = np.where((found == UNKNOWN) | np.isin(found, untrained), other, found)
        return merged

    def describe_unseen(self, found: Labels, unknown: Sequence[str]) -> list[str]:
        """Return a sentence about values that the training rows did not have, if there are any.

        Parameters
        ----------
        found : array of int64
            (n,), as for ``merge_others``.
        unknown : sequence of str
            The values that are not in ``values``.
        """
        present = {*found.tolist()}
        untrained = [v for v in self.untrained if self.values.index(v) in present]
        unseen = sorted({*unknown, *(format_value(v) for v in untrained if v is not None)})
        listed = [*unseen[:MAX_NAMES], *([".."] if unseen[MAX_NAMES:] else [])]
        if -1 in present or None in untrained:
            listed.append("empty cell")
        if not listed:
            return []
        has_other = self.other is not None and self.other not in self.untrained
        coded = "other" if has_other else "none of its categories"
        named = sanitize(", ".join(listed))
        return [f"{sanitize(self.name)} had no {named} in training: taken as {coded}"]

    def to_json(self) -> dict[str, Any]:
        """Return the coding as JSON values."""
        return {
            "name": self.name,
            "kind": "category",
            "values": list(self.values),
            "other": self.other,
            "untrained": list(self.untrained),
        }

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Self:
        """Return the coding in a model card; see ``Coding.from_json``."""
        other = given["other"]
        found = cls(
            str(given["name"]),
            _read_values(given["values"]),
            None if other is None else str(other),
            _read_values(given["untrained"]),
        )
        if not {*found.untrained, *([] if other is None else [other])} <= {*found.values}:
            raise ValueError("other and untrained values must be among the values of a category")
        return found


def _read_values(given: Any) -> tuple[Value, ...]:
    if not all(value is None or isinstance(value, str | int | float) for value in given):
        raise ValueError("the value of a category must be a text, a number or null")
    return tuple(given)


def encode_flags(indices: Labels, width: int) -> Inputs:
    """Return rows of flags (n, width) with a 1 at each index, and none at -1."""
    flags = np.zeros((len(indices), width), dtype=np.float32)
    rows = np.flatnonzero(indices >= 0)
    flags[rows, indices[rows]] = 1
    return flags


def join_inputs(numbers: Numbers, flags: Inputs) -> Inputs:
    """Return inputs (n, p + q) of scaled numbers (n, p) and flags (n, q)."""
    return np.concatenate([numbers.astype(np.float32), flags], axis=1)


@dataclass(frozen=True, eq=False)
class ClientScale:
    """The scale of one client's numbers.

    Parameters
    ----------
    client : int
        Its id.
    rows : int
        The number of training rows behind the scale.
    scale : NumberScale
    name : str, optional
        The client's name, if the records keep it.
    """

    client: int
    rows: int
    scale: NumberScale
    name: str | None = None


@dataclass(frozen=True, eq=False)
class TableScaling:
    """The scales of a table's numbers.

    Parameters
    ----------
    kind : str
        ``client``: each client has its own scale. ``agreed``: all have ``common``. ``device``: each
        has its own, which stays on its device unless the owner lets it leave. ``none``: numbers are
        not scaled.
    common : NumberScale, optional
        The scale of rows that belong to no client: the agreed one, or the mean of the clients'.
    clients : tuple of ClientScale
        The clients' scales, as far as they are known.
    """

    kind: ScalingKind
    common: NumberScale | None = None
    clients: tuple[ClientScale, ...] = ()

    @classmethod
    def from_clients(cls, clients: Sequence[ClientScale]) -> Self:
        """Return the scaling by clients' own scales."""
        return cls("client", average_scales(clients), tuple(clients))

    @classmethod
    def from_devices(cls, clients: Sequence[ClientScale]) -> Self:
        """Return the scaling by clients' own scales, of which devices share these."""
        return cls("device", average_scales(clients) if clients else None, tuple(clients))

    def select(self, client: int | str | None) -> tuple[NumberScale | None, tuple[str, ...]]:
        """Return the scale for a client's rows, and what to say about it.

        Raises
        ------
        SettingsError
            If the client is unknown.
        DataError
            If the scale stayed on the client's device.
        """
        if self.kind == "none":
            return None, ()
        if self.kind == "agreed":
            return self.common, ()
        if client is not None and (self.common is not None or self.clients):
            return self._find(client).scale, ()
        if self.common is None:
            raise DataError(
                "the scale of the numbers stayed on the clients' devices: predict on a device, "
                + ON_DEVICE
            )
        note = f"numbers are scaled by the mean of {self._describe_clients()}, weighted by rows"
        how = "client=NAME (--client NAME in a shell) takes those of one client"
        return self.common, (f"{note}; {how}",)

    def _describe_clients(self) -> str:
        """Return whose statistics ``common`` is the mean of."""
        if self.kind == "client":
            return "all clients' statistics"
        if len(self.clients) == 1:
            return "the statistics of the one client whose device shares them"
        count = f"{len(self.clients)} " if self.clients else ""
        return f"the statistics of the {count}clients whose devices share them"

    def _find(self, client: int | str) -> ClientScale:
        if not self.clients:
            raise SettingsError(
                f"client must be left out, got {client!r}: the model card has the mean of the "
                "clients' scales alone, as they are many"
            )
        is_id = not isinstance(client, str | bool)
        for known in self.clients:
            if client == (known.client if is_id else known.name):
                return known
        names = [name for known in self.clients for name in [known.name] if name is not None]
        listed = ", ".join(names[:MAX_NAMES]) + ("" if len(names) <= MAX_NAMES else ", ..")
        by_name = f"a name ({listed}) or " if names else ""
        hint = suggest_name(str(client), names)
        given = sanitize(repr(client)) + (f" ({hint})" if hint else "")
        if self.kind == "device":
            shared = abbreviate(known.client for known in self.clients)
            raise SettingsError(
                f"client must be {by_name}an id of those whose devices share their scales "
                f"({shared}), got {given}; for other clients predict on the device, {ON_DEVICE}"
            )
        ids = f"an id from {self.clients[0].client} to {self.clients[-1].client}"
        raise SettingsError(f"client must be {by_name}{ids}, got {given}")

    def to_json(self, num_columns: int) -> dict[str, Any]:
        """Return the scaling as JSON values."""
        few = 3 * num_columns * len(self.clients) <= MAX_STATISTICS
        return {
            "kind": self.kind,
            "common": None if self.common is None else _scale_to_json(self.common),
            "clients": [
                {
                    "id": known.client,
                    "name": known.name,
                    "rows": known.rows,
                    **_scale_to_json(known.scale),
                }
                for known in (self.clients if few else ())
            ],
        }

    @classmethod
    def from_json(cls, given: Mapping[str, Any], num_columns: int) -> Self:
        """Return the scaling in a model card; see ``Coding.from_json``."""
        if given["kind"] not in SCALING_KINDS:
            raise ValueError(f"the kind of scaling must be one of {', '.join(SCALING_KINDS)}")
        common = given["common"]
        return cls(
            given["kind"],
            None if common is None else _scale_from_json(common, num_columns),
            tuple(
                ClientScale(
                    int(known["id"]),
                    int(known["rows"]),
                    _scale_from_json(known, num_columns),
                    None if known["name"] is None else str(known["name"]),
                )
                for known in given["clients"]
            ),
        )


def average_scales(clients: Sequence[ClientScale]) -> NumberScale:
    """Return the mean of the clients' statistics, weighted by rows.

    sum_k n_k s_k / sum_k n_k for each statistic s of each column, over the clients k that have
    numbers in the column; NaN if there are none.
    """
    means = np.stack([known.scale.mean for known in clients])
    rows = np.array([known.rows for known in clients], dtype=np.float64)
    weights = np.where(np.isnan(means), 0.0, rows[:, None])  # (K, p)

    def average(statistics: Sequence[Numbers]) -> Numbers:
        values = np.where(weights > 0, np.stack(statistics), 0.0)
        with np.errstate(invalid="ignore"):
            mean: Numbers = (weights * values).sum(axis=0) / weights.sum(axis=0)
        return mean

    return NumberScale(
        average([known.scale.fill for known in clients]),
        average([known.scale.mean for known in clients]),
        average([known.scale.deviation for known in clients]),
    )


def _scale_to_json(scale: NumberScale) -> dict[str, list[float | None]]:
    return {
        name: [None if math.isnan(number) else number for number in getattr(scale, name).tolist()]
        for name in ("fill", "mean", "deviation")
    }


def _scale_from_json(given: Mapping[str, Any], num_columns: int) -> NumberScale:
    arrays = {
        name: np.array(
            [np.nan if number is None else float(number) for number in given[name]],
            dtype=np.float64,
        )
        for name in ("fill", "mean", "deviation")
    }
    if any(array.shape != (num_columns,) for array in arrays.values()):
        raise ValueError(f"a scale must have {num_columns} numbers of each kind")
    return NumberScale(**arrays)


@dataclass(frozen=True, eq=False)
class TableCoding(Coding):
    """Columns of numbers and of categories.

    ``encode`` takes a pandas DataFrame, a dict of columns, the dict of one row, or a list of such.
    Other columns are ignored, and their order does not matter.

    Parameters
    ----------
    numbers : tuple of str
        The columns of numbers, in the order of the inputs.
    categories : tuple of CategoryCoding
        The columns of categories, whose flags follow the numbers.
    scaling : TableScaling
    missing : tuple
        ``data.missing``: further values of a missing cell.
    zero_as_missing : tuple of str
        Columns of numbers in which 0 is missing.
    invalid_as_missing : bool
        Whether a cell that is no number is missing in a column of numbers.
    replacements : mapping
        ``data.replace``: for each column other spellings of its values.
    """

    kind: ClassVar[str] = "table"
    numbers: tuple[str, ...]
    categories: tuple[CategoryCoding, ...] = ()
    scaling: TableScaling = field(default_factory=lambda: TableScaling("none"))
    missing: tuple[Value, ...] = ()
    zero_as_missing: tuple[str, ...] = ()
    invalid_as_missing: bool = False
    replacements: Mapping[str, Mapping[Any, Any]] = field(default_factory=dict)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the inputs: the columns of numbers, then the flags."""
        return (*self.numbers, *(flag for column in self.categories for flag in column.flags))

    def to_json(self) -> dict[str, Any]:
        """Return the coding as JSON values."""
        columns: list[dict[str, Any]] = [
            {
                "name": name,
                "kind": "number",
                "zero_as_missing": name in self.zero_as_missing,
            }
            for name in self.numbers
        ]
        columns += [column.to_json() for column in self.categories]
        return {
            "kind": self.kind,
            "columns": columns,
            "order": list(self.inputs),
            "scaling": self.scaling.to_json(len(self.numbers)),
            "missing": list(self.missing),
            "invalid_as_missing": self.invalid_as_missing,
            "replace": [
                [name, old, new]
                for name, pairs in self.replacements.items()
                for old, new in pairs.items()
            ],
        }

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Self:
        """Return the coding in a model card."""
        numbers = [column for column in given["columns"] if column["kind"] == "number"]
        categories = [column for column in given["columns"] if column["kind"] == "category"]
        if len(numbers) + len(categories) != len(given["columns"]):
            raise ValueError("the kind of a column must be number or category")
        return cls(
            tuple(str(column["name"]) for column in numbers),
            tuple(map(CategoryCoding.from_json, categories)),
            TableScaling.from_json(given["scaling"], len(numbers)),
            _read_values(given["missing"]),
            tuple(str(column["name"]) for column in numbers if column["zero_as_missing"]),
            bool(given["invalid_as_missing"]),
            list_replacements(given["replace"]),
        )

    def encode(self, rows: Any, client: int | str | None = None) -> EncodedRows:
        """Return the rows of a table as inputs."""
        # pandas and pyarrow take half a second to import, and a node that trains encodes nothing.
        from client_app.data.coding.frame import (
            build_frame,
            find_categories,
            read_columns,
            read_numbers,
        )

        scale, notes = self.scaling.select(client)
        frame = build_frame(rows)
        self._check_columns(frame)
        names = [*self.numbers, *(column.name for column in self.categories)]
        cells = read_columns(frame, names, self.missing, self.replacements)
        numbers = np.empty((len(frame), len(self.numbers)))
        for i, name in enumerate(self.numbers):
            numbers[:, i] = read_numbers(name, cells[name], odd_as_missing=self.invalid_as_missing)
            if name in self.zero_as_missing:
                numbers[numbers[:, i] == 0, i] = np.nan
        if scale is not None:
            numbers = scale.apply(numbers)
        flags = [np.zeros((len(frame), 0), dtype=np.float32)]
        unseen: list[str] = []
        for column in self.categories:
            found, unknown = find_categories(cells[column.name], column.values)
            flags.append(encode_flags(column.merge_others(found), len(column.values)))
            unseen += column.describe_unseen(found, unknown)
        return EncodedRows(
            join_inputs(numbers, np.concatenate(flags, axis=1)),
            frame.index,
            (*notes, *unseen),
        )

    def _check_columns(self, frame: Any) -> None:
        """Refuse a table that lacks a column."""
        known = [*self.numbers, *(column.name for column in self.categories)]
        present = [*map(str, frame.columns)]
        lacking = [name for name in known if name not in present]
        if lacking:
            hint = suggest_name(lacking[0], [name for name in present if name not in known])
            more = f" (and {len(lacking) - 1} more)" if lacking[1:] else ""
            raise DataError(
                f"the table must have the column {sanitize(lacking[0])}{more}, of which the model "
                f"was made; it has {sanitize(', '.join(present[:MAX_NAMES])) or 'none'}"
                + (", .." if present[MAX_NAMES:] else "")
                + (f" ({hint})" if hint else "")
            )
        repeated = [name for name in known if present.count(name) > 1]
        if repeated:
            raise DataError(
                f"the table must have each column once, got {sanitize(repeated[0])} "
                f"{present.count(repeated[0])} times"
            )
