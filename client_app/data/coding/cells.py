"""Find what the cells of a column of text are: numbers, dates, words, or missing."""

import unicodedata
import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pandas.tseries.api import guess_datetime_format

from client_app.data.coding.cell_forms import (
    NUMBER,
    TIME,
    Mask,
    match_cells,
    match_foreign_numbers,
    match_open_cells,
)
from client_app.data.coding.values import format_value

BLANKS = (
    " \t\r\n\v\f\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u200b\u202f\u205f\u2060\u3000\ufeff"
)
"""The signs that are trimmed from cells, among them no-break, thin and zero-width spaces."""

Kind = Literal["numbers", "categories", "dates", "times"]

MISSING_WORDS = {
    *("#n/a", "#n/a n/a", "#na", "#nv", "n/a", "na", "<na>", "n.a.", "n.d.", "nan", "-nan", "nat"),
    *("none", "null", "(null)", "[null]", "\\n", "nil", "1.#ind", "-1.#ind", "1.#qnan", "-1.#qnan"),
    *("-", "--", "---", "\u2013", "\u2014", ".", "..", "...", "?", "??", "*", "._"),
    *(f".{letter}" for letter in "abcdefghijklmnopqrstuvwxyz"),
}
"""How pandas, R, SAS, SQL, Excel and people write a missing number, in lower case."""

OPEN_WORDS = {
    *("unknown", "unk", "missing", "not available", "not applicable", "not known", "not done"),
    *("unspecified", "unbekannt", "k.a.", "inconnu", "desconocido", "sconosciuto"),
}
"""Words that may mean missing, but are taken as such only if ``data.missing`` names them."""

TRUTH_VALUES = {"true": 1.0, "false": 0.0, "1": 1.0, "0": 0.0}
MAX_TRUTH_SPELLINGS = 8

MAX_DATE_FORMATS = 8
NUM_PROBED_CELLS = 50


@dataclass(frozen=True, eq=False)
class Cells:
    """A column of n texts by its m different cells.

    Attributes
    ----------
    texts : pyarrow.StringArray
        (m,), in the order of their first rows.
    values : pyarrow.Array
        (m,), the same as read, which are texts or of the column's type.
    codes : array of int64
        (n,), the index in ``texts`` of each row, -1 for an empty cell.
    """

    texts: pa.Array
    values: pa.Array
    codes: NDArray[np.int64]

    @classmethod
    def encode(cls, column: Any) -> "Cells":
        """Return the cells of an Arrow column of any type, typed ones as text.

        Whole numbers have no decimal point.
        """
        encoded = pc.dictionary_encode(column)
        if isinstance(encoded, pa.ChunkedArray):
            encoded = encoded.unify_dictionaries().combine_chunks()
        values = texts = encoded.dictionary
        if not pa.types.is_string(values.type):
            texts = pa.array(map(format_value, values.to_pylist()), pa.string())
        codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        return cls(texts, values, codes.astype(np.int64))

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """The number of rows of each text, (m,)."""
        return np.bincount(self.codes[self.codes >= 0], minlength=len(self.texts))

    def expand(self, values: NDArray[Any], missing: Any) -> NDArray[Any]:
        """Return the value (n,) of each row, from those of the texts (m,)."""
        return np.append(values, missing)[self.codes]

    def count(self, chosen: Mask) -> int:
        """Return the number of rows of the chosen texts."""
        return int(self.counts[chosen].sum())

    def find_rows(self, chosen: Mask) -> Mask | None:
        """Return which rows (n,) have one of the chosen texts (m,), None if none has."""
        return self.expand(chosen, missing=False) if chosen.any() else None

    @cached_property
    def is_missing_word(self) -> Mask:
        """Which texts stand for a missing number, (m,)."""
        return is_in(self.texts, MISSING_WORDS)


@dataclass(frozen=True, eq=False)
class Column:
    """What a column holds.

    Attributes
    ----------
    kind : {"numbers", "categories", "dates", "times"}
        What more than half of the known cells are.
    values : pyarrow.ChunkedArray or pyarrow.Array
        Numbers, whole ones as int64, null if missing or odd; or the cells as read.
    odd : array of bool
        (n,), which known cells disagree, such as words among numbers; None if none does.
    is_padded : bool
        Whether a whole number has leading zeros, as codes have.
    """

    kind: Kind
    values: Any
    odd: Mask | None = None
    is_padded: bool = False

    @property
    def num_odd(self) -> int:
        """The number of cells that disagree."""
        return 0 if self.odd is None else int(self.odd.sum())

    @property
    def num_numbers(self) -> int:
        """The number of cells with a value, without the odd ones."""
        return len(self.values) - int(self.values.null_count)


def clean_text(text: str) -> str:
    """Return a text as in the cells of a table: without blanks around it, and in Unicode's NFC."""
    return unicodedata.normalize("NFC", text.strip(BLANKS))


def clean_column(column: Any, *, is_ascii: bool = False) -> Any:
    """Return a column of text with clean cells, and null for empty ones."""
    trimmed = pc.utf8_trim(column, characters=BLANKS)
    if not is_ascii:
        trimmed = pc.utf8_normalize(trimmed, form="NFC")
    empty = pc.equal(trimmed, "")
    return pc.if_else(empty, pa.scalar(None, pa.string()), trimmed) if pc.any(empty).as_py() else (
        trimmed
    )  # fmt: skip


def is_number_type(kind: Any) -> bool:
    """Return whether a column type holds numbers; true and false are 1 and 0."""
    types = pa.types
    return any(
        matches(kind)
        for matches in (types.is_integer, types.is_floating, types.is_boolean, types.is_null)
    )


