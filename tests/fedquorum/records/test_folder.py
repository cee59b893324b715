"""A run's directory as its readers open it: nothing outside of it, nothing that is no file."""

import os
from pathlib import Path

import pytest
from fedquorum.errors import RunError
from fedquorum.records.folder import RunFolder


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """Return a run's directory with one file, beside a file of somebody else."""
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "run" / "clients").mkdir(parents=True)
    (tmp_path / "run" / "file").write_text("content")
    return RunFolder(tmp_path / "run")


def test_a_file_is_read_and_a_missing_one_is_none(folder: RunFolder) -> None:
    """Also where the folder above it is missing."""
    assert folder.content("file") == b"content"
    assert folder.content("other") is None
    assert folder.content("nothing", "other") is None


@pytest.mark.parametrize(
    "names", [("..", "secret"), ("../secret",), (".", "file"), ("",), ("a\0",)]
)
def test_no_name_leads_out(folder: RunFolder, names: tuple[str, ...]) -> None:
    """Names come from records, too."""
    with pytest.raises(RunError, match="expected names of files in"):
        folder.content(*names)


def test_no_link_is_followed(folder: RunFolder) -> None:
    """Neither of a file nor of a folder."""
    (folder.path / "link").symlink_to(folder.path.parent / "secret")
    (folder.path / "up").symlink_to(folder.path.parent)
    for names in (("link",), ("up", "secret")):
        with pytest.raises(RunError, match="links are not followed"):
            folder.content(*names)
    with pytest.raises(RunError, match="links are not followed"):
        folder.parts("up")


def test_only_files_are_read(folder: RunFolder) -> None:
    """A pipe would wait for ever."""
    os.mkfifo(folder.path / "pipe")
    for name in ("pipe", "clients"):
        with pytest.raises(RunError, match=rf"{name}"):
            folder.content(name)
