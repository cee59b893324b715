"""What every partition returns."""

from dataclasses import dataclass

import numpy as np

from client_app.data.base import Labels
from client_app.data.split import Rows

__all__ = ["Rows", "Shares", "rows_by_class"]


@dataclass(frozen=True)
class Shares:
    """The rows of one client in the training and in the test set."""

    train: Rows
    test: Rows


def rows_by_class(labels: Labels, rng: np.random.Generator) -> dict[int, Rows]:
    """Return the rows of each class that there is, in random order."""
    shuffled = rng.permutation(len(labels))
    return {int(c): shuffled[labels[shuffled] == c] for c in np.unique(labels)}
