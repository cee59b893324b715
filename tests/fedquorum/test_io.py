"""Tests of atomic and durable writes."""

import _thread
import os
import platform
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import NoReturn

import pytest
from fedquorum.errors import RunError
from fedquorum.io import (
    LockHolder,
    atomic_write,
    defer_signals,
    find_holder,
    fsync,
    fsync_parents,
    lock,
    lock_directory,
)


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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2])
def test_a_signal_is_deferred_to_the_end_of_the_block(number: signal.Signals) -> None:
    """The block completes; then the signal has its usual effect."""
    events: list[str] = []

    def raise_interrupt(_number: int, _frame: object) -> None:
        events.append("interrupted")
        raise KeyboardInterrupt

    def write() -> None:
        with defer_signals():
            signal.raise_signal(number)
            signal.raise_signal(number)
            events.append("written")
        events.append("not reached")

    before = signal.signal(number, raise_interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            write()
        assert signal.getsignal(number) is raise_interrupt
    finally:
        signal.signal(number, before)
    assert events == ["written", "interrupted"]


def test_an_interrupt_is_deferred_even_if_its_signal_is_blocked() -> None:
    """In Ray's processes, Python raises an interrupt without the signal."""

    def send_interrupt() -> None:
        with defer_signals():
            _thread.interrupt_main()

    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            send_interrupt()
        assert signal.sigpending() == set()
    finally:
        signal.signal(signal.SIGINT, before)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def test_other_threads_defer_nothing() -> None:
    """Flower runs a ServerApp in another thread, where no signal arrives."""
    done: list[bool] = []

    def write() -> None:
        with defer_signals():
            done.append(True)

    thread = threading.Thread(target=write)
    thread.start()
    thread.join()
    assert done == [True]


def test_an_ignored_signal_stays_ignored() -> None:
    """Nothing happens after the block, as for a scheduler's signal without a handler."""
    done: list[bool] = []
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        with defer_signals():
            signal.raise_signal(signal.SIGUSR1)
            done.append(True)
        assert signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert done == [True]
