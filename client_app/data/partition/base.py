"""What every partition returns."""

from dataclasses import dataclass

import numpy as np
from fedquorum.errors import SettingsError

from client_app.data.base import Labels
from client_app.data.split import Rows

__all__ = ["Rows", "Shares", "check_rows", "rows_by_class"]


@dataclass(frozen=True)
class Shares:
    """The rows of one client in the training and in the test set."""

    train: Rows
    test: Rows


def check_rows(num_clients: int, samples_per_client: int, num_train: int) -> None:
    """Compare the training rows that clients of one size need with those there are.

    Raises
    ------
    SettingsError
        If there are fewer, or none for a client.
    """
    if not 0 < num_clients * samples_per_client <= num_train:
        raise SettingsError(
            "data.num_clients * data.samples_per_client must be at most the number of training "
            f"rows, {num_train}, got {num_clients} * {max(samples_per_client, 1)}"
        )


def rows_by_class(labels: Labels, rng: np.random.Generator) -> dict[int, Rows]:
    """Return the rows of each class that there is, in random order."""
    shuffled = rng.permutation(len(labels))
    return {int(c): shuffled[labels[shuffled] == c] for c in np.unique(labels)}
