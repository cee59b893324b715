"""What became of each client last, read while parts of the table ``clients/`` appear."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from fedquorum.errors import RunError, one_line
from fedquorum.intake import shown
from fedquorum.records.folder import Identity, RunFolder
from fedquorum.records.parquet import read_columns
from fedquorum.records.parts import is_covered, is_made_of
from fedquorum.report import STATUSES
from fedquorum.types import FloatArray
from numpy.typing import NDArray

FOLDER = "clients"
POPULATION = "population.parquet"
NOT_ASKED = "not asked yet"
SHOWN_STATUSES = (*STATUSES, NOT_ASKED)
NOT_CONNECTED = ("unavailable", NOT_ASKED)
MOST_CLIENTS = 2_000_000
LONGEST_PROBLEM = 400
SETTLED_NS = 2 * 10**9  # a folder changed less long ago may change again within one tick
_CODES = {status: code for code, status in enumerate(SHOWN_STATUSES)}
_TYPES = {"client": pa.int64(), "round": pa.int64(), "priority": pa.bool_()}
_TEXTS = ("status", "reason")
_LATER = {"seconds": pa.float64()}  # parts of older runs lack it
_NULLABLE = ("reason", *_LATER)

Integers = NDArray[np.int64]


@dataclass
class LastSeen:
    """What became of each client last; arrays of shape (clients,), ascending by client id.

    Attributes
    ----------
    client, round, trained, late : arrays of int64
        The client id, the last round in which it was asked and in which it trained, 0 for none,
        and in how many rounds it was late.
    priority : array of bool
        Whether it has priority.
    status : array of int64
        What became of it in ``round``, a place in ``SHOWN_STATUSES``.
    reason : array of str or None
        Why.
    seconds : array of float64
        How long its reply took, NaN where that is not recorded.
    """

    client: Integers = field(default_factory=lambda: np.empty(0, np.int64))
    round: Integers = field(default_factory=lambda: np.empty(0, np.int64))
    trained: Integers = field(default_factory=lambda: np.empty(0, np.int64))
    late: Integers = field(default_factory=lambda: np.empty(0, np.int64))
    priority: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, np.bool_))
    status: Integers = field(default_factory=lambda: np.empty(0, np.int64))
    reason: NDArray[np.object_] = field(default_factory=lambda: np.empty(0, np.object_))
    seconds: FloatArray = field(default_factory=lambda: np.empty(0))

    def places(self, clients: Integers) -> Integers:
        """Return where these clients stand, and make place for those that are new."""
        together = np.union1d(self.client, clients)
        if len(together) > MOST_CLIENTS:
            raise RunError(f"expected at most {MOST_CLIENTS:,} clients, got {len(together):,}")
        if len(together) > len(self.client):
            before, places = self.client, np.searchsorted(together, self.client)
            for name, value in vars(self).items():
                grown = np.zeros(len(together), value.dtype)
                grown[places] = value
                setattr(self, name, grown)
            new = ~np.isin(together, before)
            self.client = together
            self.status[new] = _CODES[NOT_ASKED]
            self.reason[new], self.seconds[new] = None, np.nan
        return np.searchsorted(self.client, clients)

    def meet(self, table: pa.Table) -> None:
        """Add clients of which nothing else is known."""
        places = self.places(_integers(table["client"]))  # first: it may make the arrays longer
        self.priority[places] = table["priority"].to_numpy()

    def add(self, table: pa.Table) -> None:
        """Add the rows of a part, which are in the order of the rounds."""
        rows = _Rows(table)
        clients, last = _last_of_each(rows.client)
        places = self.places(clients)
        self.round[places] = rows.round[last]
        self.priority[places] = rows.priority[last]
        self.status[places] = rows.status[last]
        self.seconds[places] = rows.seconds[last]
        self.reason[places] = [None if r is None else shown(r) for r in rows.reasons(last)]
        trained = np.flatnonzero(rows.status == _CODES["trained"])
        clients, last = _last_of_each(rows.client[trained])
        self.trained[self.places(clients)] = rows.round[trained[last]]
        clients, times = np.unique(rows.client[rows.status == _CODES["late"]], return_counts=True)
        self.late[self.places(clients)] += times

    def count(self, statuses: tuple[str, ...]) -> int:
        """Return how many clients have one of these statuses."""
        return int(np.isin(self.status, [_CODES[status] for status in statuses]).sum())


class Clients:
    """What is known of a run's clients.

    Attributes
    ----------
    version : int
        Another number after every change.
    seen : LastSeen
        What became of each client last.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self.version = 0
        self._forget()

    def _forget(self) -> None:
        self.version += 1
        self.seen = LastSeen()
        self._damaged = self._unlisted = ""
        self._population: Identity | None = None
        self._listed: Identity | None = None
        self._found: dict[str, Identity] = {}
        self._read: dict[str, Identity] = {}

    @property
    def problem(self) -> str:
        """What is wrong with the folder, or the first file that cannot be read; else empty."""
        return self._unlisted or self._damaged

    @property
    def parts(self) -> tuple[int, int]:
        """How many parts of the table are read, and how many there are."""
        return len(self._read), len(self._found)

    def read(self, until: float) -> bool:
        """Read the parts that are new, until a time of ``time.monotonic``.

        If a part that was read is gone or another, as after a resume, all are read again.

        Returns
        -------
        bool
            Whether all that there is has been read.
        """
        try:
            self._find_parts()
        except RunError as error:
            self._unlisted = str(error)
            return True
        self._unlisted = ""
        self._meet_population()
        for name in [name for name in self._found if name not in self._read]:
            self._add_part(name)
            if time.monotonic() >= until:
                return len(self._read) == len(self._found)
        return True

    def _find_parts(self) -> None:
        """List the folder, if it was changed since the last time."""
        folder = self._folder.identity(FOLDER)
        settled = folder is None or time.time_ns() - folder.changed > SETTLED_NS
        if folder == self._listed and settled and self._found:
            return
        found = self._folder.parts(FOLDER)
        self._follow_merges(found)
        if any(found.get(name) != identity for name, identity in self._read.items()):
            self._forget()
        self._listed, self._found = folder, found

    def _follow_merges(self, found: Mapping[str, Identity]) -> None:
        """Take a part that was merged of parts that were read for read."""
        for name in found.keys() - self._read.keys():
            if is_made_of(name, self._read):
                left = {n: i for n, i in self._read.items() if not is_covered(n, [name])}
                self._read = {**left, name: found[name]}

    def _meet_population(self) -> None:
        """Read who the clients are, if the run has told and it is not read yet."""
        try:
            identity = self._folder.identity(POPULATION)
            if identity is None or identity == self._population:
                return
            self._population = identity
            self._add((POPULATION,), ("client", "priority"), self.seen.meet)
        except RunError as error:
            self._note(error)

    def _add_part(self, name: str) -> None:
        """Read a part; a part that cannot be read is noted, and left out."""
        self._read[name] = self._found[name]
        try:
            if not self._add((FOLDER, name), (*_TYPES, *_TEXTS), self.seen.add):
                del self._read[name]  # it is gone since the folder was listed
                self._listed = None
        except RunError as error:
            self._note(error)

    def _add(
        self, names: tuple[str, ...], columns: tuple[str, ...], add: Callable[[pa.Table], None]
    ) -> bool:
        """Add columns of a file of the run to what is known, and say whether there is one.

        Raises
        ------
        RunError
            If it is no Parquet file, too large, or other than expected.
        """
        with self._folder.opened(*names) as file:
            if file is None:
                return False
            try:
                add(_read_table(file, columns))
            except (pa.ArrowException, OSError, ValueError, RunError) as error:
                path = self._folder.path.joinpath(*names)
                raise RunError(f"{path}: {one_line(error)}") from None
        self.version += 1
        return True

    def _note(self, problem: RunError) -> None:
        self._damaged = self._damaged or shown(problem, LONGEST_PROBLEM)
        self.version += 1


