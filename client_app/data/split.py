"""Split one client's rows into training, validation and test rows."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from fedquorum.rng import make_generator
from fedquorum.rules.rounding import round_half_even
from numpy.typing import NDArray

from client_app.data.base import Labels

Rows = NDArray[np.int64]


def split_client(
    labels: Labels,
    fraction: float,
    *,
    client: int,
    seed: int,
    groups: Labels | None = None,
    purpose: str = "own-split",
) -> tuple[Rows, Rows]:
    """Divide the rows of a client at random into a training and a test split.

    Of n rows round(fraction * n) are for testing, but at least one and at most n - 1. They are
    divided among the classes in proportion to their rows, by largest remainders, with ties broken
    at random. A class retains at least one row for training if the others have enough for testing.

    Parameters
    ----------
    labels : array of int
        The class of every row, n >= 2.
    fraction : float
        In (0, 1).
    client : int
        The client's id, which selects its random stream.
    seed : int
        The run's seed.
    groups : array of int, optional
        Rows with the same number stay together: the groups are divided instead, regardless of their
        labels, and there must be at least two.
    purpose : str
        The purpose of the random stream.

    Returns
    -------
    train, test : array of int
        Positions in ``labels``, ascending; each is in exactly one of the two.

    Raises
    ------
    ValueError
        If there are fewer than two rows, or groups.
    """
    if groups is not None:
        numbers, group = np.unique(groups, return_inverse=True)
        if len(numbers) < len(("train", "test")):
            raise ValueError(f"two parts need at least 2 groups of rows, got {len(numbers)}")
        same_label = np.zeros(len(numbers), dtype=np.int64)
        _, chosen_groups = split_client(
            same_label, fraction, client=client, seed=seed, purpose=purpose
        )
        testing = np.isin(group, chosen_groups)
        return np.flatnonzero(~testing), np.flatnonzero(testing)
    n = len(labels)
    if n < len(("train", "test")):
        raise ValueError(f"two parts need at least 2 rows, got {n}")
    rng = make_generator(seed, purpose, client=client)
    size = min(max(1, round_half_even(fraction, n)), n - 1)
    classes, counts = np.unique(labels, return_counts=True)
    order = rng.permutation(len(classes))
    classes, counts = classes[order], counts[order]
    limit = counts - 1 if n - len(classes) >= size else counts
    exact = size * counts / n
    allocated = np.minimum(np.floor(exact).astype(np.int64), limit)
    while allocated.sum() < size:
        allocated[np.argmax(np.where(allocated < limit, exact - allocated, -np.inf))] += 1
    chosen = np.zeros(n, dtype=np.bool_)
    for label, count in zip(classes, allocated, strict=True):
        chosen[rng.permutation(np.flatnonzero(labels == label))[:count]] = True
    return np.flatnonzero(~chosen), np.flatnonzero(chosen)


def split_latest(order: NDArray[Any], fraction: float) -> tuple[Rows, Rows]:
    """Divide rows into earlier ones and the latest ones.

    Of n rows round(fraction * n) are the latest, but at least one and at most n - 1. Of rows with
    the same time, the last ones are the latest.

    Parameters
    ----------
    order : array
        The time of every row, n >= 2.
    fraction : float
        In (0, 1).

    Returns
    -------
    earlier, latest : array of int
        Positions in ``order``, ascending; each is in exactly one of the two.

    Raises
    ------
    ValueError
        If there are fewer than two rows.
    """
    n = len(order)
    if n < len(("train", "test")):
        raise ValueError(f"two parts need at least 2 rows, got {n}")
    size = min(max(1, round_half_even(fraction, n)), n - 1)
    by_time = np.argsort(order, kind="stable")
    return np.sort(by_time[:-size]), np.sort(by_time[-size:])


@dataclass(frozen=True, eq=False)
class RowDivision:
    """What the data tells about the division of n rows into splits; by default, nothing.

    Attributes
    ----------
    groups : array of int, optional
        (n,); rows with the same number stay in one split.
    order : array of int, optional
        (n,), the time of each row; the latest ones are for testing, and of those for training the
        latest ones for validation. Not together with ``groups``.
    is_test : array of bool, optional
        (n,), whether the data has the row for testing.
    is_validation : array of bool, optional
        (n,), whether the row is for validation, and thus not for testing, with every seed.
    """

    groups: Labels | None = None
    order: Labels | None = None
    is_test: NDArray[np.bool_] | None = None
    is_validation: NDArray[np.bool_] | None = None

    @property
    def draws_test_rows(self) -> bool:
        """Whether each seed draws other rows for testing."""
        return self.is_test is None and self.order is None

    def select(self, rows: NDArray[Any]) -> "RowDivision":
        """Return the division of some rows, given by positions or a mask."""
        return RowDivision(
            *(
                None if values is None else values[rows]
                for values in (self.groups, self.order, self.is_test, self.is_validation)
            )
        )

    def fix_validation(self, rows: Rows, num_rows: int) -> "RowDivision":
        """Return the division of n rows with these for validation, whichever seed divides them."""
        is_validation = np.isin(np.arange(num_rows), rows)
        return replace(self, is_validation=is_validation)

    def split_test(
        self, labels: Labels, fraction: float, *, client: int, seed: int
    ) -> tuple[Rows, Rows]:
        """Divide a client's rows (n,) into a training and a test split, see ``split_client``."""
        if self.is_test is not None:
            return np.flatnonzero(~self.is_test), np.flatnonzero(self.is_test)
        if self.order is not None:
            return split_latest(self.order, fraction)
        if self.is_validation is None:
            return split_client(labels, fraction, client=client, seed=seed, groups=self.groups)
        return self._split_others(labels, fraction, client=client, seed=seed)

    def _split_others(
        self, labels: Labels, fraction: float, *, client: int, seed: int
    ) -> tuple[Rows, Rows]:
        """Draw as many test rows as from all rows, but none of those for validation."""
        assert self.is_validation is not None
        others = np.flatnonzero(~self.is_validation)
        units = np.arange(len(labels)) if self.groups is None else self.groups
        fraction *= len(np.unique(units)) / len(np.unique(units[others]))
        groups = None if self.groups is None else self.groups[others]
        _, drawn = split_client(labels[others], fraction, client=client, seed=seed, groups=groups)
        test = others[drawn]
        return np.setdiff1d(np.arange(len(labels)), test), test

    def split_validation(
        self, labels: Labels, fraction: float, *, client: int, seed: int
    ) -> tuple[Rows, Rows]:
        """Divide training rows (n,), see ``split_validation``."""
        if self.order is not None and fraction and len(self.order) > 1:
            return split_latest(self.order, fraction)
        if self.is_validation is not None:
            validation = np.flatnonzero(self.is_validation)
            if len(validation) == len(labels):  # one row is to train on
                validation = validation[1:]
            return np.setdiff1d(np.arange(len(labels)), validation), validation
        return split_validation(labels, fraction, client=client, seed=seed, groups=self.groups)


def split_validation(
    labels: Labels, fraction: float, *, client: int, seed: int, groups: Labels | None = None
) -> tuple[Rows, Rows]:
    """Divide a client's training rows into rows for training and rows for validation.

    The test split does not depend on the fraction, because the random stream is separate. A client
    with a single training row, or a single group of them, has no validation rows.

    Parameters
    ----------
    labels : array of int
        The class of every training row, (n,).
    fraction : float
        ``data.validation_fraction``, in [0, 1): of n rows, round(fraction * n), at least one; 0
        for none.
    client, seed, groups
        As for ``split_client``.

    Returns
    -------
    train, validation : array of int
        Positions in ``labels``, ascending; each is in exactly one of the two.
    """
    units = labels if groups is None else np.unique(groups)
    if fraction == 0 or len(units) < len(("train", "validation")):
        return np.arange(len(labels)), np.zeros(0, dtype=np.int64)
    purpose = "validation-split"
    return split_client(labels, fraction, client=client, seed=seed, groups=groups, purpose=purpose)
