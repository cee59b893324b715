"""Partition by the clients that the data itself names."""

from collections.abc import Sequence

import numpy as np
from fedquorum.errors import DataError

from client_app.data.base import Labels, RowIndex
from client_app.data.partition.base import ClientSplit, Partition
from client_app.data.split import RowDivision

ClientOfRow = Labels


def partition_naturally(
    client_train: ClientOfRow,
    y_train: Labels,
    client_test: ClientOfRow | None,
    *,
    test_fraction: float,
    seed: int,
    min_samples: int | None = None,
    division: RowDivision | None = None,
    names: Sequence[str] | None = None,
) -> tuple[Partition, bool]:
    """Give every client that the training set names its rows.

    The ids of ``client_train``, ascending, become clients 0, 1, .. If the test set has rows of
    every client, as for spoken digits by speaker, these rows are the clients' test splits. If it
    has rows of none of them, as for MNIST by writer, or names no clients, then the whole test set
    is left out, and every client's training rows are divided at random, ``test_fraction`` of them
    for testing; see ``RowDivision.split_test``. Test rows of other clients are left out in either
    case.

    Parameters
    ----------
    client_train : array of int
        The client of every training row, (n,).
    y_train : array of int
        The class of every training row, (n,).
    client_test : array of int, optional
        The client of every test row.
    test_fraction : float
        In (0, 1).
    seed : int
        The run's seed.
    min_samples : int, optional
        Clients with fewer training rows, including those for testing, are left out.
    division : RowDivision, optional
        What the data tells about how a client's rows are divided, (n,).
    names : sequence of str, optional
        The clients' names, by their ids in ``client_train``; by default these ids.

    Returns
    -------
    partition : Partition
        By client id; no row occurs twice.
    splits_training : bool
        Whether the test splits are rows of the training set.

    Raises
    ------
    DataError
        If the test set has rows of only some of the clients; if it has none, and a client has fewer
        than two training rows, or a single group of them; or if all clients are left out.
    """
    ids, counts = np.unique(client_train, return_counts=True)
    left_out: dict[str, int] = {}

    def get_client_name(client: int) -> str:
        return str(client if names is None else names[client])

    if min_samples is not None:
        few = counts < min_samples
        pairs = zip(ids[few].tolist(), counts[few].tolist(), strict=True)
        left_out = {get_client_name(client): count for client, count in pairs}
        ids = ids[~few]
        if not len(ids):
            raise DataError(
                "data.min_samples must be at most the number of rows of the largest client, "
                f"{counts.max()}, got {min_samples}"
            )
    kept_names = None if names is None else tuple(names[client] for client in ids)
    train = _group_rows(ids, client_train)
    if client_test is not None and np.isin(ids, client_test).any():
        test = _group_rows(ids, client_test)
        if not test.counts.all():
            name = ids[test.counts == 0][0]
            raise DataError(
                "data.partition must be another than natural where client_test has some clients "
                f"of client_train only (it must have all or none), got no {name}"
            )
        empty = RowIndex.from_mapping({k: np.zeros(0, dtype=np.int64) for k in train})
        return Partition(train, test, empty, left_out, kept_names), False
    splits = []
    division = division or RowDivision()
    for client, (name, rows) in enumerate(zip(ids, train.values(), strict=True)):
        of_client = division.select(rows)
        _check_divisible(get_client_name(name), of_client, len(rows))
        train_positions, test_positions = of_client.split_test(
            y_train[rows], test_fraction, client=client, seed=seed
        )
        splits.append(ClientSplit(rows[train_positions], rows[test_positions]))
    return Partition.from_splits(splits, left_out, kept_names), True


def _check_divisible(client: str, division: RowDivision, count: int) -> None:
    """Raise DataError if a client has not enough rows or groups for two splits."""
    if division.is_test is not None:
        return
    if count == 1:
        raise DataError(
            "data.partition must be another than natural where a client has fewer than 2 rows to "
            f"divide into a training and a test part, got 1 row of client {client} "
            "(data.min_samples=2 leaves such clients out)"
        )
    if division.groups is not None and len(np.unique(division.groups)) == 1:
        raise DataError(
            "data.group_column must have at least 2 values for each client, one for training and "
            f"one for testing, got 1 for client {client} with {count} rows"
        )


def _group_rows(ids: ClientOfRow, client_of_row: ClientOfRow) -> RowIndex:
    """Return the rows of each of ``ids``, ascending, as those of clients 0, 1, ..."""
    order = np.argsort(client_of_row, kind="stable")
    ordered = client_of_row[order]
    starts, ends = (np.searchsorted(ordered, ids, side) for side in ("left", "right"))
    counts = ends - starts
    if counts.sum() < len(order):  # rows of other clients are left out
        order = order[np.isin(ordered, ids)]
    return RowIndex(np.arange(len(ids)), counts, order)
