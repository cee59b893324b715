"""Read a user's table from CSV and Parquet files."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
from fedquorum.errors import DataError, suggest_name, to_one_line
from fedquorum.records.client_names import can_record_names
from fedquorum.sanitize import abbreviate, sanitize

from client_app.data.base import Labels, Targets
from client_app.data.client_labels import label_clients
from client_app.data.coding.cell_forms import NUMBER, Mask, match_cells
from client_app.data.coding.cells import Cells, Column, is_number_type, parse_column
from client_app.data.coding.stated_values import drop_missing_values, replace_values
from client_app.data.coding.values import Value, format_value
from client_app.data.moments import Numbers
from client_app.data.overrides import format_override, list_replacements
from client_app.data.sources.categories import CategoryColumn, build_flags
from client_app.data.sources.client_doubts import (
    doubt_client_names,
    doubt_clients,
    doubt_groups,
    doubt_shared_groups,
    doubt_unnamed_clients,
)
from client_app.data.sources.client_table import (
    ClientTable,
    TableSchema,
    abbreviate_names,
    require_rows,
)
from client_app.data.sources.column_types import MIN_ROWS, find_exclusion_reason
from client_app.data.sources.doubts import (
    doubt_inputs,
    doubt_left_out,
    doubt_names,
    is_missing_like,
)
from client_app.data.sources.labels import find_names
from client_app.data.sources.odd_cells import count_invalid_cells, describe_odd_cells
from client_app.data.sources.split_columns import read_division
from client_app.data.sources.table_files import TableOrigin, add_test_files, read_files
from conf.schema.data import CsvSettings

MAX_CLASSES_UNQUESTIONED = 10
MIN_ROWS_PER_CLASS = 100
"""More classes than the first, with fewer rows each than the second, may be numbers."""


def read_csv_table(settings: CsvSettings) -> ClientTable:
    """Return the table of ``data.path``, CSV files in UTF-8 with a header and commas, or Parquet.

    A folder or a pattern means several files; see ``read_files``. The kind of a column is what more
    than half of its known cells are, see ``parse_column``, unless ``data.numbers`` or
    ``data.categories`` names it. In a column of numbers empty cells and words such as NA are
    missing, and every other cell that is no number is refused, or taken as missing with
    ``data.invalid_cells=missing``. In all other columns only empty cells are missing.
    ``data.missing`` names further missing values of all columns, and ``data.replace`` merges
    spellings. In columns of ``data.zero_as_missing``, 0 is missing.

    A column of categories becomes one of 0 and 1 for each category in the whole file, in order, and
    a last one, ``column=``, if cells are missing. Of more than ``data.max_categories`` values, the
    rarer ones share one column, ``column=other``. Dates, long texts and row identifiers are
    excluded, see ``find_exclusion_reason``, unless the settings name them.

    Clients and classes are the distinct values of ``data.client_column`` and ``data.target``, as
    text that keeps its look, see ``find_names``. These two columns and those of
    ``data.drop_columns`` are not inputs. If ``data.client_column`` is empty, each of several files
    holds one client, named after the file. Clients with fewer rows than ``data.min_samples`` are
    left out. Classes must not be fractional numbers. With ``data.regression`` the target is a
    number.

    A device with the rows of one client does not know the categories and classes of the others, so
    ``data.columns`` may define them for all: ``{numbers: [column, ..], categories: {column: [value,
    ..]}, classes: [value, ..]}``, with null for a missing cell; see ``match_values``. Then exactly
    these columns, in this order, are the inputs, and other values are refused. If
    ``data.client_column`` is null, all rows belong to one client without a name.

    Raises
    ------
    DataError
        If the file is missing, or is no such table.
    """
    path = Path(settings.path).expanduser().resolve()
    try:
        files, table = read_files(path)
        files.check_rows(settings.expected_rows)
    except Exception as error:
        raise DataError(
            "data.path must be a .csv file with a header or a .parquet file, or a folder of such, "
            f"got {path}: {sanitize(to_one_line(error))}"
        ) from None
    if settings.test_path is not None:
        test_path = Path(settings.test_path).expanduser().resolve()
        try:
            files, table = add_test_files(files, test_path)
        except Exception as error:
            raise DataError(
                "data.test_path must be files as in data.path, with the same columns, got "
                f"{test_path}: {sanitize(to_one_line(error))}"
            ) from None
    return build_client_table(files, table, settings)


def build_client_table(files: TableOrigin, arrow: Any, settings: CsvSettings) -> ClientTable:
    """Return the table of rows that are in memory; see ``read_csv_table``."""
    return _TableReader(files, arrow, settings).build_table()


def _suggest(name: Any, names: Sequence[str]) -> str:
    """Return a hint " (...)" with a similar name, or "" if there is none."""
    hint = suggest_name(str(name), names)
    return f" ({hint})" if hint else ""


@dataclass
class _TableReader:
    """Builds a client table from an Arrow table and its files."""

    files: TableOrigin
    arrow: Any
    settings: CsvSettings
    warnings: list[str] = field(default_factory=list)

    @property
    def path(self) -> Path:
        """``data.path``, for messages."""
        return self.files.path

    def build_table(self) -> ClientTable:
        settings = self.settings
        self._check_settings()
        has_names = can_record_names(len(self.files.names), recorded=settings.names)
        self.warnings += self.files.list_doubts(named=has_names)
        self.arrow, unknown = drop_missing_values(self.arrow, settings.missing)
        if unknown and settings.client_column is not None:
            self.warnings.append(
                f"data.missing has {abbreviate(unknown)}, which is in no cell of the table"
            )
        self.arrow = self._replace_values()
        client_names, clients = self._read_clients()
        self._check_target(client_names, clients)
        columns, excluded = self._parse_inputs(clients)
        labels, classes = self._read_target()
        parsed = {name: column for name, column in columns.items() if column.kind == "numbers"}
        self._check_names("zero_as_missing", settings.zero_as_missing, list(parsed))
        invalid = count_invalid_cells(parsed, settings, self.arrow, self.files)
        numbers = np.empty((len(clients), len(parsed)))
        for i, (name, column) in enumerate(parsed.items()):
            numbers[:, i] = self._read_numbers(name, column.values)
        categories = {
            name: self._read_categories(name, column.values)
            for name, column in columns.items()
            if name not in parsed
        }
        if settings.columns is None:
            self.warnings += doubt_inputs(parsed, numbers, categories)
            if settings.group_column is None:
                stated = {*settings.numbers, *settings.categories}
                names = [name for name in self._list_candidates() if name not in stated]
                self.warnings += doubt_groups({name: self.arrow[name] for name in names}, clients)
        schema = TableSchema(
            tuple(parsed),
            {name: column.values for name, column in categories.items()},
            classes,
            {name: column.other for name, column in categories.items() if column.other},
        )
        table = ClientTable(
            clients,
            client_names,
            labels,
            schema.class_names,
            numbers,
            build_flags(categories.values(), len(clients)),
            schema.columns,
            schema,
            settings.target,
            division=read_division(self.files, self.arrow, settings),
            dropped_columns={**self.files.dropped_columns, **excluded},
            files_passed_over=self.files.passed_over,
            missing={
                name: share
                for name, share in (
                    *(
                        (n, float(np.isnan(x).mean()))
                        for n, x in zip(parsed, numbers.T, strict=True)
                    ),
                    *((name, column.missing) for name, column in categories.items()),
                )
                if share
            },
            invalid=invalid,
            other_categories={
                n: column.num_others for n, column in categories.items() if column.other
            },
            warnings=tuple(self.warnings),
        )
        if settings.client_column is None:
            return table
        return self._add_client_doubts(table)

    def _add_client_doubts(self, table: ClientTable) -> ClientTable:
        """Return the table of the clients with enough rows, and the doubts about clients."""
        settings = self.settings
        column = None if self._has_client_files else settings.client_column
        counts = np.bincount(table.clients)
        doubts = [*doubt_client_names(column, table.client_names, counts)]
        try:
            remaining = require_rows(table, settings.min_samples)
        except DataError as error:  # a client of few rows may be another spelling of one of many
            raise DataError("; ".join([str(error), *doubts])) from None
        names, num_clients = remaining.client_names, len(remaining.client_names)
        labels = label_clients(names, num_clients, recorded=settings.names)
        if not can_record_names(num_clients, recorded=settings.names):
            ids = dict(zip(names, labels, strict=True))
            shown = [ids.get(name, "a client left out") for name in table.client_names]
            doubts = [*doubt_unnamed_clients(column, table.client_names, counts, shown)]
        name, division = settings.group_column, remaining.division
        if name is not None and division.groups is not None and division.is_test is None:
            doubts += doubt_shared_groups(name, division.groups, remaining.clients)
        warnings = (*remaining.warnings, *doubts, *doubt_clients(remaining, labels))
        return replace(remaining, warnings=warnings)

    def _check_settings(self) -> None:
        """Refuse names of columns that are not in the file."""
        settings, names = self.settings, self.arrow.schema.names
        agreed = settings.columns or {}
        by_column = settings.client_column is not None and not self._has_client_files
        for key, wanted in (
            ("client_column", [settings.client_column] if by_column else []),
            ("target", [settings.target]),
            ("drop_columns", settings.drop_columns),
            ("numbers", settings.numbers),
            ("categories", settings.categories),
            ("columns", [*agreed.get("numbers", []), *agreed.get("categories", {})]),
            ("group_column", [settings.group_column] if settings.group_column else []),
            ("order_column", [settings.order_column] if settings.order_column else []),
            ("replace", [*list_replacements(settings.replace)]),
        ):
            self._check_names(key, wanted, names)

    @property
    def _has_client_files(self) -> bool:
        return self.settings.client_column == "" and self.files.has_several

    def _check_names(self, key: str, wanted: Sequence[Any], names: Sequence[str]) -> None:
        for name in wanted:
            if name not in names:
                kind = "columns of numbers" if key == "zero_as_missing" else "columns"
                raise DataError(
                    f"data.{key} must be one of the {kind} of {self.path}, which are "
                    f"{abbreviate(names) or 'none'}, got {name!r}{_suggest(name, names)}"
                )

    def _replace_values(self) -> Any:
        """Return the table with the spellings of ``data.replace`` merged."""
        table = self.arrow
        for name, pairs in list_replacements(self.settings.replace).items():
            column, unknown = replace_values(table[name], pairs)
            if unknown and self.settings.client_column is not None:
                known = Cells.encode(table[name]).texts.to_pylist()
                raise DataError(
                    f"data.replace must name cells of {name}, which are in {self.path} "
                    f"{abbreviate(known)}, got {unknown[0]!r}{_suggest(unknown[0], known)}"
                )
            table = table.set_column(table.schema.get_field_index(name), name, column)
        return table

    def _read_clients(self) -> tuple[tuple[str, ...], Labels]:
        """Return the names of the clients, and the index of each row's client."""
        if self._has_client_files:
            return self.files.names, self.files.client_indices
        name = self.settings.client_column
        if name is None:
            return ("",), np.zeros(self.arrow.num_rows, dtype=np.int64)
        return self._read_names("client_column", name)

    def _read_names(self, key: str, name: str) -> tuple[tuple[str, ...], Labels]:
        """Return the different cells of a column without missing ones, and each row's index."""
        self._check_types([name])
        names, codes = find_names(self.arrow[name])
        if (codes < 0).any():
            self._refuse_missing(key, name, codes < 0)
        return names, codes

    def _check_target(self, client_names: Sequence[str], clients: Labels) -> None:
        """Refuse clients without a single target."""
        target = self.arrow[self.settings.target]
        known = clients[target.is_valid().to_numpy(zero_copy_only=False)]
        counts = np.bincount(known, minlength=len(client_names))
        without = [client_names[client] for client in np.flatnonzero(counts == 0).tolist()]
        if 0 < len(without) < len(client_names):
            row = int(np.argmax(np.isin(clients, np.flatnonzero(counts == 0))))
            raise DataError(
                f"data.target must have values for each client in {self.path}, got none of "
                f"{self.settings.target} for {abbreviate_names(without)} (leave these rows out, "
                f"from {self.files.describe_row(row)} on)"
            )

    def _refuse_missing(self, key: str, name: str, is_missing: Mask) -> NoReturn:
        rows = np.flatnonzero(is_missing)
        more = f" ({len(rows):,} rows in all)" if len(rows) > 1 else ""
        raise DataError(
            f"data.{key} must be a column without missing values, got {name}, which is missing in "
            f"{self.files.describe_row(int(rows[0]))} of {self.path}{more}"
        )

    def _parse_inputs(self, clients: Labels) -> tuple[dict[str, Column], dict[str, str]]:
        """Return the input columns, and why others were automatically excluded."""
        settings = self.settings
        if settings.columns is not None:
            numbers: list[str] = settings.columns.get("numbers", [])
            categories = [*settings.columns.get("categories", {})]
        else:
            numbers, categories = settings.numbers, settings.categories
        columns, excluded = {}, {}
        for name in [*numbers, *categories] if settings.columns else self._list_candidates():
            values = self.arrow[name]
            if name in categories:
                columns[name] = Column("categories", values)
            elif name in numbers:
                columns[name] = parse_column(values, "numbers")
            else:
                column = parse_column(values)
                reason = find_exclusion_reason(name, column, clients)
                if reason is None:
                    columns[name] = column
                else:
                    excluded[name] = reason
                    self.warnings += doubt_left_out(name, column)
        if not columns:
            reasons = "".join(f", {name} has {reason}" for name, reason in excluded.items())
            raise DataError(
                f"data.drop_columns must leave columns of {self.path} as inputs, got none{reasons}"
            )
        self._check_types(list(columns))
        return columns, excluded

    def _list_candidates(self) -> list[str]:
        """Return the columns that the settings do not exclude from the inputs."""
        settings = self.settings
        others = {settings.client_column, settings.target, *settings.drop_columns}
        others |= {settings.group_column, settings.order_column}
        if self._has_client_files:
            others.add(self.files.client_key)
        return [name for name in self.arrow.schema.names if name not in others]

    def _check_types(self, names: Sequence[str]) -> None:
        """Refuse columns of a Parquet file that are neither numbers nor text."""
        settings = self.settings
        as_text = {settings.client_column, settings.target, *settings.categories}
        for name in names:
            kind = self.arrow.schema.field(name).type
            fits = pa.types.is_string(kind) or is_number_type(kind)
            if not fits and (name not in as_text or pa.types.is_nested(kind)):
                raise DataError(
                    f"data.drop_columns must have the columns of {self.path} that are neither "
                    f"numbers nor words, got none of {name}, which is of type {kind}"
                )

    def _read_numbers(self, name: str, column: Any) -> Numbers:
        """Return a column of numbers (n,), NaN for missing ones."""
        missing = column.is_null().to_numpy(zero_copy_only=False)
        numbers = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        values = np.where(missing, np.nan, numbers)
        with np.errstate(over="ignore"):
            wrong = ~missing & ~np.isfinite(values.astype(np.float32))
        if wrong.any():
            row = int(np.argmax(wrong))
            raise DataError(
                f"data.path must be a .csv file of numbers that are finite in float32, got "
                f"{self.path}: {name} is {values[row]:g} in {self.files.describe_row(row)}"
            )
        if name in self.settings.zero_as_missing:
            values[values == 0] = np.nan
        return values

    def _read_categories(self, name: str, column: Any) -> CategoryColumn:
        settings = self.settings
        if settings.columns is None:
            return CategoryColumn.find(column, settings.max_categories)
        found = CategoryColumn.match(column, tuple(settings.columns["categories"][name]))
        self._check_agreed("columns", name, found)
        return found

    def _check_agreed(self, key: str, name: str, column: CategoryColumn) -> None:
        """Refuse a cell that is none of the agreed values."""
        wrong = np.flatnonzero(column.codes < 0)
        if not len(wrong):
            return
        row = int(wrong[0])
        cell = self.arrow[name][row].as_py()
        shown = ["null" if value is None else format_value(value) for value in column.values]
        hint = _suggest(cell, shown)
        if None in column.values and cell is not None and is_missing_like(format_value(cell)):
            hint = f" ({format_override('missing', [cell])} takes it as missing)"
        raise DataError(
            f"data.{key} must lead to one of the agreed values {abbreviate(shown)} in each row, "
            f"got {'a missing one' if cell is None else repr(format_value(cell))} of {name} in "
            f"{self.files.describe_row(row)} of {self.path}{hint}"
        )

    def _read_target(self) -> tuple[Targets, tuple[Value, ...]]:
        """Return the class of each row and the classes, or the numbers of a regression."""
        settings = self.settings
        name = settings.target
        if settings.regression:
            return self._read_target_numbers(name), ()
        if settings.columns is not None:
            self._check_types([name])
            column = CategoryColumn.match(self.arrow[name], tuple(settings.columns["classes"]))
            self._check_agreed("target", name, column)
            return column.codes, column.values
        names, codes = self._read_names("target", name)
        self.warnings += doubt_names(name, names, np.bincount(codes), "classes")
        self._check_classes(names, codes)
        return codes, names

    def _read_target_numbers(self, name: str) -> Targets:
        self._check_types([name])
        column = parse_column(self.arrow[name])
        if column.kind != "numbers" or column.num_odd:
            odd = {name: column} if column.num_odd else {}
            raise DataError(
                f"data.target must be a column of numbers in {self.path} where data.regression is "
                f"true, got {describe_odd_cells(odd, self.arrow, self.files) or name}"
            )
        numbers = self._read_numbers(name, column.values)
        if np.isnan(numbers).any():
            self._refuse_missing("target", name, np.isnan(numbers))
        return numbers

    def _check_classes(self, names: tuple[str, ...], codes: Labels) -> None:
        """Refuse a target with fractional numbers, one class, or a class for nearly every row."""
        name, rows = self.settings.target, len(codes)
        is_number = match_cells(pa.array(names), NUMBER)
        mostly_numbers = is_number[codes].mean() > 0.5  # noqa: PLR2004 - most cells
        hint = " (data.regression=true predicts numbers)" if mostly_numbers else ""
        if rows >= MIN_ROWS and len(names) > rows / 2:
            raise DataError(
                f"data.target must be a column of classes in {self.path}, got {name}, which has "
                f"{len(names)} different values in {rows} rows{hint}"
            )
        fractions = np.array(
            [is_number[i] and not float(each).is_integer() for i, each in enumerate(names)]
        )
        if mostly_numbers and fractions.any():
            row = int(np.argmax(fractions[codes]))
            raise DataError(
                f"data.target must be a column of classes in {self.path} where data.regression is "
                f"false, got {name}, which is {names[codes[row]]} in "
                f"{self.files.describe_row(row)}{hint}"
            )
        if len(names) == 1:
            raise DataError(
                f"data.target must be a column of different values in {self.path}, got {name}, "
                f"which is always {names[0]}"
            )
        few = len(names) <= MAX_CLASSES_UNQUESTIONED or rows >= MIN_ROWS_PER_CLASS * len(names)
        if not few and is_number.all():
            self.warnings.append(
                f"the {len(names)} different numbers of {name} are taken as classes, in {rows:,} "
                "rows; data.regression=true predicts them as numbers"
            )
