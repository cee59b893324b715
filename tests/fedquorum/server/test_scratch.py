"""The machine's memory and disk space, and the store of replies."""

import errno
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fedquorum.errors import RunError
from fedquorum.flower.codec import NamedArrays
from fedquorum.server.scratch import (
    MIN_MEMORY,
    ReplyStore,
    check_space,
    format_bytes,
    get_free_disk,
    get_memory_limit,
    get_total_memory,
    preallocate,
)
from numpy.typing import NDArray

ARRAYS: NamedArrays = {
    "w": np.arange(5, dtype=np.float32),
    "empty": np.zeros((0, 3)),
    "n": np.array(7),
    "columns": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
}


SIZE = sum(array.nbytes + -array.nbytes % 64 for array in ARRAYS.values())


def is_in_memory(arrays: Mapping[str, NDArray[Any]]) -> bool:
    """Say whether arrays are the original objects."""
    return all(arrays[name] is ARRAYS[name] for name in ARRAYS)


@pytest.mark.parametrize(("limit", "counts"), [("max\n", False), ("4096\n", True), (None, False)])
def test_a_container_may_have_less_memory(
    limit: str | None, counts: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The smaller of both limits counts; a container without a limit has the machine's memory."""
    path = tmp_path / "memory.max"
    if limit is not None:
        path.write_text(limit)
    monkeypatch.setattr("fedquorum.server.scratch.CONTAINER_LIMIT_FILES", (path,))
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert get_total_memory() == (4096 if counts else physical)


def test_the_free_space_of_a_folder_that_does_not_exist_yet(tmp_path: Path) -> None:
    """It is the free space of its parent."""
    assert get_free_disk(tmp_path / "a" / "b") > 0


def test_sizes_in_words() -> None:
    """Sizes have three digits."""
    assert format_bytes(4_000_000_000) == "4 GB"


@pytest.mark.parametrize("posix", [True, False])
def test_disk_space_is_allocated(
    posix: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For the given part alone, also without a system call for it: macOS and Windows."""
    if not posix:
        monkeypatch.delattr(os, "posix_fallocate")
    size = 3 * 2**20 + 5
    with (tmp_path / "file").open("w+b") as file:
        os.ftruncate(file.fileno(), 2 * size)
        assert os.fstat(file.fileno()).st_blocks == 0
        preallocate(file.fileno(), size, size)
        assert size <= os.fstat(file.fileno()).st_blocks * 512 < 2 * size
    assert (tmp_path / "file").read_bytes() == bytes(2 * size)


def test_a_system_that_does_not_report_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """On Windows a small machine is assumed."""
    monkeypatch.delattr(os, "sysconf")
    assert get_total_memory() == MIN_MEMORY


def test_updates_beyond_the_limit_are_views_of_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They read like arrays in memory, and the files have no names."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    store = ReplyStore(2 * SIZE)
    stored = [store.store(ARRAYS) for _ in range(4)]
    assert [is_in_memory(arrays) for arrays in stored] == [True, True, False, False]
    assert list(tmp_path.iterdir()) == []
    for arrays in stored[2:]:
        assert list(arrays) == list(ARRAYS)
        for name, array in arrays.items():
            assert not array.flags.writeable
            assert (array.dtype, array.shape) == (ARRAYS[name].dtype, ARRAYS[name].shape)
            np.testing.assert_array_equal(array, ARRAYS[name])


def test_many_updates_share_a_file() -> None:
    """A process may have about a thousand files open."""
    store, before = ReplyStore(0), len([*Path("/proc/self/fd").iterdir()])
    stored = [store.store(ARRAYS) for _ in range(100)]
    assert len([*Path("/proc/self/fd").iterdir()]) - before <= 2
    assert not any(map(is_in_memory, stored))


def test_an_update_larger_than_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """It gets a file of its size; the next update starts another file."""
    monkeypatch.setattr("fedquorum.server.scratch.FILE_BYTES", 100)
    store = ReplyStore(0)
    for arrays in (store.store(ARRAYS) for _ in range(2)):
        np.testing.assert_array_equal(arrays["columns"], ARRAYS["columns"])


def test_a_full_disk_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """It names the setting, the folder and the figures."""

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(RunError, match=r"^reply_memory must .* GB are needed \(No space left"):
        ReplyStore(0).store(ARRAYS)


def test_a_round_that_exceeds_memory_and_disk_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory and disk together must hold all models; the error has the figures."""
    monkeypatch.setattr("fedquorum.server.scratch.get_free_disk", lambda folder: 3 * 10**9)
    model = {"w": np.broadcast_to(np.float32(0), (25 * 10**7,))}  # 1 GB
    check_space(7 * 10**9, 10, model)
    with pytest.raises(RunError) as error:
        check_space(6 * 10**9, 10, model)
    assert str(error.value) == (
        f"reply_memory must leave no more to files than {tempfile.gettempdir()} (TMPDIR) has "
        "space for, 3 GB: 4 GB are needed (the weights of a round need all replies, 10 models of "
        "1 GB)"
    )


def test_the_default_is_half_of_the_memory() -> None:
    """Files are used only beyond half of the machine's memory."""
    assert get_memory_limit(None) == get_total_memory() // 2
    assert get_memory_limit(0) == 0
