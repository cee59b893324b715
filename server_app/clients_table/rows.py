"""Build one row for each client: its samples, their classes, and its availability."""

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
    """The data and the groups of one client.

    Attributes
    ----------
    client : int
        The client's id.
    priority : bool
        Whether the client has priority.
    held_out : bool
        Whether the client never trains.
    train, test : int
        Number of samples in the training and the test split.
    train_counts, test_counts : array of int64, optional
        Samples of each class, shape (L,); None if the targets are no classes.
    availability : float, optional
        The fraction of rounds in which the simulation makes the client available; None for a trace.
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
        """Number of classes in the training split."""
        return None if self.train_counts is None else int(np.count_nonzero(self.train_counts))


def build_client_rows(settings: Settings) -> list[ClientRow]:
    """Return the clients of a run with these settings, by id.

    Raises
    ------
    DataError
        If the data is not at the path in the settings.
    SettingsError
        If the settings and the data contradict each other.
    """
    data = load_data(settings.data, settings.seed)
    population = build_population(settings, data)
    rates = compute_participation_rates(settings, data)
    availability = None if rates is None else rates.mean_rates.tolist()
    return [
        _build_row(data, population, client, None if availability is None else availability[client])
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
    """Return warnings about surprising properties of these clients, one sentence each."""
    below_batch = [row.client for row in rows if row.train < batch_size]
    single_class = [row.client for row in rows if row.classes == 1]
    single_test_class = [
        row.client
        for row in rows
        if row.test_counts is not None and np.count_nonzero(row.test_counts) == 1
    ]
    warnings = []
    if below_batch:
        warnings.append(
            f"{_format_clients(below_batch)} fewer training samples than client.batch_size "
            f"({batch_size}), so that an epoch is one smaller batch"
        )
    if single_class:
        warnings.append(f"{_format_clients(single_class)} only one class in training")
    if single_test_class:
        warnings.append(
            f"{_format_clients(single_test_class)} only one class in testing, so that AUROC is "
            "undefined"
        )
    return warnings


def _format_clients(ids: Sequence[int]) -> str:
    shown = ", ".join(map(str, ids[:8])) + (", .." if len(ids) > 8 else "")  # noqa: PLR2004 - a line
    plural = len(ids) > 1
    return f"{len(ids)} client{'s' if plural else ''} ({shown}) {'have' if plural else 'has'}"


def write_clients_csv(rows: Sequence[ClientRow], path: Path) -> None:
    """Write one line for each client, with the samples of each class if there are classes.

    Raises
    ------
    OSError
        If the file cannot be written.
    """
    first = rows[0].train_counts
    classes = range(0 if first is None else len(first))
    header = ["client", "priority", "held_out", "train", "test", "classes", "available"]
    header += [f"{split}_class_{c}" for split in ("train", "test") for c in classes]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        for row in rows:
            groups = (int(row.priority), int(row.held_out))
            cells = [row.client, *groups, row.train, row.test, row.classes, row.availability]
            splits = [
                counts for counts in (row.train_counts, row.test_counts) if counts is not None
            ]
            writer.writerow([*cells, *(int(count) for counts in splits for count in counts)])
