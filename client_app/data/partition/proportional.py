"""Classes divided in proportion to the clients' class shares, so that clients differ in size."""

import numpy as np
from fedquorum.errors import SettingsError
from fedquorum.rng import make_generator
from numpy.typing import NDArray

from client_app.data.base import Labels
from client_app.data.partition.base import ClientSplit, Rows, group_rows_by_class


def partition_proportionally(
    train_labels: Labels, test_labels: Labels, *, num_clients: int, alpha: float, seed: int
) -> list[ClientSplit]:
    """Give client n of the rows of class c the share kappa_n,c / sum_m kappa_m,c.

    kappa_n ~ Dir(alpha) over the L classes, shape (L,), drawn for each client. Every row is dealt,
    and clients differ in size: client n has sum_c n_c kappa_n,c / sum_m kappa_m,c rows of the n_c
    of each class. Of a class the rows from floor(n_c q_n-1) to floor(n_c q_n) are client n's, where
    q_n is the sum of the shares of the clients up to n. Test rows are dealt by the same kappa_n.

    Near alpha = 0 a client has one class, at infinity all are alike.

    Raises
    ------
    SettingsError
        If a client is left without training or test rows.

    References
    ----------
    The authors' code of Wang and Ji, A lightweight method for tackling unknown participation
    statistics in federated averaging (ICLR 2024).
    """
    classes = np.unique(train_labels)
    kappa = make_generator(seed, "proportional-classes").dirichlet(
        np.full(len(classes), float(alpha)), num_clients
    )  # (N, L)
    total = np.maximum(kappa.sum(axis=0), np.finfo(float).tiny)
    ends = np.minimum(np.cumsum(kappa, axis=0) / total, 1.0)  # (N, L), the last row is 1
    ends[-1] = 1.0
    place = {int(c): i for i, c in enumerate(classes)}
    train, test = (
        _assign_rows(labels, ends, place, seed, f"proportional-{part}")
        for part, labels in (("train", train_labels), ("test", test_labels))
    )
    for client, (rows, tested) in enumerate(zip(train, test, strict=True)):
        if not len(rows) or not len(tested):
            raise SettingsError(
                "data.num_clients must be small enough, and data.alpha large enough, for every "
                f"client to have training and test rows, got {num_clients} and {alpha}: client "
                f"{client} has {len(rows)} and {len(tested)}"
            )
    return [ClientSplit(rows, tested) for rows, tested in zip(train, test, strict=True)]


def _assign_rows(
    labels: Labels, ends: NDArray[np.float64], class_index: dict[int, int], seed: int, purpose: str
) -> list[Rows]:
    """Return each client's rows, those of each class between its neighbors' ends."""
    parts: list[list[Rows]] = [[np.zeros(0, dtype=np.int64)] for _ in ends]
    for c, rows in group_rows_by_class(labels, make_generator(seed, purpose)).items():
        if c in class_index:
            cuts = np.floor(len(rows) * ends[:-1, class_index[c]]).astype(np.int64)
            for found, part in zip(parts, np.split(rows, cuts), strict=True):
                found.append(part)
    return [np.concatenate(found) for found in parts]
