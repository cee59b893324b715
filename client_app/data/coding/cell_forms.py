"""Name the forms in which people and programs write numbers that are no plain numbers."""

import re
from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from client_app.data.overrides import format_override

Mask = NDArray[np.bool_]

NUMBER = r"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|(?i:inf|infinity))"
"""A number as Arrow, NumPy and Python read it."""

TIME = r"[0-9]{1,2}:[0-5][0-9](?::[0-5][0-9](?:\.[0-9]+)?)?"
DATE = (
    r"(?:[0-9]{4}[./-][0-9]{1,2}[./-][0-9]{1,2}|[0-9]{1,2}[./-][0-9]{1,2}[./-](?:[0-9]{4}|[0-9]{2}))"
    rf"(?:[T ]+{TIME}.*)?"
)

MAX_UNITS = 5
MIN_MEASURED = 20
"""Cells with several units are measured if there are at most the first, and more different cells
than the second: ``0 none``, ``1 mild`` and ``2 severe`` are categories."""

# Characters of the patterns below. All are read by RE2 and by Python's re; \d is a digit of any
# script.
_MINUS = "\u2212\u2013\u2010\u2011\ufe63\uff0d"
_BLANKS = " \u00a0\u202f\u2009"
_BLANK = f"[{_BLANKS}]"
_QUOTES = "'\u2019"
_DIGITS = rf"(?:[0-9][0-9.,{_QUOTES}{_BLANKS}]*|[.,][0-9]+)"
_ANY_NUMBER = rf"[+{_MINUS}-]?{_DIGITS}"
_CURRENCY = (
    r"(?:(?:US|A|C|R)?\$|[€£¥₹₽₩₺₪₫₴฿₦₱¢]|EUR|USD|GBP|CHF|JPY|CNY|INR|RUB|SEK|NOK|DKK|PLN|CZK|HUF|"
    r"BRL|AUD|CAD|Euro|euro|kr\.?|zł|Fr\.?|Rs\.?)"
)
_UNIT = (  # without a blank before it only usual ones: 3O is a typing error, and 27A a code
    rf"(?:{_BLANK}[A-Za-zµμΩ°][A-Za-zµμΩ°²³0-9/·.*^-]*|"
    r"[mkcdnpµμ]?(?:g|m|l|L|s|mol|Pa|W|V|A|Hz|J|cal)(?:/[A-Za-z0-9²³]+)*|°[CF]?|mmHg|bpm|kWh|h|min|"
    r"sec|(?:hr|yr|year|day|month|week)s?|[cm]m[²³]|m[²³]|lbs?|oz|in|ft|IU|U/[lL])"
)
_BY_COMMA = (  # thousands, or after them hundreds, as in India
    r"(?:[1-9][0-9]{0,2}(?:(?:,[0-9]{3})+\.[0-9]*|(?:,[0-9]{3}){2,})|"
    r"[1-9][0-9]?(?:,[0-9]{2})+,[0-9]{3}(?:\.[0-9]*)?)"
)
_BY_POINT = r"[1-9][0-9]{0,2}(?:(?:\.[0-9]{3})+,[0-9]*|(?:\.[0-9]{3}){2,})"
_BY_BLANK = (
    rf"[1-9][0-9]{{0,2}}(?:(?:{_BLANK}[0-9]{{3}})+|(?:[{_QUOTES}][0-9]{{3}})+)(?:[.,][0-9]*)?"
)


def _advise_number(cell: str) -> str:
    return f"write {_to_plain(cell)}"


def _advise_decimals(cell: str) -> str:
    return f"write {_to_plain(cell)}, or without the comma if it separates thousands"


def _advise_correction(_: str) -> str:
    return "write a number, or leave the cell empty"


def _advise_limit(_: str) -> str:
    return "write a number, such as half of it, or leave the cell empty"


class _Form(NamedTuple):
    """One form of a cell: its pattern, its name in words, and what to type instead.

    ``tells`` is "number" if such a cell tells that its column holds numbers, and "nothing" if it
    may be in any column: ``<18`` may be an age group.
    """

    pattern: str
    name: str
    advise: Callable[[str], str]
    tells: Literal["number", "nothing", "other"]


