"""Tests that snapshots fail if a text changed, and that every snapshot is used."""

import subprocess
from pathlib import Path

import pytest

from tests.snapshot import FOLDER, compare, join_sections


def test_a_missing_snapshot_fails(tmp_path: Path) -> None:
    """An empty text needs a snapshot, too, and nothing is written without the option."""
    for text in ("a\n", ""):
        with pytest.raises(pytest.fail.Exception, match="--update-snapshots stores the new text"):
            compare(tmp_path / "new.txt", text)
    assert not list(tmp_path.iterdir())


def test_a_difference_is_shown_by_lines(tmp_path: Path) -> None:
    """Changed lines have signs; the last line end counts."""
    path = tmp_path / "folder" / "kept.txt"
    compare(path, "one\ntwo\n", update=True)
    compare(path, "one\ntwo\n")
    with pytest.raises(pytest.fail.Exception) as failed:
        compare(path, "one\n2\n")
    assert "\n one\n-two\n+2\n" in str(failed.value)
    with pytest.raises(pytest.fail.Exception):
        compare(path, "one\ntwo")
    assert path.read_text() == "one\ntwo\n"


def test_sections_have_their_names_above() -> None:
    """Each text is below its name."""
    assert join_sections({"a": "x", "b": "y"}) == "# a\nx\n\n# b\ny\n"


def test_every_snapshot_is_compared() -> None:
    """Each is named in a test; others are leftovers."""
    tests = Path(__file__).parent
    files = subprocess.check_output(["git", "-C", str(tests), "ls-files", "*.py"], text=True)
    sources = "".join((tests / name).read_text() for name in files.split())
    kept = [path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*") if path.is_file()]
    assert kept
    assert [name for name in kept if f'"{name}"' not in sources] == []
