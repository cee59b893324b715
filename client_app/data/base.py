"""What a federated data set offers."""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Inputs = NDArray[np.float32]
Labels = NDArray[np.int64]


@dataclass(frozen=True)
class ClientData:
    """One client's own data: inputs (n, *input_shape) float32, labels (n,) int64.

    The test part is drawn like the training part and shares no row with any client's
    training part.
    """

    x_train: Inputs
    y_train: Labels
    x_test: Inputs
    y_test: Labels


class FederatedData(Protocol):
    """Data of ``num_clients`` clients; depends on the settings and the seed alone."""

    @property
    def num_clients(self) -> int:
        """Number of clients, ids from 0."""

    @property
    def priority(self) -> tuple[int, ...]:
        """The priority clients that the settings ask for, ascending."""

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input."""

    @property
    def num_classes(self) -> int:
        """Number of classes."""

    def client(self, client: int) -> ClientData:
        """Return the data of one client."""

    def labels(self, client: int) -> Labels:
        """Return the training labels of one client, without making its inputs where possible."""


def scaled_images(images: NDArray[Any]) -> Inputs:
    """Return images as float32 (n, channels, height, width) in [0, 1].

    Parameters
    ----------
    images : array of uint8
        (n, height, width), which is one channel, or (n, height, width, channels).
    """
    grey = images.ndim == len(("n", "height", "width"))
    channels_first = images[:, None] if grey else np.moveaxis(images, -1, 1)
    scaled: Inputs = np.ascontiguousarray(channels_first, dtype=np.float32) / np.float32(255)
    return scaled


def scaled_sound(samples: NDArray[Any]) -> Inputs:
    """Return waveforms of int16 (n, length) as float32 (n, 1, length) in [-1, 1), v / 32768."""
    scaled: Inputs = samples[:, None].astype(np.float32) / np.float32(32768)
    return scaled


def one_line(error: Exception) -> str:
    """Return what a library says of its failure, to end a message of one line."""
    return " ".join(str(error).split())
