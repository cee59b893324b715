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
from fedquorum.flower.codec import NamedArrays, count_bytes, encode_arrays, view_arrays
from fedquorum.flower.reply_store import ReplyStore, allowed, check_space
from flwr.app import ArrayRecord, MetricRecord, RecordDict

ARRAYS: NamedArrays = {
    "w": np.arange(5, dtype=np.float32),
    "empty": np.zeros((0, 3)),
    "n": np.array(7),
    "columns": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
}


def reply() -> RecordDict:
    """Return a reply with arrays of several kinds."""
    return RecordDict({"metrics": MetricRecord({"x": 1.0}), "arrays": encode_arrays(ARRAYS)})


def in_memory(content: RecordDict) -> bool:
    """Say whether the arrays of a reply are bytes, as they came."""
    record = content["arrays"]
    assert isinstance(record, ArrayRecord)
    return all(isinstance(array.data, bytes) for array in record.values())


def test_replies_beyond_the_bound_are_views_of_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They read as those in memory do, and the files have no names."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    store = ReplyStore(2 * count_bytes(reply()))
    kept = [store.kept(reply()) for _ in range(4)]
    assert [in_memory(content) for content in kept] == [True, False, False, False]
    assert list(tmp_path.iterdir()) == []
    for content in kept:
        assert list(content) == ["metrics", "arrays"]
        assert count_bytes(content) == count_bytes(reply())
        record = content["arrays"]
        assert isinstance(record, ArrayRecord)
        views = view_arrays(record)
        assert list(views) == list(ARRAYS)
        for name, array in views.items():
            assert not array.flags.writeable
            assert (array.dtype, array.shape) == (ARRAYS[name].dtype, ARRAYS[name].shape)
            np.testing.assert_array_equal(array, ARRAYS[name])


def test_a_reply_without_arrays_needs_no_file() -> None:
    """An error or a silent client's reply is kept as it is."""
    content = RecordDict({"metrics": MetricRecord({"x": 1.0})})
    assert ReplyStore(0).kept(content) is content


def test_many_replies_share_a_file() -> None:
    """A process may have about a thousand files open."""
    store, before = ReplyStore(0), len([*Path("/proc/self/fd").iterdir()])
    kept = [store.kept(reply()) for _ in range(100)]
    assert len([*Path("/proc/self/fd").iterdir()]) - before <= 2
    assert not any(map(in_memory, kept))


def test_a_reply_larger_than_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has one of its size; the next one begins another."""
    monkeypatch.setattr("fedquorum.flower.reply_store.FILE_BYTES", 100)
    store = ReplyStore(0)
    for record in (store.kept(reply())["arrays"] for _ in range(2)):
        assert isinstance(record, ArrayRecord)
        np.testing.assert_array_equal(view_arrays(record)["columns"], ARRAYS["columns"])


def test_a_full_disk_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """It names the setting, the folder and the figures."""

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(RunError, match=r"^reply_memory must .* GB are needed \(No space left"):
        ReplyStore(0).kept(reply())


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
