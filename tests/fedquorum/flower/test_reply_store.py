"""Replies that are needed all at once, in memory or in files."""

import errno
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fedquorum.capacity import machine_memory
from fedquorum.errors import RunError
from fedquorum.flower.codec import NamedArrays
from fedquorum.flower.reply_store import ReplyStore, allowed, check_space

ARRAYS: NamedArrays = {
    "w": np.arange(5, dtype=np.float32),
    "empty": np.zeros((0, 3)),
    "n": np.array(7),
    "columns": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
}


SIZE = sum(array.nbytes + -array.nbytes % 64 for array in ARRAYS.values())


def in_memory(arrays: NamedArrays) -> bool:
    """Say whether arrays are those that came."""
    return all(arrays[name] is ARRAYS[name] for name in ARRAYS)


def test_updates_beyond_the_bound_are_views_of_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They read as those in memory do, and the files have no names."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    store = ReplyStore(2 * SIZE)
    kept = [store.kept(ARRAYS) for _ in range(4)]
    assert [in_memory(arrays) for arrays in kept] == [True, True, False, False]
    assert list(tmp_path.iterdir()) == []
    for arrays in kept[2:]:
        assert list(arrays) == list(ARRAYS)
        for name, array in arrays.items():
            assert not array.flags.writeable
            assert (array.dtype, array.shape) == (ARRAYS[name].dtype, ARRAYS[name].shape)
            np.testing.assert_array_equal(array, ARRAYS[name])


def test_many_updates_share_a_file() -> None:
    """A process may have about a thousand files open."""
    store, before = ReplyStore(0), len([*Path("/proc/self/fd").iterdir()])
    kept = [store.kept(ARRAYS) for _ in range(100)]
    assert len([*Path("/proc/self/fd").iterdir()]) - before <= 2
    assert not any(map(in_memory, kept))


def test_an_update_larger_than_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has one of its size; the next one begins another."""
    monkeypatch.setattr("fedquorum.flower.reply_store.FILE_BYTES", 100)
    store = ReplyStore(0)
    for arrays in (store.kept(ARRAYS) for _ in range(2)):
        np.testing.assert_array_equal(arrays["columns"], ARRAYS["columns"])


def test_a_full_disk_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """It names the setting, the folder and the figures."""

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(RunError, match=r"^reply_memory must .* GB are needed \(No space left"):
        ReplyStore(0).kept(ARRAYS)


def test_a_round_that_cannot_be_kept_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory and disk together must hold all models; the figures say what is missing."""
    monkeypatch.setattr("fedquorum.flower.reply_store.free_disk", lambda folder: 3 * 10**9)
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
    """Nothing is in files where half of the machine's memory is enough."""
    assert allowed(None) == machine_memory() // 2
    assert allowed(0) == 0