_FORMS = (
    _Form(DATE, "is a date", _advise_correction, "other"),
    _Form(TIME, "is a time", _advise_correction, "other"),
    _Form(r"#(?:[A-ZÄÖÜ0-9/_]+[!?]|#+)", "is an error of Excel", _advise_correction, "nothing"),
    _Form(
        rf"(?:[<>~≈]=?|[≤≥]|=[<>]){_BLANK}?{_ANY_NUMBER}.*",
        "is a limit, as of detection",
        _advise_limit,
        "nothing",
    ),
    _Form(rf"{_ANY_NUMBER}\+", "is a limit", _advise_limit, "nothing"),
    _Form(rf"{_ANY_NUMBER}[%‰]", "has a sign for per cent", _advise_number, "number"),
    _Form(
        rf"[+{_MINUS}-]?{_CURRENCY}{_BLANK}?{_ANY_NUMBER}|{_ANY_NUMBER}{_CURRENCY}",
        "has a currency",
        _advise_number,
        "number",
    ),
    _Form(
        rf"[{_QUOTES}`]{_ANY_NUMBER}|=\"{_ANY_NUMBER}\"", "is in quotes", _advise_number, "number"
    ),
    _Form(
        rf"[{_MINUS}]{_BLANK}?{_DIGITS}|-{_BLANK}{_DIGITS}|{_DIGITS}[{_MINUS}-]|\({_DIGITS}\)",
        "has another minus sign than -",
        _advise_number,
        "number",
    ),
    _Form(
        rf"[+-]?(?:{_BY_BLANK}|{_BY_COMMA}|{_BY_POINT})",
        "separates thousands",
        _advise_number,
        "number",
    ),
    _Form(r"[+-]?[1-9][0-9]{0,2},[0-9]{3}", "has a comma", _advise_decimals, "number"),
    _Form(
        r"[+-]?(?:[0-9]+,[0-9]*|,[0-9]+)(?:[eE][+-]?[0-9]+)?",
        "has a decimal comma",
        _advise_number,
        "number",
    ),
    _Form(
        r"[+-]?[0-9]+(?:\.[0-9]+){2,}",
        "has more than one decimal point",
        _advise_correction,
        "other",
    ),
    _Form(rf"{_ANY_NUMBER}{_UNIT}", "has a unit", _advise_number, "other"),
    _Form(rf"[0-9.]+ ?[{_MINUS}-] ?[0-9.]+", "is a range", _advise_correction, "other"),
    _Form("[+-]?\\d+(?:[.,\u066b]\\d+)?", "has digits of another script", _advise_number, "number"),
)
_COMPILED_FORMS = tuple((re.compile(form.pattern), form) for form in _FORMS)
_MEASURED = rf"{_ANY_NUMBER}(?P<unit>{_UNIT})"
_TRUTH_WORDS = {"yes": "no", "y": "n", "true": "false", "t": "f"}


def match_cells(cells: pa.Array, pattern: str) -> Mask:
    """Return which texts match a pattern of RE2 as a whole."""
    matching: Mask = pc.match_substring_regex(cells, rf"\A(?:{pattern})\z").to_numpy(
        zero_copy_only=False
    )
    return matching


def _join_patterns(tells: str) -> str:
    patterns = (f"(?:{form.pattern})" for form in _FORMS if form.tells == tells)
    return "|".join(patterns).replace(r"\d", r"\p{Nd}")


def match_foreign_numbers(cells: pa.Array) -> Mask:
    """Return which of a column's different cells tell that it holds numbers, in another form."""
    foreign = match_cells(cells, _join_patterns("number"))
    measured = match_cells(cells, _MEASURED) & ~foreign
    if measured.any():
        parts = pc.extract_regex(cells.filter(pa.array(measured)), rf"\A(?:{_MEASURED})\z")
        units = len(parts.field("unit").unique())
        if units == 1 or (units <= MAX_UNITS and measured.sum() > MIN_MEASURED):
            return foreign | measured
    return foreign


def match_open_cells(cells: pa.Array) -> Mask:
    """Return which cells tell nothing about their column: limits and errors of Excel."""
    return match_cells(cells, _join_patterns("nothing"))


def describe_cell(cell: str, column: str) -> tuple[str, str]:
    """Return which form a cell in a column of numbers has, and what to type instead."""
    for pattern, form in _COMPILED_FORMS:
        if pattern.fullmatch(cell):
            return form.name, form.advise(cell)
    word = cell.lower()
    for yes, no in _TRUTH_WORDS.items():
        if word in {yes, no}:
            pair = {cell: int(word == yes)}
            return "is a word", f"type {format_override('replace', {column: pair})}"
    if any(sign.isdecimal() for sign in cell):
        return "is no number", _advise_correction(cell)
    return "is a word", f"if it means missing, type {format_override('missing', [cell])}"


def _to_plain(text: str) -> str:
    """Return the number in a cell with a decimal point, without any other sign."""
    ascii_text = "".join(str(int(sign)) if sign.isdecimal() else sign for sign in text)
    match = re.search(rf"{_DIGITS}(?:[eE][+-]?[0-9]+$)?", ascii_text.replace("\u066b", "."))
    if match is None:
        return "a number"
    number = re.sub(f"[{_QUOTES}{_BLANKS}]", "", match[0]).rstrip(".,")
    decimal = "," if number.rfind(",") > number.rfind(".") else "."
    number = number.replace("." if decimal == "," else ",", "")
    number = number.replace(decimal, "" if number.count(decimal) > 1 else ".")
    is_negative = text[0] in f"-({_MINUS}" or text[-1] in f"-{_MINUS}"
    return f"-{number}" if is_negative else number
