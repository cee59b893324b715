"""Sanitize texts and names from outside for logs and records."""

from collections.abc import Iterable
from difflib import get_close_matches
from functools import lru_cache

MAX_SANITIZED_LENGTH = 200
MAX_REASON_LENGTH = 500
"""The longest reason of a node in the audit trail."""

MAX_LINE_LENGTH = 1000
"""The longest line that a command prints of a record."""

MAX_COMPARED_NAMES = 5_000
"""Comparing a name with as many takes a fifth of a second."""


def sanitize(text: object, max_length: int = MAX_SANITIZED_LENGTH) -> str:
    """Return a text on one line with only printable characters, at most ``max_length`` of them.

    Control characters, separators and lone surrogates, which no file can hold, become blanks. Three
    dots mark a truncated text.
    """
    raw = str(text)
    clean = _replace_unprintable(raw[: max_length + 1])
    return f"{clean[:max_length]}..." if len(raw) > max_length else clean


@lru_cache
def _replace_unprintable(text: str) -> str:
    """Return a text with single blanks, cached: many clients give the same reason."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def abbreviate(values: Iterable[object], limit: int = 10, *, near: str = "") -> str:
    """Join values; of more than ``limit`` only the first, and the number of all values.

    Parameters
    ----------
    values : iterable
    limit : int
    near : str
        A wrong name: the most similar values then come first.
    """
    texts = [str(value) for value in values]
    if len(texts) <= limit:
        return ", ".join(texts)
    if near and len(texts) <= MAX_COMPARED_NAMES:
        texts[:limit] = get_close_matches(near, texts, limit, cutoff=0.0)
    return f"{', '.join(texts[:limit])}, ... ({len(texts)} in all)"
