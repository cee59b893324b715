"""Files that one process holds at a time."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from server_app.locks import Holder, holder, lock

HOLD = """
import sys, time
from pathlib import Path
from server_app.locks import lock
with lock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_lock_names_its_holder_and_is_gone_afterwards(tmp_path: Path) -> None:
    """While it is held the file has the process and its host; afterwards there is no file."""
    path = tmp_path / "job.lock"
    assert holder(path) is None
    with lock(path):
        assert holder(path) == Holder(os.getpid(), platform.node())
        with pytest.raises(BlockingIOError), lock(path, wait=False):
            pass
        assert holder(path) == Holder(os.getpid(), platform.node())
    assert holder(path) is None
    assert not path.exists()


def test_a_lock_is_removed_when_its_work_fails(tmp_path: Path) -> None:
    """An error inside leaves no file that would look like a killed process."""
    path = tmp_path / "job.lock"
    with pytest.raises(ZeroDivisionError), lock(path):
        raise ZeroDivisionError
    assert not path.exists()


def test_a_killed_process_holds_nothing(tmp_path: Path) -> None:
    """The kernel releases the lock of a killed process; the file stays and tells of it."""
    path = tmp_path / "job.lock"
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        assert holder(path) == Holder(process.pid, platform.node())
        process.kill()
    assert holder(path) is None
    assert path.exists()
    with lock(path, wait=False):
        assert holder(path) == Holder(os.getpid(), platform.node())
