"""What a run says of the code that produced it."""

import subprocess
from pathlib import Path

import pytest

from server_app.records import provenance


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a git checkout with code and a document, where the code is taken to be from."""
    (tmp_path / "strategies").mkdir()
    (tmp_path / "strategies" / "rule.py").write_text("one = 1\n")
    (tmp_path / "README.md").write_text("text\n")
    own = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "first"]):
        subprocess.run([*own, *words], cwd=tmp_path, check=True)
    monkeypatch.setattr(provenance, "SOURCE", tmp_path)
    return tmp_path


def test_the_commit_is_dirty_where_code_changed(checkout: Path) -> None:
    """A changed document changes no result; changed code, or code not in git, may."""
    head = provenance.commit()
    assert head is not None
    assert len(head) == 40
    (checkout / "README.md").write_text("other text\n")
    assert provenance.commit() == head
    (checkout / "strategies" / "new.py").write_text("two = 2\n")
    assert provenance.commit() == f"{head}-dirty"
    (checkout / "strategies" / "new.py").unlink()
    (checkout / "strategies" / "rule.py").write_text("one = 2\n")
    assert provenance.commit() == f"{head}-dirty"


def test_outside_git_there_is_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bundle that Flower installed is no checkout."""
    monkeypatch.setattr(provenance, "SOURCE", tmp_path)
    assert provenance.commit() is None
