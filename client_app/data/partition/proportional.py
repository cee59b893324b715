"""Partition each class in proportion to the clients' class shares, so that sizes differ."""

import numpy as np
from fedquorum.errors import SettingsError
from fedquorum.rng import make_generator
from numpy.typing import NDArray

from client_app.data.base import Labels
from client_app.data.partition.base import ClientSplit, Rows, group_rows_by_class


def partition_proportionally(
    train_labels: Labels, test_labels: Labels, *, num_clients: int, alpha: float, seed: int
) -> list[ClientSplit]:
    """Give client n the fraction kappa_n,c / sum_m kappa_m,c of the rows of class c.

    kappa_n ~ Dir(alpha) over the L classes, shape (L,), is drawn for each client. Every row is
    assigned, and clients differ in size: with n_c rows in class c, client n has
    sum_c n_c kappa_n,c / sum_m kappa_m,c rows. Client n gets the rows of a class from
    floor(n_c q_n-1) to floor(n_c q_n), where q_n is the sum of the fractions of the clients up to
    n. Test rows are assigned by the same kappa_n.

    Near alpha = 0 a client has one class; as alpha goes to infinity all clients have the same
    distribution.

    Raises
    ------
    SettingsError
        If a client is left without training or test rows.

    References
    ----------
    The authors' code for Wang and Ji, A lightweight method for tackling unknown participation
    statistics in federated averaging (ICLR 2024).
    """
    classes = np.unique(train_labels)
    kappa = make_generator(seed, "proportional-classes").dirichlet(
        np.full(len(classes), float(alpha)), num_clients
    )  # (N, L)
    total = np.maximum(kappa.sum(axis=0), np.finfo(float).tiny)
    ends = np.minimum(np.cumsum(kappa, axis=0) / total, 1.0)  # (N, L), the last row is 1
    ends[-1] = 1.0
    class_index = {int(c): i for i, c in enumerate(classes)}
    train, test = (
        _assign_rows(labels, ends, class_index, seed, f"proportional-{split}")
        for split, labels in (("train", train_labels), ("test", test_labels))
    )
    for client, (train_rows, test_rows) in enumerate(zip(train, test, strict=True)):
        if not len(train_rows) or not len(test_rows):
            raise SettingsError(
                "data.num_clients must be small enough, and data.alpha large enough, for every "
                f"client to have training and test rows, got {num_clients} and {alpha}: client "
                f"{client} has {len(train_rows)} and {len(test_rows)}"
            )
    return [
        ClientSplit(train_rows, test_rows)
        for train_rows, test_rows in zip(train, test, strict=True)
    ]


def _assign_rows(
    labels: Labels, ends: NDArray[np.float64], class_index: dict[int, int], seed: int, purpose: str
) -> list[Rows]:
    """Return each client's rows; ``ends`` has the cumulative fractions of each class (N, L)."""
    rows_by_client: list[list[Rows]] = [[np.zeros(0, dtype=np.int64)] for _ in ends]
    for c, rows in group_rows_by_class(labels, make_generator(seed, purpose)).items():
        if c in class_index:
            cuts = np.floor(len(rows) * ends[:-1, class_index[c]]).astype(np.int64)
            for client_rows, client_part in zip(rows_by_client, np.split(rows, cuts), strict=True):
                client_rows.append(client_part)
    return [np.concatenate(client_rows) for client_rows in rows_by_client]
