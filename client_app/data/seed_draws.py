"""Find what another seed draws anew, by comparing the data of two seeds.

A comparison over seeds has to know it: seeds that test the same rows, that divide the same rows
anew, and that draw new data vary differently (``server_app.study.paired_statistics``).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from client_app.data.base import FederatedData
from client_app.data.partitioned import PartitionedData

MAX_COMPARED_CLIENTS = 100
"""A division that is drawn anew moves rows of nearly every client."""


@dataclass(frozen=True)
class SeedDraws:
    """What a seed draws anew, beside the start and the order of samples.

    Parameters
    ----------
    data : bool
        All rows, which are generated.
    test_rows, train_rows : bool
        Which rows are tested, and which are trained on.
    division : bool
        Which client has which rows.
    test_to_train : float
        The number of rows tested over the number of rows trained on; rows for validation count
        for neither.
    is_assumed : bool
        Whether nobody could look at the rows, because they are on devices.
    """

    data: bool
    test_rows: bool
    train_rows: bool
    division: bool
    test_to_train: float
    is_assumed: bool = False

    @property
    def draws_rows(self) -> bool:
        """Whether each seed tests other rows."""
        return self.data or self.test_rows

    @property
    def correction(self) -> float:
        """r: ``test_to_train`` if seeds divide the same rows anew into tested and trained ones."""
        return self.test_to_train if self.test_rows and not self.data else 0.0


def find_seed_draws(one: FederatedData, other: FederatedData) -> SeedDraws:
    """Return what differs between the data of two seeds; generated data differs as a whole."""
    if not (isinstance(one, PartitionedData) and isinstance(other, PartitionedData)):
        is_new = not _has_same_targets(one, other)
        return SeedDraws(is_new, is_new, is_new, is_new, _compute_test_to_train(one))
    (_, train), (_, validation), (_, test) = one.list_targets()
    (_, other_train), (_, other_validation), (_, other_test) = other.list_targets()
    compared = range(min(one.num_clients, other.num_clients, MAX_COMPARED_CLIENTS))
    # Where the test rows are part of the same table, a client's rows include them.
    splits = (train, validation, *((test,) if one.has_pooled_rows else ()))
    other_splits = (
        other_train,
        other_validation,
        *((other_test,) if one.has_pooled_rows else ()),
    )
    return SeedDraws(
        data=False,
        test_rows=not _has_same_rows([test.flat], [other_test.flat]),
        train_rows=not _has_same_rows([train.flat], [other_train.flat]),
        division=one.num_clients != other.num_clients
        or not all(
            _has_same_rows([s[k] for s in splits], [s[k] for s in other_splits]) for k in compared
        ),
        test_to_train=len(test.flat) / max(len(train.flat), 1),
    )


def assume_seed_draws(
    test_fraction: float, validation_fraction: float, *, train_rows: bool, test_rows: bool
) -> SeedDraws:
    """Return the draws of devices, as far as the settings say how these split their rows.

    ``train_rows`` and ``test_rows`` say whether they draw the rows trained on and tested.
    """
    train_fraction = (1.0 - test_fraction) * (1.0 - validation_fraction)
    ratio = test_fraction / train_fraction
    return SeedDraws(False, test_rows, train_rows, False, ratio, is_assumed=True)


def _has_same_rows(one: Sequence[NDArray[np.int64]], other: Sequence[NDArray[np.int64]]) -> bool:
    return np.array_equal(np.sort(np.concatenate(one)), np.sort(np.concatenate(other)))


def _has_same_targets(one: FederatedData, other: FederatedData) -> bool:
    return one.num_clients == other.num_clients and all(
        np.array_equal(targets, others)
        for k in range(min(one.num_clients, MAX_COMPARED_CLIENTS))
        for targets, others in zip(one.get_targets(k), other.get_targets(k), strict=True)
    )


def _compute_test_to_train(data: FederatedData) -> float:
    sizes = np.array(
        [[len(targets) for targets in data.get_targets(k)] for k in range(data.num_clients)]
    )
    train, test = sizes.sum(axis=0).tolist()
    return float(test / max(train, 1))
