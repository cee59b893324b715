"""Plant the faults of ``planted_faults.yaml``, one at a time, and count those that the tests catch.

    python -m tests.planted_faults                  # all of them, --jobs 2 at a time
    python -m tests.planted_faults --only NAME ...  # these
    python -m tests.planted_faults --list

Works in copies of the working tree, in a temporary folder. Exits with 1 if a fault is not caught,
or if the tests fail without one. A fault whose old text is not exactly once in its file is an
error: the table must follow the code.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

import yaml

ROOT = Path(__file__).resolve().parent.parent
TABLE = Path(__file__).with_suffix(".yaml")
TESTS_FAILED = 1  # pytest's exit status; others say that it could not test
SHOWN_LINES = 25


class TableError(Exception):
    """The table of faults does not fit the code."""


@dataclass(frozen=True)
class Fault:
    """A possible mistake in the code.

    Parameters
    ----------
    name : str
        What is wrong, in a few words.
    file : str
        The file, relative to the repository.
    old, new : str
        The right text, which the file has exactly once, and the wrong one.
    tests : tuple of str
        The tests that must fail, as pytest takes them: those of the unit where the fault is.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


@dataclass(frozen=True)
class Outcome:
    """The result of the tests with a fault, or without one, which has no name."""

    name: str
    status: int
    output: str
    seconds: float

    @property
    def right(self) -> bool:
        """Whether the tests failed because of a fault, or passed without one."""
        return self.status == (TESTS_FAILED if self.name else 0)

    @property
    def verdict(self) -> str:
        """The outcome in words."""
        if self.right:
            return "caught" if self.name else "passed"
        if self.status == 0:
            return "NOT CAUGHT"
        if self.status == TESTS_FAILED:
            return "FAILED without a fault"
        return f"ERROR: pytest ended with {self.status}"


Run = Callable[[Path, Sequence[str]], tuple[int, str]]
"""Runs tests in a tree and returns pytest's exit status and what it wrote."""


def run_pytest(tree: Path, tests: Sequence[str]) -> tuple[int, str]:
    """Run tests on the code of a tree, which must not import that of any other."""
    path = os.pathsep.join(map(str, (tree, tree / "strategies")))
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            *["-x", "-q", "-n", "0", "-p", "no:cacheprovider", "--tb=short"],
            "--hypothesis-seed=0",  # the same examples in every run, so that the count is the same
            *tests,
        ],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def load_faults(path: Path = TABLE) -> tuple[Fault, ...]:
    """Return the table of faults: a mapping of names to faults, for each part of the code."""
    parts = yaml.safe_load(path.read_text())
    return tuple(
        Fault(name, fault["file"], fault["old"], fault["new"], tuple(fault["tests"]))
        for faults in parts.values()
        for name, fault in faults.items()
    )


def check_table(root: Path, faults: Iterable[Fault]) -> None:
    """Raise TableError unless each fault has its own name, and its old text once in its file."""
    names: set[str] = set()
    for fault in faults:
        path = root / fault.file
        count = path.read_text().count(fault.old) if path.is_file() else 0
        if count != 1:
            raise TableError(f"{fault.name}: {fault.file} has its text {count} times, not once")
        if fault.name in names:
            raise TableError(f"{fault.name}: two faults have this name")
        names.add(fault.name)


@contextmanager
def plant_fault(tree: Path, fault: Fault) -> Iterator[None]:
    """Plant a fault in a tree; afterwards its file is as before."""
    path = tree / fault.file
    content, times = path.read_text(), path.stat()
    path.write_text(content.replace(fault.old, fault.new))
    try:
        yield
    finally:
        path.write_text(content)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def try_fault(tree: Path, fault: Fault, run: Run = run_pytest) -> Outcome:
    """Return the outcome of a fault's tests while it is planted."""
    started = time.monotonic()
    with plant_fault(tree, fault):
        status, output = run(tree, fault.tests)
    return Outcome(fault.name, status, output, time.monotonic() - started)


def try_without(tree: Path, tests: Sequence[str], run: Run = run_pytest) -> Outcome:
    """Return the outcome of tests without a fault."""
    started = time.monotonic()
    status, output = run(tree, tests)
    return Outcome("", status, output, time.monotonic() - started)


def try_all(
    trees: Sequence[Path], faults: Sequence[Fault], run: Run = run_pytest
) -> Iterator[Outcome]:
    """Yield the outcomes: first that of each part of the tests without a fault, then the faults'.

    One fault at a time is planted in each tree.
    """
    tests = sorted({test for fault in faults for test in fault.tests})
    parts = [part for k in range(len(trees)) if (part := tests[k :: len(trees)])]
    free: SimpleQueue[Path] = SimpleQueue()
    for tree in trees:
        free.put(tree)

    def in_free_tree(task: Callable[[Path], Outcome]) -> Outcome:
        tree = free.get()
        try:
            return task(tree)
        finally:
            free.put(tree)

    with ThreadPoolExecutor(len(trees)) as pool:
        without = (lambda tree, part=part: try_without(tree, part, run) for part in parts)
        yield from pool.map(in_free_tree, without)
        tasks = (lambda tree, fault=fault: try_fault(tree, fault, run) for fault in faults)
        yield from pool.map(in_free_tree, tasks)


def copy_tree(root: Path, to: Path) -> None:
    """Copy the working tree: what Git tracks, and what it neither tracks nor ignores."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        capture_output=True,
        check=True,
        text=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (root / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, to / name)


def main(arguments: Sequence[str] | None = None) -> int:
    """Plant the faults and print the outcome of each."""
    parser = argparse.ArgumentParser(description="plant faults, and count those that tests catch")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these faults")
    parser.add_argument("--list", action="store_true", help="print the faults and plant none")
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time (%(default)s)")
    options = parser.parse_args(arguments)
    table = load_faults()
    unknown = {*(options.only or ())} - {fault.name for fault in table}
    if unknown:
        parser.error(f"--only must be names that --list prints, got {', '.join(sorted(unknown))}")
    faults = [fault for fault in table if not options.only or fault.name in options.only]
    if options.list:
        for fault in faults:
            print(f"{fault.name}: {fault.file}")
        return 0
    try:
        check_table(ROOT, table)
    except TableError as error:
        print(error, file=sys.stderr)
        return 1
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        trees = [Path(folder, f"tree-{k}") for k in range(max(1, options.jobs))]
        for tree in trees:
            copy_tree(ROOT, tree)
        for outcome in try_all(trees, faults):
            name = outcome.name or "no fault"
            print(f"{outcome.seconds:5.0f} s  {name}: {outcome.verdict}", flush=True)
            if not outcome.right:
                wrong += 1
                print("\n".join(outcome.output.splitlines()[-SHOWN_LINES:]), flush=True)
    print(f"{len(faults)} faults planted, {wrong} outcomes wrong")
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
