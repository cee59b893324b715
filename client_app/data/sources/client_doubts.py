"""Find what is odd about the clients of a table, in one line each."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from fedquorum.sanitize import abbreviate

from client_app.data.base import Labels
from client_app.data.coding.cell_forms import Mask
from client_app.data.sources.client_table import ClientTable, abbreviate_names
from client_app.data.sources.column_types import ROW_NUMBER_NAME
from client_app.data.sources.doubts import MAX_PAIRS, doubt_names, is_missing_like
from client_app.data.sources.labels import find_similar_names

MIN_VALUES = 3
"""Fewer values than this, such as 0 and 1, are no names of persons."""

PERSON_NAME = re.compile(
    r"(^|[_\W])(patient|subject|person|proband|participant|individual|customer|user|animal|family|"
    r"household|pid|mrn|case)(en)?[_\W]*(id|nr|no|num|number|nummer|code|key)?$",
    re.IGNORECASE,
)
"""Names of columns that may name persons, or others that have several rows."""

WHOLE_NUMBER = r"^[+-]?\d+(\.0+)?$"


def doubt_groups(columns: Mapping[str, Any], clients: Labels) -> Iterator[str]:
    """Yield a doubt about columns whose values seem to name persons with several rows.

    Parameters
    ----------
    columns : mapping of str to pyarrow.ChunkedArray
        The columns beside clients and target, as read.
    clients : array of int64
        (n,), the client of each row.
    """
    found = [name for name, column in columns.items() if _may_name_groups(name, column, clients)]
    if found:
        first, verb = found[0], "has" if len(found) == 1 else "have"
        yield (
            f"{abbreviate_names(found)} {verb} values that return and may name persons, whose rows "
            f"are then in both splits; data.group_column={first} keeps rows of one value together, "
            f"data.drop_columns=[{first}] leaves the column out"
        )


def _may_name_groups(name: str, column: Any, clients: Labels) -> bool:
    if not (PERSON_NAME.search(name) or ROW_NUMBER_NAME.search(name)):
        return False
    values = column.combine_chunks()
    if not (pa.types.is_integer(values.type) or pa.types.is_string(values.type)):
        return False
    encoded = values.dictionary_encode()
    known = ~np.asarray(encoded.indices.is_null())
    codes = np.asarray(encoded.indices.fill_null(0))[known]
    distinct = len(encoded.dictionary)
    if not MIN_VALUES <= distinct < len(codes):
        return False
    if pa.types.is_string(values.type) and not PERSON_NAME.search(name):
        matches = pc.match_substring_regex(encoded.dictionary, WHOLE_NUMBER)
        if not pc.all(matches).as_py():
            return False
    # A value for each client is another name of the client.
    pairs = np.unique(np.stack([clients[known], codes]), axis=1)
    return bool(pairs.shape[1] > len(np.unique(clients[known])))


def doubt_shared_groups(column: str, groups: Labels, clients: Labels) -> Iterator[str]:
    """Yield a doubt about groups of several clients, each of which divides its own rows.

    Parameters
    ----------
    column : str
        ``data.group_column``.
    groups, clients : array of int64
        (n,), the group and the client of each row.
    """
    pairs = np.unique(np.stack([groups, clients]), axis=1)
    shared = int((np.unique(pairs[0], return_counts=True)[1] > 1).sum())
    if shared:
        found = f"{shared:,} value{' of' if shared == 1 else 's of'} {column}"
        yield (
            f"{found} {'is' if shared == 1 else 'are'} at several clients: if they are the same "
            "persons, their rows may be for training at one and for testing at another; "
            "data.test_path with test rows of your own keeps them apart"
        )


def doubt_client_names(column: str | None, names: Sequence[str], counts: Labels) -> Iterator[str]:
    """Yield the doubts about the names of clients.

    Parameters
    ----------
    column : str, optional
        The column that names them; None if files or folders do.
    names : sequence of str
    counts : array of int64
        The rows of each client.
    """
    if column is not None:
        yield from doubt_names(column, names, counts, "clients")
    elif similar := find_similar_names(names, counts):
        pairs = [f"{new!r} and {old!r}" for old, new in similar.items()]
        yield (
            f"data.path has clients that may be the same: {abbreviate(pairs, MAX_PAIRS)}; files of "
            "one client belong in one folder"
        )


def doubt_unnamed_clients(
    column: str | None, names: Sequence[str], counts: Labels, labels: Sequence[str]
) -> Iterator[str]:
    """Yield the doubts of ``doubt_client_names`` with ``labels`` in place of the names."""
    shown, place = dict(zip(names, labels, strict=True)), column or "data.path"
    if similar := find_similar_names(names, counts):
        pairs = [f"{shown[new]} and {shown[old]}" for old, new in similar.items()]
        how = "files of one client belong in one folder"
        yield (
            f"{place} has clients whose names may be the same: {abbreviate(pairs, MAX_PAIRS)}; "
            f"{how if column is None else 'data.replace merges them'}"
        )
    words = [shown[name] for name in names if column is not None and is_missing_like(name)]
    if words:
        yield (
            f"{place} has words that may mean missing, which are taken as clients: "
            f"{abbreviate_names(words)}; data.missing refuses such rows"
        )


def doubt_clients(table: ClientTable, names: Sequence[str]) -> Iterator[str]:
    """Yield what single clients lack: cells of a column, several classes, or different numbers.

    Parameters
    ----------
    table : ClientTable
    names : sequence of str
        What lines call each client.
    """
    clients = table.clients
    if len(names) == 1:
        return
    for column, is_known in _find_known_cells(table):
        counts = np.bincount(clients[is_known], minlength=len(names))
        empty = [names[client] for client in np.flatnonzero(counts == 0).tolist()]
        if 0 < len(empty) < len(names):
            yield f"{column} has no cells at {abbreviate_names(empty)}"
    if table.classes:
        pairs = np.unique(np.stack([clients, table.labels]), axis=1)
        alone = np.flatnonzero(np.bincount(pairs[0], minlength=len(names)) == 1).tolist()
        only = dict(pairs.T.tolist())
        single = [f"{names[client]} ({table.classes[only[client]]})" for client in alone]
        if single:
            yield f"rows of one class only: {abbreviate_names(single)}"
    else:
        low, high = (np.full(len(names), bound) for bound in (np.inf, -np.inf))
        np.minimum.at(low, clients, table.labels)
        np.maximum.at(high, clients, table.labels)
        same = [names[client] for client in np.flatnonzero(low == high).tolist()]
        if 0 < len(same) < len(names):
            yield f"the same number to predict in all rows: {abbreviate_names(same)}"


def _find_known_cells(table: ClientTable) -> Iterator[tuple[str, Mask]]:
    """Yield the input columns with missing cells, and whether each row has a value, (n,)."""
    missing = np.isnan(table.numbers)
    for i in np.flatnonzero(missing.any(axis=0)).tolist():
        yield table.schema.numbers[i], ~missing[:, i]
    values = [(name, v) for name, each in table.schema.categories.items() for v in each]
    for i, (name, value) in enumerate(values):
        if value is None:
            yield name, table.categories[:, i] == 0
