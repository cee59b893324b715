"""Files that are replaced whole, and what brings them to the disk."""

import os
from pathlib import Path

import pytest
from fedquorum.errors import RunError
from fedquorum.records.files import atomic_write, fsync, fsync_parents


def test_a_file_that_cannot_be_written_stays_as_it_was(tmp_path: Path) -> None:
    """One line names it, and nothing half written is left."""
    file = tmp_path / "model"
    file.write_text("before")

    def write() -> None:
        with atomic_write(file) as part:
            part.write_text("half")
            raise OSError(28, os.strerror(28))

    message = f"^{file} cannot be written: No space left on device$"
    with pytest.raises(RunError, match=message):
        write()
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert file.read_text() == "before"


def test_folders_are_not_synced_where_they_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows opens none; files are synced there, too."""
    synced = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_ino))
    monkeypatch.delattr(os, "O_DIRECTORY")
    (tmp_path / "file").write_text("content")
    fsync(tmp_path)
    assert synced == []
    fsync(tmp_path / "file")
    assert synced == [(tmp_path / "file").stat().st_ino]


def test_the_names_of_all_folders_above_are_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to the mount, or to the working directory for a relative path."""
    synced: list[Path] = []
    monkeypatch.setattr("fedquorum.records.files.fsync", synced.append)
    monkeypatch.setattr(os.path, "ismount", lambda folder: folder == tmp_path)
    fsync_parents(tmp_path / "a" / "b" / "run")
    assert synced == [tmp_path / "a" / "b", tmp_path / "a", tmp_path]
    synced.clear()
    fsync_parents(Path("a/run"))
    assert synced == [Path("a"), Path()]


def test_a_file_is_on_the_disk_before_its_name_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The content, the name, then the folder that has it: a power cut never leaves half a file."""
    done: list[tuple[str, str]] = []
    rename = Path.replace

    def note_rename(path: Path, target: Path) -> Path:
        done.append(("rename", target.name))
        return rename(path, target)

    monkeypatch.setattr(
        "fedquorum.records.files.fsync", lambda path: done.append(("sync", path.name))
    )
    monkeypatch.setattr(Path, "replace", note_rename)
    with atomic_write(tmp_path / "model", durable=True) as part:
        part.write_text("content")
    assert done == [("sync", part.name), ("rename", "model"), ("sync", tmp_path.name)]
    done.clear()
    with atomic_write(tmp_path / "model") as part:
        part.write_text("content")
    assert done == [("rename", "model")]
