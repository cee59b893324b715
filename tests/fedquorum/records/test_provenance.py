"""Tests of the origin of a run: commit and versions."""

import subprocess
from pathlib import Path

import numpy as np
import pytest
from fedquorum import __version__
from fedquorum.records.provenance import find_commit, get_versions


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a git checkout with code and a document."""
    (tmp_path / "strategies").mkdir()
    (tmp_path / "strategies" / "rule.py").write_text("one = 1\n")
    (tmp_path / "README.md").write_text("text\n")
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "first"]):
        subprocess.run([*git, *arguments], cwd=tmp_path, check=True)
    return tmp_path


def test_the_commit_is_dirty_if_code_changed(checkout: Path) -> None:
    """Documents change no result; changed code, and code not in git, may."""
    code = ("strategies", "pyproject.toml")
    head = find_commit(checkout, code)
    assert head is not None
    assert len(head) == 40
    (checkout / "README.md").write_text("other text\n")
    assert find_commit(checkout) == f"{head}-dirty"
    assert find_commit(checkout, code) == head
    (checkout / "strategies" / "new.py").write_text("two = 2\n")
    assert find_commit(checkout, code) == f"{head}-dirty"
    (checkout / "strategies" / "new.py").unlink()
    (checkout / "strategies" / "rule.py").write_text("one = 2\n")
    assert find_commit(checkout, code) == f"{head}-dirty"


def test_outside_git_there_is_no_commit(tmp_path: Path) -> None:
    """A bundle installed by Flower is no checkout."""
    assert find_commit(tmp_path) is None


def test_a_package_that_is_not_installed_has_no_version() -> None:
    """It is still listed, after the library."""
    found = get_versions(("numpy", "no-such-package"))
    assert list(found) == ["fedquorum", "numpy", "no-such-package"]
    assert [*found.values()] == [__version__, np.__version__, None]
