"""The rounds of a run, read while ``rounds.jsonl`` grows."""

import math
import time
from array import array
from collections.abc import Mapping
from typing import BinaryIO

import numpy as np
from fedquorum.errors import RunError
from fedquorum.intake import shown
from fedquorum.metrics import METRICS
from fedquorum.records.fairness import sum_of
from fedquorum.records.folder import Identity, RunFolder
from fedquorum.records.reader import parse_round
from fedquorum.records.round_record import MORE_GROUPS, TEST_GROUPS, RoundRecord
from fedquorum.report import STATUSES, LateReply
from fedquorum.types import FloatArray

from server_app.report.groups import metric_after_round

FILE = "rounds.jsonl"
TESTED = (*METRICS, "average", "worst")
_OF_ROUND = (
    *("round", "seconds", "global_loss", "global_accuracy", "admitted", "bytes_down", "bytes_up"),
    *STATUSES,
)
BLOCK = 2**20
LONGEST_LINE = 16 * 2**20
MOST_LATE_CLIENTS = 1_000_000
_ENDING = 2**16  # bytes before the place reached, to recognise a file that was written anew


class Rounds:
    """What is known of a run's rounds: numbers by round, sums, and the last record.

    Attributes
    ----------
    version : int
        Another number after every change.
    last, last_tested : RoundRecord or None
        The last round, and the last whose model was tested.
    answers : dict
        How many answers of each status there were in all rounds.
    bytes_down, bytes_up, seconds : float
        Sums over rounds.
    late : dict
        The last late reply by client.
    last_late : LateReply or None
        The last late reply of all.
    late_replies : int
        How many late replies came.
    damaged : int
        How many lines could not be read.
    problem : str
        What is wrong with the first of them, or with the file; else empty.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self.version = 0
        self._forget()

    def _forget(self) -> None:
        self.version += 1
        self.last: RoundRecord | None = None
        self.last_tested: RoundRecord | None = None
        self.answers = dict.fromkeys(STATUSES, 0.0)
        self.bytes_down = self.bytes_up = self.seconds = 0.0
        self.last_late: LateReply | None = None
        self.late: dict[int, LateReply] = {}
        self.late_replies = 0
        self.damaged = 0
        self.problem = ""
        self._columns: dict[str, array[float]] = {}
        self._identity: Identity | None = None
        self._lines = 0
        self._position = 0
        self._ending = b""
        self._rest = b""
        self._complete = True
        self._stuck = False

    @property
    def written(self) -> float | None:
        """When the file was last written, in seconds since 1970; None where there is no file."""
        return None if self._identity is None else self._identity.changed / 1e9

    @property
    def fraction_read(self) -> float:
        """How much of the file is read, from 0 to 1."""
        size = 0 if self._identity is None else self._identity.size
        return min(1.0, self._position / size) if size and not self._complete else 1.0

    def column(self, name: str) -> FloatArray:
        """Return a number of every round, NaN where it is not known; shape (rounds,)."""
        return np.array(self._columns.get(name, ()), dtype=np.float64)

    def latest(self, name: str) -> float:
        """Return a number of the last round, NaN where it is not known."""
        column = self._columns.get(name)
        return column[-1] if column else math.nan

    def recent_seconds(self, rounds: int = 20) -> float:
        """Return the mean duration of the last rounds, NaN before the first."""
        durations = self._columns.get("seconds", array("d"))[-rounds:]
        return sum_of(durations) / len(durations) if durations else math.nan

    def read(self, until: float) -> bool:
        """Read the lines that are new, until a time of ``time.monotonic``.

        A file that is not what it was, as after a resume, is read from its beginning.

        Returns
        -------
        bool
            Whether all that there is has been read.
        """
        try:
            with self._folder.opened(FILE) as file:
                if file is None:
                    if self._identity is not None:
                        self._forget()
                    return True
                return self._read_from(file, until)
        except (RunError, OSError) as error:
            if self.problem != str(error):
                self._forget()
                self.problem = str(error)
            return True

    def _read_from(self, file: BinaryIO, until: float) -> bool:
        identity = Identity.of(file)
        if identity == self._identity and self._complete:
            return True
        if self._identity is not None and not self._goes_on(file, identity):
            self._forget()
        self._identity = identity
        if self._stuck:
            return True
        file.seek(self._position)
        while len(self._rest) <= LONGEST_LINE and (block := file.read(BLOCK)):
            self._position += len(block)
            self._ending = (self._ending + block)[-_ENDING:]
            *lines, self._rest = (self._rest + block).split(b"\n")
            for line in lines:
                self._add_line(line)
            if time.monotonic() >= until:
                self._complete = False
                return False
        if len(self._rest) > LONGEST_LINE:
            self._stuck = True
            limit = f"expected at most {LONGEST_LINE // 2**20} MiB"
            self._damage(f"line {self._lines + 1}: {limit}, and nothing behind it is read")
        self._complete = True
        return True

    def _goes_on(self, file: BinaryIO, identity: Identity) -> bool:
        """Say whether the file still holds what was read of it."""
        if self._identity is None or identity.inode != self._identity.inode:
            return False
        file.seek(self._position - len(self._ending))
        return file.read(len(self._ending)) == self._ending

    def _add_line(self, line: bytes) -> None:
        self._lines += 1
        try:
            record = parse_round(line)
            self._check_order(record)
        except RunError as error:
            self._damage(f"line {self._lines}: {shown(error)}")
        else:
            self._add(record)

    def _check_order(self, record: RoundRecord) -> None:
        if self.last is not None and record.round <= self.last.round:
            raise RunError(f"expected a round after {self.last.round}, got {record.round}")

    def _damage(self, problem: str) -> None:
        self.version += 1
        self.damaged += 1
        self.problem = self.problem or f"{self._folder.path / FILE}, {problem}"

    def _add(self, record: RoundRecord) -> None:
        values = {name: float(value) for name, value in _numbers(record).items()}
        for name, value in values.items():
            self._columns.setdefault(name, array("d")).append(value)
        self.version += 1
        self.last = record
        if record.test:
            self.last_tested = record
        for status in STATUSES:
            self.answers[status] += values[status]
        self.bytes_down += values["bytes_down"]
        self.bytes_up += values["bytes_up"]
        if not math.isnan(record.seconds):
            self.seconds += record.seconds
        self.late_replies += len(record.late_replies)
        self.last_late = next(reversed(record.late_replies), self.last_late)
        if len(self.late) < MOST_LATE_CLIENTS:
            self.late.update({reply.client: reply for reply in record.late_replies})


def _numbers(record: RoundRecord) -> Mapping[str, float]:
    """Return what is drawn of a round, by the names of the columns."""
    numbers: dict[str, float] = {name: getattr(record, name) for name in _OF_ROUND}
    clock = record.simulated_seconds
    numbers["simulated_seconds"] = math.nan if clock is None else clock
    for group in (*TEST_GROUPS, *MORE_GROUPS):
        for name in TESTED:
            numbers[f"{group}.{name}"] = metric_after_round(record, group, name)
    return numbers