def parse_column(column: Any, kind: Literal["numbers", "categories"] | None = None) -> Column:
    """Return what a column of text holds: what more than half of its known cells are.

    Known cells are neither empty nor one of ``MISSING_WORDS``; limits such as ``<5``, Excel's
    errors and ``OPEN_WORDS`` tell nothing either. A column without known cells holds numbers, all
    missing. Columns of true and false (and 1 and 0) hold the numbers 1 and 0.

    Parameters
    ----------
    column : pyarrow.ChunkedArray
        Texts, null for an empty cell; or numbers, or cells of another type.
    kind : {"numbers", "categories"}, optional
        The kind that the settings name.
    """
    if kind != "categories" and is_number_type(column.type):
        return Column("numbers", column)
    if kind == "categories" or not pa.types.is_string(column.type):
        return Column("categories", column)
    numbers = _cast_numbers(column)
    if numbers is not None:
        return Column("numbers", numbers, is_padded=_has_leading_zeros(column, numbers))
    cells = Cells.encode(column)
    truth = _parse_truth(cells)
    if truth is not None:
        return Column("numbers", truth)
    is_number = match_cells(cells.texts, NUMBER)
    if kind is None:
        found, is_kind = _find_kind(cells, is_number)
        if found != "numbers":
            return Column(found, column, cells.find_rows(~(is_kind | cells.is_missing_word)))
    texts = pc.if_else(pa.array(is_number), cells.texts, pa.scalar(None, pa.string()))
    values = _cast_numbers(texts).take(pa.array(cells.codes, mask=cells.codes < 0))
    return Column("numbers", values, cells.find_rows(~(is_number | cells.is_missing_word)))


def _find_kind(cells: Cells, is_number: Mask) -> tuple[Kind, Mask]:
    """Return what most known cells are, and which texts are."""
    known = cells.count(~cells.is_missing_word)
    numbers = cells.count(is_number)
    if numbers * 2 > known or not known:
        return "numbers", is_number
    if not pc.any(pc.match_substring_regex(cells.texts, r"[0-9#]|[^\x00-\x7f]")).as_py():
        return "categories", np.ones_like(is_number)
    known -= cells.count(match_open_cells(cells.texts) | is_in(cells.texts, OPEN_WORDS))
    numbers += cells.count(match_foreign_numbers(cells.texts) & ~is_number)
    if numbers * 2 > known:
        return "numbers", is_number
    is_time = match_cells(cells.texts, TIME)
    if cells.count(is_time) * 2 > known:
        return "times", is_time
    is_date = match_dates(cells.texts)
    if cells.count(is_date) * 2 > known:
        return "dates", is_date
    return "categories", np.ones_like(is_number)


def match_dates(texts: pa.Array) -> Mask:
    """Return which texts are dates, in the usual formats of some of them."""
    listed = texts.to_pylist()
    formats = set()
    for text in listed[:: max(1, len(listed) // MAX_DATE_FORMATS)]:
        for day_first in (False, True):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # about the order of day and month
                formats.add(guess_datetime_format(text, dayfirst=day_first))
        if found := _SHORT_DATES.get("".join("0" if sign.isdigit() else sign for sign in text)):
            formats |= found
    formats.discard(None)
    dates = np.zeros(len(listed), dtype=np.bool_)
    for each in formats:
        dates |= pd.to_datetime(pd.Series(listed), format=each, errors="coerce").notna().to_numpy()
    return dates


_SHORT_DATES = {
    f"00{sign}00{sign}00": {f"%d{sign}%m{sign}%y", f"%m{sign}%d{sign}%y"} for sign in "./-"
}
"""Formats that pandas does not guess, by the shape of a date."""


def _cast_numbers(texts: Any) -> Any:
    """Return texts as int64 or float64, null for NaN, or None if one of them is no number."""
    for kind in (pa.int64(), pa.float64()):
        try:
            texts[:NUM_PROBED_CELLS].cast(kind)  # a failure takes long with many cells
            numbers = texts.cast(kind)
        except pa.ArrowInvalid:
            continue
        if pa.types.is_floating(kind):
            return pc.if_else(pc.is_nan(numbers), pa.scalar(None, kind), numbers)
        return numbers
    return None


def _has_leading_zeros(texts: Any, numbers: Any) -> bool:
    if not pa.types.is_integer(numbers.type):
        return False
    zeros = texts.filter(pc.starts_with(texts, "0"))
    return bool(pc.any(pc.greater(pc.utf8_length(zeros), 1)).as_py())


def _parse_truth(cells: Cells) -> Any:
    """Return 1 and 0 for a column of true and false, or None for all other columns."""
    known = cells.texts.filter(pa.array(~cells.is_missing_word))
    if not 0 < len(known) <= MAX_TRUTH_SPELLINGS:
        return None
    if not {text.lower() for text in known.to_pylist()} <= TRUTH_VALUES.keys():
        return None
    values = [TRUTH_VALUES.get(text.lower(), np.nan) for text in cells.texts.to_pylist()]
    numbers = cells.expand(np.array(values), np.nan)
    return pa.array(numbers, mask=np.isnan(numbers))


def is_in(texts: pa.Array, words: set[str]) -> Mask:
    """Return which texts are one of these words, which are in lower case, in any case."""
    lower = pc.utf8_lower(texts)
    matching: Mask = pc.is_in(lower, value_set=pa.array(sorted(words))).to_numpy(
        zero_copy_only=False
    )
    return matching
