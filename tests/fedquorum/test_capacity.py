"""How much memory and disk there is."""

import os
from pathlib import Path

import pytest
from fedquorum.capacity import LEAST_MEMORY, allocate, free_disk, gigabytes, machine_memory


@pytest.mark.parametrize(("limit", "counts"), [("max\n", False), ("4096\n", True), (None, False)])
def test_a_container_may_have_less_memory(
    limit: str | None, counts: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The smaller of both counts; a container without a limit has the machine's."""
    path = tmp_path / "memory.max"
    if limit is not None:
        path.write_text(limit)
    monkeypatch.setattr("fedquorum.capacity.CONTAINER_LIMITS", (path,))
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert machine_memory() == (4096 if counts else physical)


def test_the_space_of_a_folder_that_is_still_to_be_made(tmp_path: Path) -> None:
    """It is that of the folder above it."""
    assert free_disk(tmp_path / "a" / "b") > 0


def test_sizes_in_words() -> None:
    """Three digits are enough."""
    assert gigabytes(4_000_000_000) == "4 GB"


@pytest.mark.parametrize("posix", [True, False])
def test_space_is_taken_from_the_disk(
    posix: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the part alone, also where the system has no call for it: macOS and Windows."""
    if not posix:
        monkeypatch.delattr(os, "posix_fallocate")
    size = 3 * 2**20 + 5
    with (tmp_path / "file").open("w+b") as file:
        os.ftruncate(file.fileno(), 2 * size)
        assert os.fstat(file.fileno()).st_blocks == 0
        allocate(file.fileno(), size, size)
        assert size <= os.fstat(file.fileno()).st_blocks * 512 < 2 * size
    assert (tmp_path / "file").read_bytes() == bytes(2 * size)


def test_a_system_that_does_not_tell_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as Windows: a small machine is assumed."""
    monkeypatch.delattr(os, "sysconf")
    assert machine_memory() == LEAST_MEMORY
