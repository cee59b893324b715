"""Build one row for each client: its samples, their classes, and its availability."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from fedquorum.records.client_names import MAX_LABEL_LENGTH, ClientNames
from fedquorum.rules.types import Population
from fedquorum.sanitize import sanitize
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray
from rich.markup import escape
from rich.table import Table

from client_app.data import FederatedData, load_data
from client_app.data.describe import list_class_names
from client_app.simulation.availability import compute_participation_rates
from conf import Settings
from server_app.runs.build import build_population

ClassCounts = NDArray[np.int64]


@dataclass(frozen=True)
class ClientRow:
    """The data and the groups of one client.

    Attributes
    ----------
    client : int
        The client's id.
    name, label : str
        The client in texts and, shorter, in charts; see ``ClientNames``.
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
    class_names : tuple of str
        The names of the L classes; their numbers if they have none.
    """

    client: int
    name: str
    label: str
    priority: bool
    held_out: bool
    train: int
    test: int
    train_counts: ClassCounts | None
    test_counts: ClassCounts | None
    availability: float | None
    class_names: tuple[str, ...]

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
    availability = [None] * data.num_clients if rates is None else rates.mean_rates.tolist()
    names = ClientNames.from_list(data.client_names, recorded=settings.data.names)
    return [
        _build_row(data, population, names, client, availability[client])
        for client in range(data.num_clients)
    ]


def _build_row(
    data: FederatedData,
    population: Population,
    names: ClientNames,
    client: int,
    availability: float | None,
) -> ClientRow:
    targets = data.get_targets(client)
    counts: list[ClassCounts | None] = [
        np.bincount(y, minlength=data.num_classes) if y.ndim == 1 and y.dtype == np.int64 else None
        for y in targets
    ]
    sizes = [len(y) for y in targets]
    return ClientRow(
        client=client,
        name=names.format(client),
        label=names.format_label(client),
        priority=client in population.priority,
        held_out=client in population.held_out,
        train=sizes[0],
        test=sizes[1],
        train_counts=counts[0],
        test_counts=counts[1],
        availability=availability,
        class_names=tuple(sanitize(n, MAX_LABEL_LENGTH) for n in list_class_names(data)),
    )


def find_data_warnings(rows: Sequence[ClientRow], batch_size: int) -> list[str]:
    """Return warnings about surprising properties of these clients, one sentence each."""
    below_batch = [row.name for row in rows if row.train < batch_size]
    single_class = [row.name for row in rows if row.classes == 1]
    single_test_class = [
        row.name
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


def _format_clients(names: Sequence[str]) -> str:
    plural = len(names) > 1
    shown = ", ".join(names[:8]) + (", .." if len(names) > 8 else "")  # noqa: PLR2004 - a line
    return f"{len(names)} client{'s' if plural else ''} ({shown}) {'have' if plural else 'has'}"


def write_clients_csv(rows: Sequence[ClientRow], path: Path) -> None:
    """Write one line for each client, with the samples of each class if there are classes.

    Raises
    ------
    OSError
        If the file cannot be written.
    """
    classes = () if rows[0].train_counts is None else rows[0].class_names
    header = ["client", "name", "priority", "held_out", "train", "test", "classes", "available"]
    header += [f"{split}_class_{c}" for split in ("train", "test") for c in classes]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        for row in rows:
            groups = (int(row.priority), int(row.held_out))
            cells = [
                row.client,
                row.name,
                *groups,
                row.train,
                row.test,
                row.classes,
                row.availability,
            ]
            splits = [
                counts for counts in (row.train_counts, row.test_counts) if counts is not None
            ]
            writer.writerow([*cells, *(int(count) for counts in splits for count in counts)])


MAX_CLASS_COLUMNS = 12
MAX_CLIENT_ROWS = 100
NUM_TRUNCATED_ROWS = 50
FIGURE_SIZE = (6.0, 5.0)
MAX_CLASS_TICKS = 25
MAX_CLIENT_TICKS = 40
MAX_LEVEL_LENGTH = 2  # longer names of classes are turned


def build_clients_table(rows: Sequence[ClientRow], title: str) -> Table:
    """Return a table with one line for each client; with over 100 clients, for the first 50.

    It has a column for each class if there are at most 12 classes.
    """
    counts = rows[0].train_counts
    per_class = counts is not None and len(counts) <= MAX_CLASS_COLUMNS
    shown = rows[: _count_shown_rows(rows)]
    varies = any(row.availability != 1 for row in rows)
    table = Table(title=title, title_justify="left")
    table.add_column("client", justify="right", no_wrap=True)
    table.add_column("priority", justify="center", no_wrap=True)
    names = ["training", "test"]
    names += ["classes"] if counts is not None else []
    names += ["available"] if varies else []
    names += [f"class {name}" for name in rows[0].class_names] if per_class else []
    has_held_out = any(row.held_out for row in rows)
    if has_held_out:
        table.add_column("held out", justify="center", no_wrap=True)
    for name in names:
        table.add_column(escape(name), justify="right", no_wrap=True)
    for row in shown:
        cells = [escape(row.name), "yes" if row.priority else ""]
        cells += ["yes" if row.held_out else ""] if has_held_out else []
        cells += [str(row.train), str(row.test)]
        if row.train_counts is not None:
            cells.append(str(row.classes))
        if varies:
            cells.append("" if row.availability is None else f"{row.availability:.3f}")
        if row.train_counts is not None and per_class:
            cells += [str(count) if count else "" for count in row.train_counts.tolist()]
        table.add_row(*cells)
    return table


def _count_shown_rows(rows: Sequence[ClientRow]) -> int:
    return len(rows) if len(rows) <= MAX_CLIENT_ROWS else NUM_TRUNCATED_ROWS


def format_totals(rows: Sequence[ClientRow]) -> str:
    """Summarize all clients in one sentence, to follow the table."""
    train = np.array([row.train for row in rows])
    tests = sum(row.test for row in rows)
    text = (
        f"{len(rows)} clients, {sum(row.priority for row in rows)} with priority"
        f"{_format_held_out(rows)}; "
        f"{train.sum()} training and {tests} test samples; a client has {train.min()} to "
        f"{train.max()} training samples, median {np.median(train):g}"
    )
    shown = _count_shown_rows(rows)
    return text + (f"; the first {shown} are shown" if shown < len(rows) else "")


def _format_held_out(rows: Sequence[ClientRow]) -> str:
    held_out = sum(row.held_out for row in rows)
    return f", {held_out} never train" if held_out else ""


def draw_clients_figure(rows: Sequence[ClientRow], title: str) -> Figure:
    """Return a heat map of training samples, clients x classes; without classes, a bar chart.

    A triangle on the right marks the clients with priority, unless all clients have it.
    """
    figure = Figure(figsize=FIGURE_SIZE, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.set(title=title, ylabel="client")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    if len(rows) <= MAX_CLIENT_TICKS and any(row.name != str(row.client) for row in rows):
        axes.set_yticks([row.client for row in rows], [row.label for row in rows], parse_math=False)
    counts = [row.train_counts for row in rows if row.train_counts is not None]
    right = 1.0
    if counts:
        matrix = np.stack(counts)
        image = axes.imshow(
            np.ma.masked_equal(matrix, 0),
            aspect="auto",
            cmap="viridis_r",
            vmin=0,
            interpolation="nearest",
        )
        figure.colorbar(image, ax=axes, label="training samples (white: none)")
        axes.set_xlabel("class")
        right = matrix.shape[1] - 0.5
        if matrix.shape[1] <= MAX_CLASS_TICKS:
            names = rows[0].class_names
            axes.set_xticks(range(matrix.shape[1]), names, parse_math=False)
            if max(map(len, names)) > MAX_LEVEL_LENGTH:
                axes.tick_params("x", rotation=90)
    else:
        sizes = [row.train for row in rows]
        axes.barh(range(len(rows)), sizes, color="#0072B2")
        axes.set_xlabel("training samples")
        axes.invert_yaxis()
        right = max(sizes)
    priority = [row.client for row in rows if row.priority]
    if len(priority) < len(rows):
        axes.plot(
            [right] * len(priority), priority, "<", color="#D55E00", clip_on=False, label="priority"
        )
        figure.legend(loc="outside lower center", frameon=False)
    return figure
