"""Measure the resources of a run's process, round by round, from another process."""

import os
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
MEGABYTE = 1e6


@dataclass(frozen=True)
class Usage:
    """The use of a process: seconds of a processor so far, and current bytes of memory."""

    cpu: float
    resident: int

    @classmethod
    def from_pid(cls, pid: int) -> "Usage | None":
        """Return the usage of a process, None if it has ended."""
        with suppress(FileNotFoundError, ProcessLookupError):
            # Behind the name, which may have any characters, fields 3 and on; see proc(5).
            found = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            if found[0] != "Z":
                return cls((int(found[11]) + int(found[12])) / TICKS, int(found[21]) * PAGE)
        return None


@dataclass(frozen=True)
class Sample:
    """A run at a moment: its rounds so far, its process, its files and their bytes.

    ``pace`` is how many seconds of a processor a fixed piece of work takes: on a machine that
    others use, the same instructions take up to twice as long.
    """

    rounds: int
    usage: Usage
    files: int
    size: int
    pace: float


class Run:
    """A run that another process plays; every line of its rounds.jsonl is read once."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._read = 0
        self._rounds = 0

    def count_rounds(self) -> int:
        """Return how many rounds are recorded."""
        with suppress(FileNotFoundError), (self.directory / "rounds.jsonl").open("rb") as file:
            file.seek(self._read)
            new = file.read()
            self._read += len(new)
            self._rounds += new.count(b"\n")
        return self._rounds

    def sample(self, pid: int, directory: Path | None = None) -> Sample | None:
        """Return a sample of a process, None if it has ended; its files are in a directory.

        By default in the run's.
        """
        sizes = [*_measure_sizes(directory or self.directory)]
        usage = Usage.from_pid(pid)
        if usage is None:
            return None
        return Sample(self.count_rounds(), usage, len(sizes), sum(sizes), _read_pace())


def _measure_sizes(directory: Path) -> Iterator[int]:
    for path in directory.rglob("*"):
        with suppress(FileNotFoundError):  # removed meanwhile
            if path.is_file():
                yield path.stat().st_size


def _read_pace() -> float:
    started = time.process_time()
    sum(number * number for number in range(20_000))
    return time.process_time() - started


def watch_run(process: subprocess.Popen[bytes], run: Run, interval: float) -> list[Sample]:
    """Return samples of a run, from its first round until its process ends."""
    samples = []
    while process.poll() is None:
        time.sleep(interval)
        sample = run.sample(process.pid)
        if sample is not None and sample.rounds > 0:
            samples.append(sample)
    return samples


@dataclass(frozen=True)
class Block:
    """Some rounds in sequence: the last of them, and what they used.

    ``work`` is ``cpu``, the seconds of a processor for each round, in units of the pace.
    """

    last: int
    cpu: float
    work: float
    resident: int
    files: int
    size: int

    def __str__(self) -> str:
        return (
            f"{self.last:6}  {self.cpu * 1e3:6.2f} ms, work {self.work:6.3f}  "
            f"{self.resident / MEGABYTE:6.1f} MB  {self.files:4} files  "
            f"{self.size / MEGABYTE:6.2f} MB"
        )


def split_blocks(samples: Sequence[Sample], count: int) -> list[Block]:
    """Return the rounds of a run in ``count`` blocks, each from one sample to another.

    Memory is the median of a block, and the number of files the most that was seen in it.
    """
    total = samples[-1].rounds
    ends = [next(s for s in samples if s.rounds * count >= total * k) for k in range(count + 1)]
    found = []
    for first, last in pairwise(ends):
        inside = samples[samples.index(first) : samples.index(last) + 1]
        cpu = (last.usage.cpu - first.usage.cpu) / max(1, last.rounds - first.rounds)
        found.append(
            Block(
                last.rounds,
                cpu,
                cpu / median(sample.pace for sample in inside),
                round(median(sample.usage.resident for sample in inside)),
                max(sample.files for sample in inside),
                last.size,
            )
        )
    return found


def compare_first_and_last(
    found: Sequence[Block],
    value: Callable[[Block], float],
    summarize: Callable[[Iterable[float]], float] = median,
) -> tuple[float, float]:
    """Return a summary of a value over the first blocks and over the last, a third of them each.

    The first block is left out, since a run imports and creates things in it.
    """
    third = max(1, (len(found) - 1) // 3)
    early, late = found[1 : 1 + third], found[-third:]
    return summarize(map(value, early)), summarize(map(value, late))
