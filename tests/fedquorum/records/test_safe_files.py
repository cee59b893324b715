"""Tests that readers open only regular files inside a run's directory."""

import os
from pathlib import Path

import pytest
from fedquorum.errors import RunError
from fedquorum.records.safe_files import FileId, SafeRunDir


@pytest.fixture(params=[True, False], ids=["by descriptor", "by path"])
def folder(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> SafeRunDir:
    """Return a run's directory with one file, beside a foreign file.

    Windows cannot open a file relative to a folder's descriptor.
    """
    monkeypatch.setattr("fedquorum.records.safe_files._SUPPORTS_DIR_FD", request.param)
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "run" / "clients").mkdir(parents=True)
    (tmp_path / "run" / "file").write_text("content")
    return SafeRunDir(tmp_path / "run")


def test_a_file_is_read_and_a_missing_one_is_none(folder: SafeRunDir) -> None:
    """The parent folder may be missing, too."""
    assert folder.read("file") == b"content"
    assert folder.read("other") is None
    assert folder.read("nothing", "other") is None


@pytest.mark.parametrize(
    "names", [("..", "secret"), ("../secret",), (".", "file"), ("",), ("a\0",)]
)
def test_names_cannot_leave_the_folder(folder: SafeRunDir, names: tuple[str, ...]) -> None:
    """Names may come from untrusted records."""
    with pytest.raises(RunError, match="expected names of files in"):
        folder.read(*names)


def test_no_link_is_followed(folder: SafeRunDir) -> None:
    """Links to files and links to folders are refused."""
    (folder.path / "link").symlink_to(folder.path.parent / "secret")
    (folder.path / "up").symlink_to(folder.path.parent)
    for names in (("link",), ("up", "secret")):
        with pytest.raises(RunError, match="links are not followed"):
            folder.read(*names)
    with pytest.raises(RunError, match="links are not followed"):
        folder.list_table_files("up")


def test_only_files_are_read(folder: SafeRunDir) -> None:
    """A folder is refused."""
    with pytest.raises(RunError, match="clients"):
        folder.read("clients")


def test_a_file_that_is_too_large_is_not_read(
    folder: SafeRunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An untrusted file could fill the memory."""
    monkeypatch.setattr("fedquorum.records.safe_files.MAX_FILE_BYTES", len("content"))
    assert folder.read("file") == b"content"
    (folder.path / "file").write_text("content!")
    with pytest.raises(RunError, match=f"^{folder.path}/file: expected at most 0 MiB, got more$"):
        folder.read("file")


def test_a_changed_file_has_another_identity(folder: SafeRunDir) -> None:
    """A changed size suffices; a link has its own identity."""
    before = folder.get_file_id("file")
    assert before is not None
    assert folder.get_file_id("file") == before
    with folder.open("file") as file:
        assert file is not None
        assert FileId.from_file(file) == before
    with (folder.path / "file").open("a") as more:
        more.write("more")
    os.utime(folder.path / "file", ns=(before.mtime_ns, before.mtime_ns))
    assert folder.get_file_id("file") == before._replace(size=before.size + 4)
    (folder.path / "link").symlink_to(folder.path / "file")
    link = folder.get_file_id("link")
    assert link is not None
    assert link.inode != before.inode
    assert folder.get_file_id("nothing") is None


def test_no_pipe_is_read(tmp_path: Path) -> None:
    """Reading it would block forever."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(RunError, match="pipe"):
        SafeRunDir(tmp_path).read("pipe")
