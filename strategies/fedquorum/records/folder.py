"""Open the files of a run's folder, whose content may come from anybody.

No link below the folder given is followed, only regular files are opened, and texts are cleaned
before they are shown.
"""

import errno
import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO, NamedTuple

from ..errors import RunError
from ..intake import shown

LARGEST_FILE = 32 * 2**20  # of those read as a whole
_BY_DESCRIPTOR = {os.open, os.stat} <= os.supports_dir_fd and hasattr(os, "O_NOFOLLOW")
"""Whether this system opens a file by its folder's descriptor; Windows does not."""

if _BY_DESCRIPTOR:
    _FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    _FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC  # a pipe must not block


TABLES = ("clients", "evaluations")
_TABLE_FILE = re.compile(r"part-(\d{5,18})\.parquet", re.ASCII)


def table_file(number: int) -> str:
    """Return the name of a file of a table, which are numbered from 0 in the order of the rows."""
    return f"part-{number:05d}.parquet"


def table_files(names: Iterable[str]) -> list[str]:
    """Return the names that are those of a table's files, in the order of the rows."""
    found = (_TABLE_FILE.fullmatch(name) for name in names)
    numbers = sorted(
        int(match[1]) for match in found if match and match[0] == table_file(int(match[1]))
    )
    return [table_file(number) for number in numbers]


class Identity(NamedTuple):
    """A file as it was read: another one of its name differs in at least one of these."""

    inode: int
    size: int
    changed: int

    @classmethod
    def of(cls, file: BinaryIO) -> "Identity":
        """Return the identity of an open file."""
        return cls.from_stat(os.fstat(file.fileno()))

    @classmethod
    def from_stat(cls, found: os.stat_result) -> "Identity":
        """Return the identity of a file with this status."""
        return cls(found.st_ino, found.st_size, found.st_mtime_ns)


class RunFolder:
    """A run's directory.

    Parameters
    ----------
    path : Path
        The run's folder, an absolute path.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def opened(self, *names: str) -> Iterator[BufferedReader | None]:
        """Yield a file of the run, open for reading; None if there is none.

        Raises
        ------
        RunError
            If it is a link, no regular file, or cannot be read.
        """
        *folders, name = names
        if any(part in ("", "..") or Path(part).name != part or "\0" in part for part in names):
            raise RunError(f"expected names of files in {self.path}, got {shown('/'.join(names))}")
        try:
            with self._folder(*folders) as folder:
                file = _opened(folder, name)
        except FileNotFoundError:
            yield None
            return
        except OSError as error:
            raise self._refused(error, names) from None
        with file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise RunError(f"{self.path.joinpath(*names)}: expected a regular file")
            yield file

    def content(self, *names: str) -> bytes | None:
        """Return the content of a small file of the run; None if there is none.

        Raises
        ------
        RunError
            As ``opened``, and if it is too large.
        """
        with self.opened(*names) as file:
            if file is None:
                return None
            content = file.read(LARGEST_FILE + 1)
        if len(content) > LARGEST_FILE:
            limit = f"at most {LARGEST_FILE // 2**20} MiB"
            raise RunError(f"{self.path.joinpath(*names)}: expected {limit}, got more")
        return content

    def identity(self, *names: str) -> Identity | None:
        """Return the identity of a file or folder of the run; None if there is none.

        Raises
        ------
        RunError
            If it cannot be looked up.
        """
        *folders, name = names
        try:
            with self._folder(*folders) as folder:
                return Identity.from_stat(_status(folder, name))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._refused(error, names) from None

    def parts(self, name: str) -> dict[str, Identity]:
        """Return a table's files in a folder of the run by name, in order; empty without it.

        Files with other names are somebody else's.

        Raises
        ------
        RunError
            If the folder is a link or cannot be read.
        """
        try:
            with self._folder(name) as folder, os.scandir(folder) as entries:
                found = {
                    entry.name: Identity.from_stat(entry.stat(follow_symlinks=False))
                    for entry in entries
                }
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise self._refused(error, (name,)) from None
        return {name: found[name] for name in table_files(found)}

    @contextmanager
    def _folder(self, *names: str) -> Iterator[int | Path]:
        """Yield the descriptor of a folder, reached without following a link, or its path."""
        if not _BY_DESCRIPTOR:
            yield _without_links(self.path.resolve().joinpath(*names))
            return
        folder = os.open(self.path, _FOLDER)
        try:
            for name in names:
                inner = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=folder)
                os.close(folder)
                folder = inner
            yield folder
        finally:
            os.close(folder)

    def _refused(self, error: OSError, names: tuple[str, ...]) -> RunError:
        link = error.errno in (errno.ELOOP, errno.ENOTDIR)
        reason = "links are not followed" if link else error.strerror
        return RunError(f"{self.path.joinpath(*names)} cannot be read: {reason}")


def _opened(folder: int | Path, name: str) -> BufferedReader:
    if isinstance(folder, int):
        return os.fdopen(os.open(name, _FILE, dir_fd=folder), "rb")
    return _without_links(folder / name).open("rb")


def _status(folder: int | Path, name: str) -> os.stat_result:
    if isinstance(folder, int):
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    return (folder / name).lstat()


def _without_links(path: Path) -> Path:
    """Return a path on which there is no link; one that is made afterwards is followed.

    Raises
    ------
    OSError
        If there is a link.
    """
    if path.resolve(strict=True) != path:
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    return path
