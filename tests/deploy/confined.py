"""Become a command that may do no more than a systemd unit lets its service do.

    python confined.py UNIT COMMAND ...

Of what systemd does for a unit this does what a process can do to itself, with libseccomp as
systemd does: NoNewPrivileges, SystemCallFilter, SystemCallErrorNumber, RestrictAddressFamilies and
MemoryDenyWriteExecute. Missing are the user, capabilities, namespaces and mounts.
"""

import ctypes
import errno
import mmap
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

PR_SET_NO_NEW_PRIVS = 38
ALLOW = 0x7FFF0000
ERRNO = 0x00050000
EQUAL, MASKED_EQUAL = 4, 7
DENIED = -1
"""What libseccomp knows no system call of this architecture by."""


class Comparison(ctypes.Structure):
    """libseccomp's ``scmp_arg_cmp``: which argument, how compared, with what."""

    _fields_ = (
        ("argument", ctypes.c_uint),
        ("how", ctypes.c_int),
        ("first", ctypes.c_uint64),
        ("second", ctypes.c_uint64),
    )


class Unit:
    """What the section of a unit's service says; a directive may be there several times."""

    def __init__(self, path: Path) -> None:
        _, _, service = path.read_text().partition("\n[Service]\n")
        pairs = re.findall(r"^(\w+)=(.*)$", service, re.MULTILINE)
        self._said = [(name, value.split()) for name, value in pairs]

    def words(self, directive: str) -> list[list[str]]:
        """Return the words of each line of a directive."""
        return [words for name, words in self._said if name == directive]

    def allows(self) -> set[str]:
        """Return the names of the system calls that are allowed."""
        allowed = set(calls(["@default"]))
        for first, *others in self.words("SystemCallFilter"):
            found = set(calls([first.removeprefix("~"), *others]))
            allowed = allowed - found if first.startswith("~") else allowed | found
        return allowed


def calls(names: Sequence[str]) -> Iterator[str]:
    """Yield the system calls of these names, of which those with an @ are systemd's groups."""
    for name in names:
        if not name.startswith("@"):
            yield name
            continue
        said = subprocess.check_output(["systemd-analyze", "syscall-filter", name], text=True)
        words = [line.strip() for line in said.splitlines()[1:]]
        yield from calls([word for word in words if word and not word.startswith("#")])


class Filter:
    """A filter of system calls: what no rule allows fails with an error number."""

    def __init__(self, error: int) -> None:
        self._library = ctypes.CDLL("libseccomp.so.2")  # systemd needs it too
        self._library.seccomp_init.restype = ctypes.c_void_p
        self._context = ctypes.c_void_p(self._library.seccomp_init(ERRNO | error))

    def allow(self, name: str, *comparisons: Comparison) -> None:
        """Allow a system call where all of these hold of its arguments."""
        number = self._library.seccomp_syscall_resolve_name(name.encode())
        if number == DENIED:
            return
        array = (Comparison * len(comparisons))(*comparisons)
        status = self._library.seccomp_rule_add_array(
            self._context, ALLOW, number, len(comparisons), array
        )
        if status < 0 and number >= 0:  # below 0 are calls that this architecture does not have
            raise OSError(-status, name)

    def load(self) -> None:
        """Put it in force for this process and what it starts."""
        if status := self._library.seccomp_load(self._context):
            raise OSError(-status, "seccomp_load")


def confine(unit: Unit) -> None:
    """Do to this process what a unit says."""
    ((error,),) = unit.words("SystemCallErrorNumber")
    filters = Filter(getattr(errno, error))
    allowed = unit.allows()
    for family in unit.words("RestrictAddressFamilies")[0]:
        filters.allow("socket", Comparison(0, EQUAL, getattr(socket, family)))
    allowed.discard("socket")
    if unit.words("MemoryDenyWriteExecute") == [["yes"]]:
        both = mmap.PROT_WRITE | mmap.PROT_EXEC
        for bits in (0, mmap.PROT_WRITE, mmap.PROT_EXEC):
            filters.allow("mmap", Comparison(2, MASKED_EQUAL, both, bits))
        for name in ("mprotect", "pkey_mprotect"):
            filters.allow(name, Comparison(2, MASKED_EQUAL, mmap.PROT_EXEC, 0))
        allowed -= {"mmap", "mprotect", "pkey_mprotect"}
    for name in sorted(allowed):
        filters.allow(name)
    if unit.words("NoNewPrivileges") != [["yes"]]:
        raise ValueError("NoNewPrivileges must be yes")
    ctypes.CDLL(None).prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    filters.load()


if __name__ == "__main__":
    confine(Unit(Path(sys.argv[1])))
    os.execvp(sys.argv[2], sys.argv[2:])  # noqa: S606 - no shell is needed