class _Rows:
    """The rows of a part, as arrays."""

    def __init__(self, table: pa.Table) -> None:
        self.client = _integers(table["client"])
        self.round = _integers(table["round"])
        self.priority = table["priority"].to_numpy()
        self.status = _codes(table["status"])
        self._reason = table["reason"]
        later = "seconds" in table.column_names
        self.seconds = table["seconds"].to_numpy() if later else np.full(len(table), np.nan)

    def reasons(self, places: Integers) -> list[str | None]:
        """Return the reasons in some of the rows."""
        found: list[str | None] = self._reason.take(pa.array(places)).to_pylist()
        return found


def _read_table(file: BinaryIO, columns: tuple[str, ...]) -> pa.Table:
    """Return columns of a Parquet file, of the types that they must have."""
    missing = set(columns).difference(pq.read_schema(file).names)
    if missing:
        raise RunError(f"expected a column {min(missing)}")
    texts = [name for name in columns if name in _TEXTS]
    table = read_columns(file, [*columns, *_LATER], texts)
    checked = {name: _checked(table[name], name) for name in table.column_names}
    return pa.table(checked).unify_dictionaries()


def _checked(column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    if name not in _NULLABLE and column.null_count:
        raise RunError(f"expected {name} in every row")
    if name not in _TEXTS:
        return column.cast((_TYPES | _LATER)[name])
    if column.type != pa.dictionary(pa.int32(), pa.string()):
        raise RunError(f"expected texts in {name}, got {column.type}")
    return column


def _integers(column: pa.ChunkedArray) -> Integers:
    return np.asarray(column.to_numpy(), dtype=np.int64)


def _codes(column: pa.ChunkedArray) -> Integers:
    """Return statuses as places in ``SHOWN_STATUSES``."""
    if not len(column):
        return np.empty(0, np.int64)
    encoded = column.combine_chunks()
    codes = pc.index_in(encoded.dictionary, pa.array(STATUSES)).fill_null(-1)
    found = codes.to_numpy(zero_copy_only=False)[encoded.indices.to_numpy()]
    if (found < 0).any():
        raise RunError(f"expected a status of {', '.join(STATUSES)}, got another one")
    return np.asarray(found, dtype=np.int64)


def _last_of_each(clients: Integers) -> tuple[Integers, Integers]:
    """Return the clients, ascending, and the place of the last row of each."""
    unique, from_end = np.unique(clients[::-1], return_index=True)
    return unique, len(clients) - 1 - from_end
