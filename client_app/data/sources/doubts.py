"""Find what may be misunderstood in a table, in one line each with what to type."""

import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
from fedquorum.sanitize import abbreviate

from client_app.data.base import Labels
from client_app.data.coding.cell_forms import NUMBER, match_cells
from client_app.data.coding.cells import MISSING_WORDS, OPEN_WORDS, Cells, Column
from client_app.data.moments import Numbers
from client_app.data.overrides import format_override
from client_app.data.sources.categories import CategoryColumn
from client_app.data.sources.client_table import abbreviate_names
from client_app.data.sources.labels import find_similar_names

MAX_PAIRS = 3
MAX_MERGED = 6
"""How many pairs of similar names a doubt shows, and how many names it says how to change."""

MAX_NUMBERS_UNQUESTIONED = 20
"""More different numbers than this among categories may be a column of numbers."""

MIN_SHARE_OF_NUMBERS = 0.2
"""With a larger share, a column of words may be one of numbers in which many are replaced."""

BEGINS_WITH_NUMBER = r"(?i:ca\.? ?)?[^\w\n]{0,3}[0-9]+(?:[.,][0-9]+)?(?:[^0-9].*)?"
MIN_SHARE_OF_BEGINS = 0.9
"""A column of words with such cells may be measured: ``5.6*``, ``5.6 (0.4)``, ``120/80``, ``<5``.
Identifiers in hexadecimal begin with a number less often."""

MIN_CODES = 3
"""A number that returns in fewer rows is no code for a missing one."""

MISSING_CODES = np.array(
    [
        *(sign * (10**digits - 1) for digits in range(1, 10) for sign in (-1, 1)),
        *(sign * code for code in (77, 88, 97, 98, 99.9, 777, 888, 997, 998) for sign in (-1, 1)),
        *(sign * code for code in (7777, 8888, 9998, 999.9) for sign in (-1, 1)),
    ]
)
"""How questionnaires and statistics programs write a missing number."""

_DOUBTFUL_CELL = re.compile(r"#(?:[A-ZÄÖÜ0-9/_]+[!?]|#+)")


def doubt_inputs(
    numbers: Mapping[str, Column], values: Numbers, categories: Mapping[str, CategoryColumn]
) -> Iterator[str]:
    """Yield the doubts about columns of numbers, with their values (n, p), and of categories."""
    yield from _doubt_codes([*numbers], values)
    yield from _doubt_leading_zeros([name for name, column in numbers.items() if column.is_padded])
    yield from _doubt_missing_categories(categories)
    yield from _doubt_numbers_among_categories(categories)
    for name, column in categories.items():
        yield from _doubt_similar_names(name, column.names, column.counts, "categories")


def doubt_left_out(name: str, column: Column) -> Iterator[str]:
    """Yield a doubt about a column that is left out as words, but has many numbers."""
    if column.kind != "categories" or not pa.types.is_string(column.values.type):
        return
    cells = Cells.encode(column.values)
    numbers = cells.count(match_cells(cells.texts, NUMBER))
    known = int(cells.counts.sum())
    if numbers > MIN_SHARE_OF_NUMBERS * known:
        yield (
            f"{name} is left out, but {numbers:,} of its {known:,} cells are numbers; "
            f"{format_override('numbers', [name])} takes it as a column of numbers"
        )
    elif cells.count(match_cells(cells.texts, BEGINS_WITH_NUMBER)) > MIN_SHARE_OF_BEGINS * known:
        # The cell itself may be a telephone number, which no record should have.
        yield (
            f"{name} is left out, but its cells begin with numbers: write plain numbers if it is "
            "measured"
        )


def doubt_names(column: str, names: Sequence[str], counts: Labels, kind: str) -> Iterator[str]:
    """Yield the doubts about the names of "clients" or "classes"."""
    yield from _doubt_similar_names(column, names, counts, kind)
    words = [name for name in names if is_missing_like(name)]
    if words:
        yield (
            f"{abbreviate_names(words)} in {column} is taken as one of the {kind}, not as missing; "
            f"{format_override('missing', words[:MAX_PAIRS])} refuses such rows"
        )


