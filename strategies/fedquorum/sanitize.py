"""Texts and names from outside, made fit for logs and records on their way in."""

from collections.abc import Iterable, Sequence

from .errors import ProtocolError

MAX_SANITIZED_LENGTH = 200
MAX_REASON_LENGTH = 500
"""A node's reason in the audit trail."""

MAX_NAME_LENGTH = 255


def sanitize(text: object, max_length: int = MAX_SANITIZED_LENGTH) -> str:
    """Return a text on one line: only characters that can be seen, and at most so many.

    Control characters, separators and lone surrogates, which no file could hold, become blanks;
    what is cut off is marked by three dots.
    """
    words = str(text)
    cut = words[: max_length + 1]
    clean = " ".join("".join(c if c.isprintable() else " " for c in cut).split())
    return f"{clean[:max_length]}..." if len(words) > max_length else clean


def abbreviate(values: Sequence[object], limit: int = 10) -> str:
    """Return the first of several values, and how many there are."""
    first = ", ".join(str(value) for value in values[:limit])
    return first if len(values) <= limit else f"{first}, ... ({len(values)} in all)"


def check_names(names: Iterable[str], kind: str) -> None:
    """Refuse names that records cannot show as they are.

    Parameters
    ----------
    names : iterable of str
        The names.
    kind : str
        What they are of, such as "array".

    Raises
    ------
    ProtocolError
        If one is empty, longer than 255 characters, or has others than printable ones.
    """
    for name in names:
        if not name or len(name) > MAX_NAME_LENGTH or not name.isprintable():
            raise ProtocolError(
                f"the name of {kind} must have 1 to {MAX_NAME_LENGTH} printable characters, got "
                f"{len(name)}: '{sanitize(name, 40)}'"
            )
