"""Partition by class distributions from Dirichlet's law."""

import numpy as np
from fedquorum.errors import SettingsError
from fedquorum.rng import derive_seed, make_generator
from numpy.typing import NDArray

from client_app.data.base import Labels
from client_app.data.partition.base import (
    ClientSplit,
    Rows,
    check_rows,
    group_rows_by_class,
    partition_rows,
)

Counts = NDArray[np.int64]


def partition_by_dirichlet(
    train_labels: Labels,
    test_labels: Labels,
    *,
    num_clients: int,
    alpha: float,
    samples_per_client: int | None = None,
    seed: int,
) -> list[ClientSplit]:
    """Give every client equally many training rows, their classes by kappa_n ~ Dir(alpha).

    ``flwr_datasets.partitioner.InnerDirichletPartitioner`` assigns the training rows: row by row to
    a random client, of a class drawn by its kappa_n (L,). When a class has no row left, all kappa_n
    continue without it; so the more of the data is assigned, the closer the clients' combined
    distribution is to that of the data.

    The test rows of each class are assigned in proportion to the clients' training rows of that
    class, rounded so that they add up: client n gets those from floor(m (d_0 + .. + d_n-1) / D)
    to floor(m (d_0 + .. + d_n) / D), where m is the number of test rows of the class, D that of
    training rows and d_n that of client n.

    Near alpha = 0 a client has one class; as alpha goes to infinity all clients have the same
    distribution. ``samples_per_client`` is floor(rows / N) by default.

    Raises
    ------
    SettingsError
        Also if no class is left for a client (for alpha below 0.1, where NumPy's kappa_n may have
        zeros), or if its test split would be empty.

    Notes
    -----
    The clients of FedAU's published code (https://github.com/IBM/fedau) differ in size: it divides
    each class among them in proportion to their kappa_n.

    References
    ----------
    The law: Wang and Ji, A lightweight method for tackling unknown participation statistics in
    federated averaging (ICLR 2024). The assignment: Acar et al., Federated learning based on
    dynamic regularization (ICLR 2021).
    """
    size = samples_per_client or len(train_labels) // num_clients
    check_rows(num_clients, size, len(train_labels))
    train = _assign_training_rows(train_labels, [size] * num_clients, alpha, seed)
    test: list[list[Rows]] = [[] for _ in train]
    for c, rows in group_rows_by_class(test_labels, make_generator(seed, "dirichlet-test")).items():
        counts = np.array(
            [np.count_nonzero(train_labels[rows_of_client] == c) for rows_of_client in train]
        )
        total = int(np.count_nonzero(train_labels == c))
        for test_of_client, rows_of_class in zip(
            test, _split_proportionally(rows, counts, total), strict=True
        ):
            test_of_client.append(rows_of_class)
    splits = [
        ClientSplit(train_rows, np.concatenate(test_rows))
        for train_rows, test_rows in zip(train, test, strict=True)
    ]
    for client, split in enumerate(splits):
        if not len(split.test):
            raise SettingsError(
                "data.samples_per_client must be large enough, and data.num_clients small enough, "
                f"for every client to have test rows, got {size} and {num_clients}: client "
                f"{client} has no fair share of the {len(test_labels)} test rows"
            )
    return splits


def _assign_training_rows(labels: Labels, sizes: list[int], alpha: float, seed: int) -> list[Rows]:
    """Return ``sizes[n]`` training rows for each client n."""
    order = make_generator(seed, "dirichlet-train").permutation(len(labels))
    # Imported on demand: it takes seconds to load.
    from flwr_datasets.partitioner import InnerDirichletPartitioner

    partitioner = InnerDirichletPartitioner(
        partition_sizes=sizes,
        partition_by="label",
        alpha=float(alpha),
        shuffle=False,
        seed=derive_seed(seed, "dirichlet-partitioner"),
    )
    # The partitioner expects classes 0, 1, .. without gaps.
    _, codes = np.unique(labels[order], return_inverse=True)
    try:
        with np.errstate(invalid="ignore"):
            return partition_rows(partitioner, order, label=codes)
    except ValueError as error:  # "Probabilities contain NaN"
        raise SettingsError(
            "data.alpha must be large enough for every client to have a class that is not used "
            f"up (or data.samples_per_client smaller than {sizes[0]}), got {alpha}"
        ) from error


def _split_proportionally(rows: Rows, counts: Counts, total: int) -> list[Rows]:
    """Return the fraction counts (N,) / total of ``rows`` for each client."""
    ends = len(rows) * np.cumsum(counts) // max(total, 1)
    return np.split(rows[: ends[-1]], ends[:-1])
