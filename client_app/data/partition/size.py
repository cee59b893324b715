"""Partition into random rows: equally many for every client, or sizes by Dirichlet's law."""

from typing import Any

import numpy as np
from fedquorum.errors import SettingsError
from fedquorum.rng import make_generator
from numpy.typing import NDArray

from client_app.data.partition.base import ClientSplit, Rows, check_rows, partition_rows


def partition_iid(
    num_train: int,
    num_test: int,
    *,
    num_clients: int,
    samples_per_client: int | None = None,
    seed: int,
) -> list[ClientSplit]:
    """Give every client equally many random rows, by ``flwr_datasets``' IidPartitioner.

    Without ``samples_per_client`` all training rows are assigned, and some clients have one more
    than others. All test rows are assigned in either case.
    """
    used = num_train
    if samples_per_client is not None:
        check_rows(num_clients, samples_per_client, num_train)
        used = num_clients * samples_per_client
    _check_clients(num_clients, used, num_test)
    # Imported on demand: it takes seconds to load.
    from flwr_datasets.partitioner import IidPartitioner

    return _build_client_splits(
        make_generator(seed, "iid-train").permutation(num_train)[:used],
        make_generator(seed, "iid-test").permutation(num_test),
        IidPartitioner(num_clients),
        IidPartitioner(num_clients),
    )


def partition_by_quantity(
    num_train: int, num_test: int, *, num_clients: int, alpha: float, seed: int
) -> list[ClientSplit]:
    """Give every client random rows in numbers proportional to q ~ Dir(alpha), (N,).

    Every client gets one row of the training and of the test set. The others, n - N and m - N, are
    divided by q, rounded to the largest remainders, and assigned by ``flwr_datasets``'
    SizePartitioner. So the classes of all clients have the same distribution, and the ratio of a
    client's test and training rows is that of the whole sets, up to rounding.

    Near alpha = 0 one client has nearly all rows; as alpha goes to infinity all have equally many.

    References
    ----------
    Quantity skew of Li et al., Federated learning on non-IID data silos: an experimental study
    (ICDE 2022).
    """
    _check_clients(num_clients, num_train, num_test)
    from flwr_datasets.partitioner import SizePartitioner

    q = make_generator(seed, "quantity").dirichlet(np.full(num_clients, alpha))
    return _build_client_splits(
        make_generator(seed, "quantity-train").permutation(num_train),
        make_generator(seed, "quantity-test").permutation(num_test),
        SizePartitioner(_compute_sizes(q, num_train)),
        SizePartitioner(_compute_sizes(q, num_test)),
    )


def _compute_sizes(q: NDArray[np.float64], total: int) -> list[int]:
    """Return sizes (N,) of at least 1 that add up to ``total``."""
    exact = (total - len(q)) * q
    sizes = np.floor(exact).astype(np.int64)
    order = np.argsort(sizes - exact, kind="stable")
    sizes[order[: total - len(q) - int(sizes.sum())]] += 1
    return [1 + int(size) for size in sizes]


def _check_clients(num_clients: int, num_train: int, num_test: int) -> None:
    if num_clients > min(num_train, num_test):
        raise SettingsError(
            "data.num_clients must be at most the number of training rows and of test rows, "
            f"{num_train} and {num_test}, got {num_clients}"
        )


def _build_client_splits(
    train: Rows, test: Rows, train_partitioner: Any, test_partitioner: Any
) -> list[ClientSplit]:
    rows = partition_rows(train_partitioner, train), partition_rows(test_partitioner, test)
    return [ClientSplit(*client_rows) for client_rows in zip(*rows, strict=True)]
