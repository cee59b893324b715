"""Texts that users read, kept once each in ``tests/snapshots`` and compared to the letter.

A page, a verdict or a table has one snapshot, and other tests assert what is told: numbers, names,
order. ``pytest --update-snapshots FILE`` writes those of a test file anew.
"""

from collections.abc import Callable, Mapping
from difflib import unified_diff
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "snapshots"
UPDATE = "--update-snapshots"

Snapshot = Callable[[str, str], None]
"""The fixture ``snapshot``: compares a text with the file of this name."""


def compare(path: Path, text: str, *, update: bool = False) -> None:
    """Fail with the difference where a text is not the one that is kept, and where none is."""
    if update:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return
    kept = path.read_text(encoding="utf-8") if path.is_file() else ""
    if kept == text and path.is_file():
        return
    before, now = kept.splitlines(keepends=True), text.splitlines(keepends=True)
    difference = "".join(unified_diff(before, now, f"kept in {path.name}", "told now"))
    pytest.fail(f"{difference}\npytest {UPDATE} keeps what is told now in {path}", pytrace=False)


def join_sections(texts: Mapping[str, str]) -> str:
    """Return several texts as one, each below its name."""
    return "\n".join(f"# {name}\n{text}\n" for name, text in texts.items())
