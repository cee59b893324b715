"""Texts and names from outside, made fit for logs and records on their way in."""

from collections.abc import Iterable, Sequence

from .errors import ProtocolError

LONGEST_TEXT = 200
LONGEST_REASON = 500
"""A node's reason in the audit trail."""

LONGEST_NAME = 255


def shown(text: object, longest: int = LONGEST_TEXT) -> str:
    """Return a text on one line: only characters that can be seen, and at most so many.

    Control characters, separators and lone surrogates, which no file could hold, become blanks;
    what is cut off is marked by three dots.
    """
    words = str(text)
    cut = words[: longest + 1]
    clean = " ".join("".join(c if c.isprintable() else " " for c in cut).split())
    return f"{clean[:longest]}..." if len(words) > longest else clean


def abbreviated(values: Sequence[object], limit: int = 10) -> str:
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
        if not name or len(name) > LONGEST_NAME or not name.isprintable():
            raise ProtocolError(
                f"the name of {kind} must have 1 to {LONGEST_NAME} printable characters, got "
                f"{len(name)}: '{shown(name, 40)}'"
            )
