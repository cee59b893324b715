"""Define the result of every source of arrays."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from client_app.data.base import IGNORE_INDEX, Labels, LazyArray, RowIndex, Samples, Targets
from client_app.data.coding.base import Coding
from client_app.data.moments import Numbers
from client_app.data.scaling import NumberScale
from client_app.data.split import RowDivision, Rows
from client_app.data.summary import DataSummary


@dataclass(frozen=True, eq=False)
class AgreedColumns:
    """The columns of numbers among the inputs whose scale all clients share.

    Attributes
    ----------
    names : tuple of str
        (p,).
    numbers : array of float64
        The numbers of the n training samples, (n, p), NaN for a missing one.
    build_scaled : callable
        Returns the arrays whose inputs have these columns scaled.
    """

    names: tuple[str, ...]
    numbers: Numbers
    build_scaled: "Callable[[NumberScale], LabeledArrays]"


@dataclass(frozen=True)
class LabeledArrays:
    """One data set as published: n training and m test samples with their targets.

    ``x_train`` (n, ...) and ``x_test`` (m, ...) are images as read, uint8 (n, height, width) or
    (n, height, width, channels), sound as read, int16 (n, length), tokens, int32 (n, length) from
    0 to ``num_tokens`` - 1, or float32 of any shape. They are arrays, which may be mapped from a
    file, or a ``LazyArray``.

    ``y_train`` and ``y_test`` are classes, int64 (n,), from 0 to ``num_classes`` - 1; or the next
    token at every position of a sequence, int64 (n, length), ``IGNORE_INDEX`` without a target;
    or numbers, float64 (n,), with 1 as ``num_classes``. Numbers have the unit of the data until
    ``client_app.data.agreed.apply_scales`` makes them float32.

    If the data names its clients, ``client_train`` (n,) and optionally ``client_test`` (m,), int64,
    have the client of each sample, and optionally ``client_names`` the names by these numbers.
    ``class_names`` has those of the classes.
    ``pooled`` data has no test set: its test arrays are the training arrays, and test rows are
    taken from the training rows first, as ``division`` says.

    If the arrays depend on the training rows, as a vocabulary or the scale of a table's numbers
    does, ``build_for_training`` returns the arrays for the clients' training rows, with the same
    row numbers. ``build_for_clients`` does so for the arrays and the rows that each client trains
    on, validates and tests on, where only the partition tells the clients. ``agreed`` has the
    columns whose scale depends on the rows of all clients. ``coding`` is how rows became the
    samples; None if they are arrays in the source itself.

    ``summary`` describes data of which the arrays do not tell all, such as the names of a table's
    columns. Without it, ``files_passed_over`` and ``warnings`` are parts of the summary; see
    ``DataSummary``.

    Raises
    ------
    ValueError
        If the arrays are inconsistent.
    """

    x_train: Samples | LazyArray
    y_train: Targets
    x_test: Samples | LazyArray
    y_test: Targets
    num_classes: int
    client_train: Labels | None = None
    client_test: Labels | None = None
    num_tokens: int | None = None
    pooled: bool = False
    division: RowDivision = field(default_factory=RowDivision)
    client_names: tuple[str, ...] | None = None
    class_names: tuple[str, ...] | None = None
    build_for_training: "Callable[[Rows], LabeledArrays] | None" = None
    agreed: AgreedColumns | None = None
    build_for_clients: "Callable[[LabeledArrays, RowIndex, RowIndex, RowIndex], LabeledArrays] | None" = None  # noqa: E501
    summary: DataSummary | None = None
    files_passed_over: Mapping[str, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    coding: Coding | None = None

    @property
    def has_classes(self) -> bool:
        """Whether the target of a sample is one class."""
        return self.y_train.ndim == 1 and self.y_train.dtype == np.int64

    @property
    def strata(self) -> Labels:
        """The strata (n,) by which test rows are taken from the training rows."""
        return self.y_train if self.has_classes else np.zeros(len(self.y_train), dtype=np.int64)

    def __post_init__(self) -> None:
        for split, x, y in (
            ("train", self.x_train, self.y_train),
            ("test", self.x_test, self.y_test),
        ):
            if len(x) != len(y) or not len(y):
                raise ValueError(
                    f"x_{split} and y_{split} must have equally many rows, at least one, got "
                    f"{len(x)} and {len(y)}"
                )
            self._check_targets(split, y)
        for split, y, clients in (
            ("train", self.y_train, self.client_train),
            ("test", self.y_test, self.client_test),
        ):
            if clients is not None and len(clients) != len(y):
                raise ValueError(
                    f"client_{split} and y_{split} must have equally many rows, got {len(clients)} "
                    f"and {len(y)}"
                )
        if self.x_train.shape[1:] != self.x_test.shape[1:]:
            raise ValueError(
                "samples of x_train and x_test must have the same shape, got "
                f"{self.x_train.shape[1:]} and {self.x_test.shape[1:]}"
            )
        if self.x_train.dtype != self.x_test.dtype:  # the dtype determines the scale
            raise ValueError(
                "samples of x_train and x_test must be of one type, got "
                f"{self.x_train.dtype} and {self.x_test.dtype}"
            )
        if 0 in self.x_train.shape[1:]:
            raise ValueError(f"samples must have numbers, got {self.x_train.shape[1:]}")
        if self.y_train.dtype != self.y_test.dtype or self.y_train.ndim != self.y_test.ndim:
            raise ValueError(
                "y_train and y_test must be of one kind, got "
                f"{self.y_train.dtype} {self.y_train.shape} and "
                f"{self.y_test.dtype} {self.y_test.shape}"
            )

    def _check_targets(self, split: str, y: Targets) -> None:
        if y.dtype != np.int64:
            return
        if self.num_classes < len(("one", "other")):
            raise ValueError(f"there must be at least 2 classes, got {self.num_classes}")
        if y.ndim == 1:
            labels = y
        else:
            labels = y[y != IGNORE_INDEX]
            if not labels.size:
                raise ValueError(f"y_{split} must have a target, got {IGNORE_INDEX} everywhere")
        if labels.min() < 0 or labels.max() >= self.num_classes:
            raise ValueError(
                f"y_{split} must be classes from 0 to {self.num_classes - 1}, got "
                f"{labels.min()} to {labels.max()}"
            )


def count_classes(num_classes: int | None, *splits: Labels) -> int:
    """Return the given number of classes, or that of the labels >= 0 of all splits.

    Raises
    ------
    ValueError
        If it is not given and a class below the highest label has no sample, because an invalid
        label would then count as a class.
    """
    if num_classes is not None:
        return num_classes
    classes = np.unique(np.concatenate(splits))
    for wanted, label in enumerate(classes):
        if label != wanted:
            raise ValueError(
                f"labels must be 0, 1, .. without gaps where data.num_classes is null, got {label} "
                f"but no {wanted}"
            )
    return len(classes)


def build_pooled_arrays(
    x: Samples | LazyArray, y: Targets, num_classes: int, **others: Any
) -> LabeledArrays:
    """Return data without a test set."""
    return LabeledArrays(x, y, x, y, num_classes, pooled=True, **others)
