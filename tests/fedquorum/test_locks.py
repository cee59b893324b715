"""Locks on directories and files, each held by one process at a time."""

import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest
from fedquorum.io import LockHolder, find_holder, lock, lock_directory


@pytest.fixture(params=[True, False], ids=["by descriptor", "by file"])
def directory(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Return a directory; Windows cannot open it, and locks a file in it."""
    if not request.param:
        monkeypatch.delattr(os, "O_DIRECTORY")
    return tmp_path


def test_a_directory_is_locked_until_its_descriptor_is_closed(directory: Path) -> None:
    """No other lock succeeds meanwhile; the next one does afterwards."""
    first = lock_directory(directory)
    assert first is not None
    assert lock_directory(directory) is None
    os.close(first)
    again = lock_directory(directory)
    assert again is not None
    os.close(again)


def test_a_directory_that_is_missing_cannot_be_locked(directory: Path) -> None:
    """It is not created."""
    with pytest.raises(FileNotFoundError):
        lock_directory(directory / "none")
    assert not (directory / "none").exists()


def test_an_interruption_leaves_no_lock(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It could not be released: the descriptor was never returned."""
    opened = []

    def note_and_interrupt(descriptor: int, **_: bool) -> NoReturn:
        opened.append(descriptor)
        raise KeyboardInterrupt

    monkeypatch.setattr("fedquorum.io.lock_descriptor", note_and_interrupt)
    with pytest.raises(KeyboardInterrupt):
        lock_directory(directory)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(opened[0])


# --- files --------------------------------------------------------------------------------------

HOLD = """
import sys, time
from pathlib import Path
from fedquorum.io import lock
with lock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_lock_names_its_holder_and_is_gone_afterwards(tmp_path: Path) -> None:
    """While held, the file has the process and its host; afterwards the file is gone."""
    path = tmp_path / "job.lock"
    assert find_holder(path) is None
    with lock(path):
        assert find_holder(path) == LockHolder(os.getpid(), platform.node())
        with pytest.raises(BlockingIOError), lock(path, wait=False):
            pass
        assert find_holder(path) == LockHolder(os.getpid(), platform.node())
    assert find_holder(path) is None
    assert not path.exists()


def test_a_lock_is_removed_when_its_work_fails(tmp_path: Path) -> None:
    """An error inside leaves no file that would look like a killed process."""
    path = tmp_path / "job.lock"
    with pytest.raises(ZeroDivisionError), lock(path):
        raise ZeroDivisionError
    assert not path.exists()


def test_a_killed_process_holds_nothing(tmp_path: Path) -> None:
    """The kernel releases the lock of a killed process; the file stays."""
    path = tmp_path / "job.lock"
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        assert find_holder(path) == LockHolder(process.pid, platform.node())
        process.kill()
    assert find_holder(path) is None
    assert path.exists()
    with lock(path, wait=False):
        assert find_holder(path) == LockHolder(os.getpid(), platform.node())
