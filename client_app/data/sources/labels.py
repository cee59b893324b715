"""Order the names in a column, and find names that may mean the same."""

import re
import unicodedata
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from client_app.data.base import Labels
from client_app.data.coding.cells import Cells

_WHOLE = re.compile(r"0|-?[1-9][0-9]{0,300}")
_DIGITS = re.compile(r"[+-]?[0-9]+(?:\.0*)?")
_HYPHENS = dict.fromkeys((*range(0x2010, 0x2016), 0x2212), "-")
_JOINT = re.compile(r"([^\W\d_])[\s_.-]+(?=[^\W_])")
"""What separates the words of a name; a hyphen before or behind a digit may be a sign."""

_TRUTH_PAIRS = (("1", "0"), ("yes", "no"), ("y", "n"), ("true", "false"), ("t", "f"))
_TRUTHS = {word: str(pair.index(word)) for pair in _TRUTH_PAIRS for word in pair}


def find_names(column: Any) -> tuple[tuple[str, ...], Labels]:
    """Return the different cells of a column in order, and each row's index, -1 if it is empty.

    Names are texts that keep their look. They are in the order of numbers if all are whole numbers
    without leading zeros (or all with ``.0``), and in that of texts otherwise. Names of a typed
    column are in the order of its values.
    """
    cells = Cells.encode(column)
    names = cells.texts.to_pylist()
    order = (
        order_names(names)
        if pa.types.is_string(column.type)
        else np.argsort(np.array(cells.values.to_pylist(), dtype=object), kind="stable")
    )
    rank = np.empty(len(names), dtype=np.int64)
    rank[order] = np.arange(len(names))
    return tuple(names[i] for i in order), cells.expand(rank, -1)


def order_names(names: Sequence[str]) -> Labels:
    """Return the indices that sort names: as numbers if all are plain whole ones, else as texts."""
    numbers = [name.removesuffix(".0") for name in names]
    has_points = {name.endswith(".0") for name in names}
    key: Any = names.__getitem__
    if len(has_points) == 1 and all(map(_WHOLE.fullmatch, numbers)):
        whole = [*map(int, numbers)]
        key = whole.__getitem__
    return np.array(sorted(range(len(names)), key=key), dtype=np.int64)


def find_similar_names(names: Sequence[str], counts: Labels) -> dict[str, str]:
    """Return the rarer spelling of every name that seems to be written in several ways.

    Spellings differ in case, accents, blanks, hyphens, a dot at the end, leading zeros or ``.0``.
    Where names say yes and no in two forms, such as 0 and 1 beside no and yes, these are spellings
    too.

    Returns
    -------
    dict of str to str
        The rarer spelling, and the most frequent one.
    """
    keys = [*map(_fold, names)]
    known = {*keys}
    is_mixed = sum(known >= {*pair} for pair in _TRUTH_PAIRS) > 1
    if is_mixed or known <= _TRUTHS.keys():
        keys = [_TRUTHS.get(key, key) for key in keys]
    if len(set(keys)) == len(names):
        return {}
    spellings: dict[str, list[int]] = {}
    for i, key in enumerate(keys):
        spellings.setdefault(key, []).append(i)
    similar: dict[str, str] = {}
    for similar_spellings in spellings.values():
        most = max(similar_spellings, key=lambda i: (counts[i], -i))
        similar |= {names[i]: names[most] for i in similar_spellings if i != most}
    return similar


def _fold(name: str) -> str:
    """Return what remains of a name without the differences between spellings."""
    if _DIGITS.fullmatch(name):
        sign, digits = name[0] == "-", name.lstrip("+-").partition(".")[0]
        return ("-" if sign else "") + (digits.lstrip("0") or "0")
    if not name.isascii():
        decomposed = unicodedata.normalize("NFKD", name)
        name = "".join(sign for sign in decomposed if not unicodedata.combining(sign))
        name = name.translate(_HYPHENS)
    return _JOINT.sub(r"\1 ", name.lower()).rstrip(" .")
