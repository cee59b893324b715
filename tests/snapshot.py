"""Compare texts that users read with those stored in ``tests/snapshots``, character by character.

A page, a verdict or a table has one snapshot, and other tests assert its content: numbers, names,
order. ``pytest --update-snapshots FILE`` rewrites the snapshots of a test file.
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
    """Fail with the difference if a text differs from the stored one, or if none is stored."""
    if update:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return
    stored = path.read_text(encoding="utf-8") if path.is_file() else ""
    if stored == text and path.is_file():
        return
    before, now = stored.splitlines(keepends=True), text.splitlines(keepends=True)
    difference = "".join(unified_diff(before, now, f"stored in {path.name}", "now"))
    pytest.fail(f"{difference}\npytest {UPDATE} stores the new text in {path}", pytrace=False)


def join_sections(texts: Mapping[str, str]) -> str:
    """Return several texts as one, each below its name."""
    return "\n".join(f"# {name}\n{text}\n" for name, text in texts.items())
