"""Define the result of every source of arrays."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from client_app.data.base import Labels, LazyArray, Samples, Targets
from client_app.data.split import Rows

IGNORED_TARGET = -100
"""The target of a position of a sequence at which nothing is to be predicted."""


@dataclass(frozen=True)
class LabeledArrays:
    """One data set as it is published: n training and m test samples, each with its target.

    ``x_train`` (n, ...) and ``x_test`` (m, ...) are images as read, uint8 (n, height, width) or
    (n, height, width, channels), sound as read, int16 (n, length), tokens, int32 (n, length) from
    0 to ``num_tokens`` - 1, or float32 of any shape. They are arrays, which may be mapped from a
    file, or collections that read a sample when it is asked for.

    ``y_train`` and ``y_test`` are classes, int64 (n,), from 0 to ``num_classes`` - 1; or at every
    position of a sequence the token that comes next, int64 (n, length), ``NO_TARGET`` where there
    is none; or numbers, float32 (n,), with 1 as ``num_classes``.

    Where the data has clients of its own, ``client_train`` (n,) and perhaps ``client_test`` (m,),
    int64, say whose each sample is, and perhaps ``client_names``, by these numbers, what they are
    called. ``pooled`` data has no test set: its second part is the first
    once more, and test rows are taken out of the training rows before these are used. Rows of
    ``groups`` (n,), int64, with the same number then stay together.

    Where the arrays depend on what is trained on, as a vocabulary does, ``build_for_training`` returns
    those of the training rows that clients have, with the same rows.

    Raises
    ------
    ValueError
        If the parts do not fit together.
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
    groups: Labels | None = None
    client_names: tuple[str, ...] | None = None
    build_for_training: "Callable[[Rows], LabeledArrays] | None" = None

    @property
    def has_classes(self) -> bool:
        """Whether the target of a sample is one class."""
        return self.y_train.ndim == 1 and self.y_train.dtype == np.int64

    @property
    def strata(self) -> Labels:
        """What training rows are divided by where test rows are taken out of them, (n,)."""
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
        if self.x_train.dtype != self.x_test.dtype:  # scaled by their type, and not alike
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
            labels = y[y != IGNORED_TARGET]
            if not labels.size:
                raise ValueError(f"y_{split} must have a target, got {IGNORED_TARGET} everywhere")
        if labels.min() < 0 or labels.max() >= self.num_classes:
            raise ValueError(
                f"y_{split} must be classes from 0 to {self.num_classes - 1}, got "
                f"{labels.min()} to {labels.max()}"
            )


def count_classes(num_classes: int | None, *splits: Labels) -> int:
    """Return the number of classes, as given or as the labels >= 0 of all parts tell.

    Raises
    ------
    ValueError
        If it is not given and a class below the highest label has no sample: then a label that is
        out of range would pass for a class.
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
