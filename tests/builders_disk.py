"""A disk that loses what was not synced when the power is cut."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

Image = dict[str, bytes | None]
"""What is there after a cut: the content of each file by its path, None of each folder."""

CHANGING = ("replace", "rename", "unlink", "remove", "mkdir", "rmdir", "truncate")
"""Functions of ``os`` that change what is in a folder, or a file by its name."""


@dataclass
class Disk:
    """Notes what is synced below a folder, and every state in which a cut could leave it.

    A file has the content with which it was last synced, and is empty if it never was. Of names
    there are two kinds of disks: one keeps those that a folder had when it was last synced, the
    other one all, as a journal of names alone does.

    Parameters
    ----------
    root : Path
        The folder, which is there whatever happens.
    images : dict
        All different states, each as the pairs of an image, in the order in which they came.
    """

    root: Path
    images: dict[tuple[tuple[str, bytes | None], ...], None] = field(default_factory=dict)
    cuts: int = 0
    _contents: dict[int, bytes] = field(default_factory=dict)
    _names: dict[int, dict[str, tuple[int, bool]]] = field(default_factory=dict)
    _held: list[int] = field(default_factory=list)

    def watch_changes(self, patch: pytest.MonkeyPatch) -> None:
        """Note what is synced and changed from here on, until the patch is undone."""
        patch.setattr(os, "fsync", self._wrap_call(os.fsync, self._store_synced))
        for name in CHANGING:
            patch.setattr(os, name, self._wrap_call(getattr(os, name), lambda *_: None))

    def _wrap_call(self, do: Callable[..., Any], note: Callable[..., None]) -> Callable[..., Any]:
        def done(*given: Any, **options: Any) -> Any:
            found = do(*given, **options)
            note(*given)
            self._cut()
            return found

        return done

    def _store_synced(self, descriptor: int) -> None:
        status = os.fstat(descriptor)
        self._held.append(os.dup(descriptor))  # so that no other file gets its number
        if Path(f"/proc/self/fd/{descriptor}").is_dir():
            with os.scandir(descriptor) as entries:
                self._names[status.st_ino] = {e.name: (e.inode(), e.is_dir()) for e in entries}
        else:
            self._contents[status.st_ino] = Path(f"/proc/self/fd/{descriptor}").read_bytes()

    def _cut(self) -> None:
        """Note both states in which a cut would leave the disk now."""
        self.cuts += 1
        root = self.root.stat().st_ino
        for listed in (self._list_synced(root, ""), self._list_named(self.root, "")):
            self.images[tuple(sorted(listed))] = None

    def _list_synced(self, inode: int, path: str) -> Iterator[tuple[str, bytes | None]]:
        for name, (found, is_folder) in self._names.get(inode, {}).items():
            inside = f"{path}/{name}" if path else name
            yield inside, None if is_folder else self._contents.get(found, b"")
            if is_folder:
                yield from self._list_synced(found, inside)

    def _list_named(self, folder: Path, path: str) -> Iterator[tuple[str, bytes | None]]:
        with os.scandir(folder) as entries:
            for entry in entries:
                inside = f"{path}/{entry.name}" if path else entry.name
                yield inside, None if entry.is_dir() else self._contents.get(entry.inode(), b"")
                if entry.is_dir():
                    yield from self._list_named(Path(entry.path), inside)

    def close(self) -> None:
        """Let go of the files."""
        for descriptor in self._held:
            os.close(descriptor)
        self._held = []


def restore_image(image: tuple[tuple[str, bytes | None], ...], folder: Path) -> Path:
    """Write a state of the disk into a folder, and return it."""
    folder.mkdir(parents=True)
    for path, content in image:
        if content is None:
            (folder / path).mkdir()
        else:
            (folder / path).write_bytes(content)
    return folder
