"""Open the files of a run's folder, whose content is untrusted.

No link below the given folder is followed, only regular files are opened, and texts are sanitized
before they are displayed.
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
from ..sanitize import sanitize

MAX_FILE_BYTES = 32 * 2**20  # of a file that is read as a whole
_SUPPORTS_DIR_FD = {os.open, os.stat} <= os.supports_dir_fd and hasattr(os, "O_NOFOLLOW")
"""Whether this system can open a file relative to a folder's descriptor; Windows cannot."""

if _SUPPORTS_DIR_FD:
    _DIR_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    _FILE_FLAGS = (
        os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
    )  # a pipe must not block


MANIFEST_FILE = "manifest.json"
TABLE_NAMES = ("clients", "evaluations")
_TABLE_FILE_PATTERN = re.compile(r"part-(\d{5,18})\.parquet", re.ASCII)


def format_table_file(number: int) -> str:
    """Return the name of a table's file; files count from 0 in the order of the rows."""
    return f"part-{number:05d}.parquet"


def select_table_files(names: Iterable[str]) -> list[str]:
    """Return the names of a table's files among ``names``, in the order of the rows."""
    found = (_TABLE_FILE_PATTERN.fullmatch(name) for name in names)
    numbers = sorted(
        int(match[1]) for match in found if match and match[0] == format_table_file(int(match[1]))
    )
    return [format_table_file(number) for number in numbers]


class FileId(NamedTuple):
    """The identity of a file as read; a replaced or changed file differs in at least one field."""

    inode: int
    size: int
    mtime_ns: int

    @classmethod
    def from_file(cls, file: BinaryIO) -> "FileId":
        """Return the identity of an open file."""
        return cls.from_stat(os.fstat(file.fileno()))

    @classmethod
    def from_stat(cls, found: os.stat_result) -> "FileId":
        """Return the identity of a file with this status."""
        return cls(found.st_ino, found.st_size, found.st_mtime_ns)


class SafeRunDir:
    """A run's directory.

    Parameters
    ----------
    path : Path
        The run's folder, an absolute path.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def open(self, *names: str) -> Iterator[BufferedReader | None]:
        """Yield a file of the run, open for reading; None if there is none.

        Raises
        ------
        RunError
            If it is a link, no regular file, or cannot be read.
        """
        *folders, name = names
        if any(item in ("", "..") or Path(item).name != item or "\0" in item for item in names):
            raise RunError(
                f"expected names of files in {self.path}, got {sanitize('/'.join(names))}"
            )
        try:
            with self._open_dir(*folders) as folder:
                file = _open_file(folder, name)
        except FileNotFoundError:
            yield None
            return
        except OSError as error:
            raise self._build_read_error(error, names) from None
        with file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise RunError(f"{self.path.joinpath(*names)}: expected a regular file")
            yield file

    def read(self, *names: str) -> bytes | None:
        """Return the content of a small file of the run; None if there is none.

        Raises
        ------
        RunError
            As ``open``, and if it is too large.
        """
        with self.open(*names) as file:
            if file is None:
                return None
            content = file.read(MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES:
            limit = f"at most {MAX_FILE_BYTES // 2**20} MiB"
            raise RunError(f"{self.path.joinpath(*names)}: expected {limit}, got more")
        return content

    def get_file_id(self, *names: str) -> FileId | None:
        """Return the identity of a file or folder of the run; None if there is none.

        Raises
        ------
        RunError
            If it cannot be looked up.
        """
        *folders, name = names
        try:
            with self._open_dir(*folders) as folder:
                return FileId.from_stat(_get_status(folder, name))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._build_read_error(error, names) from None

    def list_table_files(self, name: str) -> dict[str, FileId]:
        """Return a table's files in a folder of the run by name, in order; empty without it.

        Files with other names are somebody else's.

        Raises
        ------
        RunError
            If the folder is a link or cannot be read.
        """
        try:
            with self._open_dir(name) as folder, os.scandir(folder) as entries:
                found = {
                    entry.name: FileId.from_stat(entry.stat(follow_symlinks=False))
                    for entry in entries
                }
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise self._build_read_error(error, (name,)) from None
        return {name: found[name] for name in select_table_files(found)}

    @contextmanager
    def _open_dir(self, *names: str) -> Iterator[int | Path]:
        """Yield the descriptor of a folder, opened without following links, or else its path."""
        if not _SUPPORTS_DIR_FD:
            yield _check_no_links(self.path.resolve().joinpath(*names))
            return
        folder = os.open(self.path, _DIR_FLAGS)
        try:
            for name in names:
                inner = os.open(name, _DIR_FLAGS | os.O_NOFOLLOW, dir_fd=folder)
                os.close(folder)
                folder = inner
            yield folder
        finally:
            os.close(folder)

    def _build_read_error(self, error: OSError, names: tuple[str, ...]) -> RunError:
        link = error.errno in (errno.ELOOP, errno.ENOTDIR)
        reason = "links are not followed" if link else error.strerror
        return RunError(f"{self.path.joinpath(*names)} cannot be read: {reason}")


def _open_file(folder: int | Path, name: str) -> BufferedReader:
    if isinstance(folder, int):
        return os.fdopen(os.open(name, _FILE_FLAGS, dir_fd=folder), "rb")
    return _check_no_links(folder / name).open("rb")


def _get_status(folder: int | Path, name: str) -> os.stat_result:
    if isinstance(folder, int):
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    return (folder / name).lstat()


def _check_no_links(path: Path) -> Path:
    """Return a path without links; a link made afterwards is followed.

    Raises
    ------
    OSError
        If there is a link.
    """
    if path.resolve(strict=True) != path:
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    return path
