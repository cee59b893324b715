"""One row for each client: how much it has, of which classes, and how often it is there."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from fedquorum.types import Population
from numpy.typing import NDArray

from client_app.availability import compute_participation_rates
from client_app.data import FederatedData, load_data
from conf import Settings
from server_app.build import build_population

ClassCounts = NDArray[np.int64]


@dataclass(frozen=True)
class ClientRow:
    """One client.

    Attributes
    ----------
    client : int
        Its id.
    priority : bool
        Whether the settings give it priority.
    held_out : bool
        Whether the settings keep it from training.
    train, test : int
        Samples of its training and its test part.
    train_counts, test_counts : array of int64, optional
        (L,), samples of each class; None where the targets are no classes.
    availability : float, optional
        The share of rounds in which the simulated availability has it there; None for a trace.
    """

    client: int
    priority: bool
    held_out: bool
    train: int
    test: int
    train_counts: ClassCounts | None
    test_counts: ClassCounts | None
    availability: float | None

    @property
    def classes(self) -> int | None:
        """Number of classes in its training part."""
        return None if self.train_counts is None else int(np.count_nonzero(self.train_counts))


def build_client_rows(settings: Settings) -> list[ClientRow]:
    """Return the clients of a run with these settings, by id.

    Raises
    ------
    DataError
        If the data is not where the settings say.
    SettingsError
        If the settings and the data do not fit together.
    """
    data = load_data(settings.data, settings.seed)
    population = build_population(settings, data)
    rates = compute_participation_rates(settings, data)
    available = None if rates is None else rates.mean_rates.tolist()
    return [
        _build_row(data, population, client, None if available is None else available[client])
        for client in range(data.num_clients)
    ]


def _build_row(
    data: FederatedData, population: Population, client: int, availability: float | None
) -> ClientRow:
    targets = data.get_targets(client)
    counts: list[ClassCounts | None] = [
        np.bincount(y, minlength=data.num_classes) if y.ndim == 1 and y.dtype == np.int64 else None
        for y in targets
    ]
    sizes = [len(y) for y in targets]
    return ClientRow(
        client=client,
        priority=client in population.priority,
        held_out=client in population.held_out,
        train=sizes[0],
        test=sizes[1],
        train_counts=counts[0],
        test_counts=counts[1],
        availability=availability,
    )


def find_data_warnings(rows: Sequence[ClientRow], batch_size: int) -> list[str]:
    """Return what may surprise in a run on these clients, a sentence each."""
    few = [row.client for row in rows if row.train < batch_size]
    single = [row.client for row in rows if row.classes == 1]
    untested = [
        row.client
        for row in rows
        if row.test_counts is not None and np.count_nonzero(row.test_counts) == 1
    ]
    found = []
    if few:
        found.append(
            f"{_format_clients(few)} fewer training samples than client.batch_size ({batch_size}), so "
            "that an epoch is one smaller batch"
        )
    if single:
        found.append(f"{_format_clients(single)} only one class in training")
    if untested:
        found.append(
            f"{_format_clients(untested)} only one class in testing, so that AUROC is undefined"
        )
    return found


def _format_clients(ids: Sequence[int]) -> str:
    shown = ", ".join(map(str, ids[:8])) + (", .." if len(ids) > 8 else "")  # noqa: PLR2004 - a line
    many = len(ids) > 1
    return f"{len(ids)} client{'s' if many else ''} ({shown}) {'have' if many else 'has'}"


def write_clients_csv(rows: Sequence[ClientRow], path: Path) -> None:
    """Write one line for each client, with the samples of each class where there are classes.

    Raises
    ------
    OSError
        If the file cannot be written.
    """
    first = rows[0].train_counts
    classes = range(0 if first is None else len(first))
    header = ["client", "priority", "held_out", "train", "test", "classes", "available"]
    header += [f"{part}_class_{c}" for part in ("train", "test") for c in classes]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        for row in rows:
            groups = (int(row.priority), int(row.held_out))
            cells = [row.client, *groups, row.train, row.test, row.classes, row.availability]
            parts = [part for part in (row.train_counts, row.test_counts) if part is not None]
            writer.writerow([*cells, *(int(count) for part in parts for count in part)])
