"""What every source of arrays returns."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from client_app.data.base import Inputs, Labels

Samples = NDArray[np.uint8] | NDArray[np.int16] | Inputs


@dataclass(frozen=True)
class LabelledArrays:
    """One data set as it is published: n training and m test samples, each with its class.

    ``x_train`` (n, ...) and ``x_test`` (m, ...) are images as read, uint8 (n, height, width) or
    (n, height, width, channels), sound as read, int16 (n, length), or float32 of any shape.
    ``y_train`` (n,) and ``y_test`` (m,) are int64, from 0 to ``num_classes`` - 1. Where the data
    has clients of its own, ``client_train`` (n,) and perhaps ``client_test`` (m,), int64, say
    whose each sample is.

    Raises
    ------
    ValueError
        If the parts do not fit together.
    """

    x_train: Samples
    y_train: Labels
    x_test: Samples
    y_test: Labels
    num_classes: int
    client_train: Labels | None = None
    client_test: Labels | None = None

    def __post_init__(self) -> None:
        for part, x, y in (
            ("train", self.x_train, self.y_train),
            ("test", self.x_test, self.y_test),
        ):
            if len(x) != len(y) or not len(y):
                raise ValueError(
                    f"x_{part} and y_{part} must have equally many rows, at least one, got "
                    f"{len(x)} and {len(y)}"
                )
            if y.min() < 0 or y.max() >= self.num_classes:
                raise ValueError(
                    f"y_{part} must be classes from 0 to {self.num_classes - 1}, got "
                    f"{y.min()} to {y.max()}"
                )
        for part, y, clients in (
            ("train", self.y_train, self.client_train),
            ("test", self.y_test, self.client_test),
        ):
            if clients is not None and len(clients) != len(y):
                raise ValueError(
                    f"client_{part} and y_{part} must have equally many rows, got {len(clients)} "
                    f"and {len(y)}"
                )
        if self.x_train.shape[1:] != self.x_test.shape[1:]:
            raise ValueError(
                "samples of x_train and x_test must have the same shape, got "
                f"{self.x_train.shape[1:]} and {self.x_test.shape[1:]}"
            )
