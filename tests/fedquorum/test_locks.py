"""Directories that one process holds at a time."""

import os
from pathlib import Path
from typing import NoReturn

import pytest
from fedquorum.locks import lock_directory


@pytest.fixture(params=[True, False], ids=["by descriptor", "by file"])
def directory(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Return a directory; Windows cannot open it, and locks a file in it."""
    if not request.param:
        monkeypatch.delattr(os, "O_DIRECTORY")
    return tmp_path


def test_a_directory_is_locked_until_its_descriptor_is_closed(directory: Path) -> None:
    """Nobody gets it meanwhile, and anybody afterwards."""
    first = lock_directory(directory)
    assert first is not None
    assert lock_directory(directory) is None
    os.close(first)
    again = lock_directory(directory)
    assert again is not None
    os.close(again)


def test_a_directory_that_is_missing_cannot_be_locked(directory: Path) -> None:
    """It is not made."""
    with pytest.raises(FileNotFoundError):
        lock_directory(directory / "none")
    assert not (directory / "none").exists()


def test_an_interruption_leaves_no_lock(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody could release it: the descriptor was never returned."""
    opened = []

    def interrupted(descriptor: int, **_: bool) -> NoReturn:
        opened.append(descriptor)
        raise KeyboardInterrupt

    monkeypatch.setattr("fedquorum.locks.lock_descriptor", interrupted)
    with pytest.raises(KeyboardInterrupt):
        lock_directory(directory)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(opened[0])