def _doubt_similar_names(
    column: str, names: Sequence[str], counts: Labels, kind: str
) -> Iterator[str]:
    similar = find_similar_names(names, counts)
    if not similar:
        return
    pairs = [f"{new!r} and {old!r}" for old, new in similar.items()]
    merged = {column: dict([*similar.items()][:MAX_MERGED])}
    yield (
        f"{column} has {kind} that may be the same: {abbreviate(pairs, MAX_PAIRS)}; "
        f"{format_override('replace', merged)} merges them"
    )


def _doubt_missing_categories(categories: Mapping[str, CategoryColumn]) -> Iterator[str]:
    found = {
        name: [value for value in column.names if is_missing_like(value)]
        for name, column in categories.items()
    }
    columns = [f"{name} ({', '.join(words)})" for name, words in found.items() if words]
    if columns:
        words = [*dict.fromkeys(word for each in found.values() for word in each)]
        yield (
            "words that may mean missing are taken as categories in "
            f"{abbreviate_names(columns)}; {format_override('missing', words[:MAX_MERGED])} takes "
            "them as missing"
        )


def is_missing_like(name: str) -> bool:
    """Return whether a name may mean that a cell is missing; ``none`` may be an answer."""
    lower = name.lower()
    is_word = lower in MISSING_WORDS and name not in {"none", "NONE", "nil", "*"}
    return is_word or lower in OPEN_WORDS or _DOUBTFUL_CELL.fullmatch(name) is not None


def _doubt_codes(columns: Sequence[str], numbers: Numbers) -> Iterator[str]:
    """Yield a doubt about numbers such as -999, far outside the others of columns (n, p)."""
    if not len(columns):
        return
    low, high = np.fmin.reduce(numbers), np.fmax.reduce(numbers)
    suspected = np.flatnonzero(np.isin(low, MISSING_CODES) | np.isin(high, MISSING_CODES))
    found = {columns[i]: _find_codes(numbers[:, i]) for i in suspected.tolist()}
    named = [f"{name} ({', '.join(map(_format, codes))})" for name, codes in found.items() if codes]
    if named:
        codes = sorted({code for each in found.values() for code in each})
        yield (
            "numbers far outside the others, which may mean missing, return in "
            f"{abbreviate_names(named)}; {format_override('missing', [*map(_to_int, codes)])} "
            "takes them as missing"
        )


def _find_codes(numbers: Numbers) -> list[float]:
    known = numbers[~np.isnan(numbers)]
    is_code = np.isin(known, MISSING_CODES)
    others = known[~is_code]
    if len(np.unique(others)) < 2:  # noqa: PLR2004 - a range
        return []
    low, high = others.min(), others.max()
    width = high - low
    codes, counts = np.unique(known[is_code], return_counts=True)
    is_far = (codes < min(low, 0) - width) | (codes > high + 2 * width)
    if low >= 0:
        is_far |= codes < 0
    return [float(code) for code in codes[is_far & (counts >= MIN_CODES)]]


def _to_int(number: float) -> int | float:
    return int(number) if number.is_integer() else number


def _format(number: float) -> str:
    return str(_to_int(number))


def _doubt_leading_zeros(columns: Sequence[str]) -> Iterator[str]:
    if columns:
        yield (
            f"leading zeros, as codes have, are lost in {abbreviate_names([*columns])}; "
            f"{format_override('categories', [*columns][:MAX_PAIRS])} takes them as categories"
        )


def _doubt_numbers_among_categories(categories: Mapping[str, CategoryColumn]) -> Iterator[str]:
    columns = [
        name
        for name, column in categories.items()
        if len(column.names) > MAX_NUMBERS_UNQUESTIONED
        and match_cells(pa.array(column.names), NUMBER).sum() > MAX_NUMBERS_UNQUESTIONED
    ]
    if columns:
        yield (
            f"many different numbers are among the categories of {abbreviate_names(columns)}; "
            f"{format_override('numbers', columns[:MAX_PAIRS])} takes them as columns of numbers"
        )
