"""Tests of atomic and durable writes."""

import os
from pathlib import Path

import pytest
from fedquorum.errors import RunError
from fedquorum.io import atomic_write, fsync, fsync_parents


def test_a_failed_write_leaves_the_file_unchanged(tmp_path: Path) -> None:
    """One line names the file, and no partial file is left."""
    file = tmp_path / "model"
    file.write_text("before")

    def write() -> None:
        with atomic_write(file) as partial:
            partial.write_text("half")
            raise OSError(28, os.strerror(28))

    message = f"^{file} cannot be written: No space left on device$"
    with pytest.raises(RunError, match=message):
        write()
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert file.read_text() == "before"


def test_folders_are_not_synced_on_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows cannot open folders; files are still synced."""
    synced = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_ino))
    monkeypatch.delattr(os, "O_DIRECTORY")
    (tmp_path / "file").write_text("content")
    fsync(tmp_path)
    assert synced == []
    fsync(tmp_path / "file")
    assert synced == [(tmp_path / "file").stat().st_ino]


def test_all_parent_folders_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sync ends at the mount point, or at the working directory for a relative path."""
    synced: list[Path] = []
    monkeypatch.setattr("fedquorum.io.fsync", synced.append)
    monkeypatch.setattr(os.path, "ismount", lambda folder: folder == tmp_path)
    fsync_parents(tmp_path / "a" / "b" / "run")
    assert synced == [tmp_path / "a" / "b", tmp_path / "a", tmp_path]
    synced.clear()
    fsync_parents(Path("a/run"))
    assert synced == [Path("a"), Path()]


def test_content_is_synced_before_the_rename(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Content, name and folder are synced in this order, so a power cut leaves no partial file."""
    calls: list[tuple[str, str]] = []
    rename = Path.replace

    def record_rename(path: Path, target: Path) -> Path:
        calls.append(("rename", target.name))
        return rename(path, target)

    monkeypatch.setattr("fedquorum.io.fsync", lambda path: calls.append(("sync", path.name)))
    monkeypatch.setattr(Path, "replace", record_rename)
    with atomic_write(tmp_path / "model", durable=True) as partial:
        partial.write_text("content")
    assert calls == [("sync", partial.name), ("rename", "model"), ("sync", tmp_path.name)]
    calls.clear()
    with atomic_write(tmp_path / "model") as partial:
        partial.write_text("content")
    assert calls == [("rename", "model")]
