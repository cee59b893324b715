"""Define the interface of a federated data set."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray

from client_app.arrays import to_device
from client_app.data.summary import DataSummary

Inputs = NDArray[np.float32]
Labels = NDArray[np.int64]
Split = Literal["train", "test", "validation"]
Target = Literal["class", "sequence", "number"]
Targets = NDArray[Any]
"""Classes or next tokens, int64, or numbers, float32."""
Samples = NDArray[Any]

DTYPE_SCALES = {torch.uint8: 255, torch.int16: 32768}
"""What samples of a type are divided by."""


class LazyArray(Protocol):
    """Samples that are read when they are asked for, such as a folder of images."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(n, ...), as of the array of all samples."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the numbers."""

    def __len__(self) -> int:
        """Return n."""

    def __getitem__(self, rows: Any) -> Samples:
        """Return the samples of a slice or of an array of rows.

        Raises
        ------
        DataError
            If one of them cannot be read.
        """


@dataclass(frozen=True)
class ClientData:
    """One client's own data: inputs (n, *input_shape) float32, or int64 where they are tokens.

    The targets are classes, int64 (n,); the next token at every position, int64 (n, length), -100
    where there is none; or numbers, float32 (n,). The test part is drawn like the training part
    and shares no row with any client's training part. The validation part, of no row unless
    ``data.validation_fraction`` is set, is kept from the training part.
    """

    x_train: NDArray[Any]
    y_train: Targets
    x_test: NDArray[Any]
    y_test: Targets
    validation: tuple[NDArray[Any], Targets] | None = None

    def with_validation(self, train: NDArray[np.int64], validation: NDArray[np.int64]) -> Self:
        """Return the data with a training part of some of its rows, and others for validation."""
        x, y = self.x_train, self.y_train
        kept = (x[validation], y[validation])
        return replace(self, x_train=x[train], y_train=y[train], validation=kept)


@dataclass(frozen=True, eq=False)
class RowIndex(Mapping[int, NDArray[np.int64]]):
    """Which rows are each client's, as a mapping by client id without an object for each.

    Parameters
    ----------
    clients : array of int
        The clients' ids, each once, (K,).
    counts : array of int
        How many rows each has, (K,).
    flat : array of int
        The rows of one client after the other.
    """

    clients: NDArray[np.int64]
    counts: NDArray[np.int64]
    flat: NDArray[np.int64]

    @classmethod
    def from_mapping(cls, rows: Mapping[int, NDArray[np.int64]]) -> Self:
        """Return the rows of a mapping, in its order."""
        counts = np.array([len(found) for found in rows.values()], dtype=np.int64)
        flat = np.concatenate([np.zeros(0, np.int64), *rows.values()])
        return cls(np.array(list(rows), dtype=np.int64), counts, flat)

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """Where in ``flat`` the rows of each client begin, (K,)."""
        return np.cumsum(self.counts) - self.counts

    @cached_property
    def _order(self) -> NDArray[np.int64]:
        return np.argsort(self.clients, kind="stable")

    @cached_property
    def _ascending(self) -> NDArray[np.int64]:
        return self.clients[self._order]

    @cached_property
    def _regular(self) -> range | None:
        """The clients where they are evenly spaced, as those of a node are."""
        clients = self.clients
        step = int(clients[1] - clients[0]) if len(clients) > 1 else 1
        if len(clients) == 0 or step <= 0:
            return None
        spaced = range(int(clients[0]), int(clients[-1]) + 1, step)
        return spaced if np.array_equal(clients, np.asarray(spaced)) else None

    def get_index(self, client: int) -> int:
        """Return the place of a client in ``clients``; raises KeyError if it is not there."""
        if self._regular is None:
            return int(self.get_indices([client])[0])
        if client not in self._regular:
            raise KeyError(client)
        return self._regular.index(client)

    def get_span(self, client: int) -> tuple[int, int]:
        """Return where in ``flat`` a client's rows begin, and how many they are."""
        index = self.get_index(client)
        return int(self.starts[index]), int(self.counts[index])

    def get_indices(self, clients: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the places of these clients in ``clients``, (m,).

        Raises
        ------
        KeyError
            For the first one that is not there.
        """
        wanted = np.asarray(clients, dtype=np.int64)
        if not len(self.clients):
            found = np.full(len(wanted), -1)
        else:
            found = np.searchsorted(self._ascending, wanted).clip(max=len(self.clients) - 1)
            found = np.where(self._ascending[found] == wanted, self._order[found], -1)
        if (found < 0).any():
            raise KeyError(int(wanted[found < 0][0]))
        return found

    def select_clients(self, clients: Sequence[int]) -> "RowIndex":
        """Return the rows of these clients, in their order."""
        indices = self.get_indices(clients)
        if np.array_equal(indices, np.arange(len(self.clients))):
            return self
        counts = self.counts[indices]
        begins = self.starts[indices] - (np.cumsum(counts) - counts)
        flat = self.flat[np.repeat(begins, counts) + np.arange(counts.sum())]
        return RowIndex(self.clients[indices], counts, flat)

    def __getitem__(self, client: int) -> NDArray[np.int64]:
        start, count = self.get_span(client)
        return self.flat[start : start + count]

    def __contains__(self, client: object) -> bool:
        if self._regular is not None:
            return client in self._regular
        return super().__contains__(client)

    def __iter__(self) -> Iterator[int]:
        return iter(self.clients.tolist())

    def __len__(self) -> int:
        return len(self.clients)


@dataclass(frozen=True)
class PixelNormalization:
    """Images whose pixels x in [0, 1] are inputs (x - mean_c) / spread_c, channel by channel.

    Attributes
    ----------
    mean, std : tuple of float
        For each channel; float32 numbers, spread above 0.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def normalize(self, pixels: torch.Tensor) -> torch.Tensor:
        """Return the inputs of pixels (n, channels, height, width)."""
        mean, spread = self._get_channels(pixels)
        return pixels.sub(mean).div_(spread)

    def denormalize(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the pixels of inputs (n, channels, height, width), up to rounding."""
        mean, spread = self._get_channels(inputs)
        return inputs.mul(spread).add_(mean)

    def _get_channels(self, like: torch.Tensor) -> list[torch.Tensor]:
        """Return mean and spread, (channels, 1, 1), on the device and in the type of a tensor."""
        return [
            to_device(torch.tensor(numbers, dtype=like.dtype), like.device)[:, None, None]
            for numbers in (self.mean, self.std)
        ]


@dataclass(frozen=True)
class PooledSplit:
    """One part of several clients in arrays that they share.

    Attributes
    ----------
    x : array
        Samples as read, (N, ...): uint8 images, int16 sound, tokens or float32; see
        ``to_inputs``. Or what reads those of some rows.
    y : array
        Targets (N, ...).
    rows : RowIndex
        Which rows are a client's.
    pixel_scale : PixelNormalization, optional
        Of images that are normalized.
    """

    x: NDArray[Any] | LazyArray
    y: Targets
    rows: RowIndex
    pixel_scale: PixelNormalization | None = None


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
        """Number of classes, that of tokens where the next one is the target, 1 for numbers."""

    @property
    def num_tokens(self) -> int | None:
        """Number of different tokens, where the inputs are tokens."""

    @property
    def target(self) -> Target:
        """The kind of target: a class, a class at each position of a sequence, or a number."""

    @property
    def summary(self) -> DataSummary:
        """The interpretation of the data."""

    def get_client(self, client: int) -> ClientData:
        """Return the data of one client."""

    def get_targets(self, client: int) -> tuple[Targets, Targets]:
        """Return the targets of a client's two parts, without making inputs where possible."""

    def get_labels(self, client: int) -> Labels:
        """Return the training labels of one client, without making its inputs where possible.

        Raises
        ------
        SettingsError
            If the targets are no classes.
        """

    def get_pooled_split(self, split: Split, clients: Sequence[int]) -> PooledSplit:
        """Return one part of these clients, without a copy of the arrays where possible."""


def build_pooled_split(arrays_by_client: Mapping[int, tuple[NDArray[Any], Targets]]) -> PooledSplit:
    """Return the pool of clients that have arrays of their own: these, one after the other."""
    counts = np.array([len(y) for _, y in arrays_by_client.values()], dtype=np.int64)
    rows = RowIndex(
        np.array(list(arrays_by_client), dtype=np.int64), counts, np.arange(counts.sum())
    )
    return PooledSplit(
        np.concatenate([x for x, _ in arrays_by_client.values()]),
        np.concatenate([y for _, y in arrays_by_client.values()]),
        rows,
    )


def select_split(data: ClientData, split: Split) -> tuple[NDArray[Any], Targets]:
    """Return inputs and labels of one of a client's parts."""
    if split == "validation":
        return data.validation or (data.x_train[:0], data.y_train[:0])
    return (data.x_train, data.y_train) if split == "train" else (data.x_test, data.y_test)


def to_inputs(samples: NDArray[Any]) -> NDArray[Any]:
    """Return samples as read as a model's inputs, float32 or int64 (n, *input_shape).

    uint8 images become (n, channels, height, width) in [0, 1], int16 sound (n, 1, length) in
    [-1, 1), int32 tokens int64; float32 stays as it is.
    """
    if not samples.flags.writeable:  # as mapped from a file: torch has no such tensors
        samples = samples.copy()
    inputs: NDArray[Any] = to_input_tensor(torch.from_numpy(samples), torch.float32).numpy()
    return inputs


def to_input_tensor(
    samples: torch.Tensor, dtype: torch.dtype, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Return a model's inputs of samples as read, on their device: see ``to_inputs``.

    Parameters
    ----------
    samples : tensor
        (n, ...).
    dtype : torch.dtype
        Of floating inputs.
    out : tensor, optional
        Where the inputs go (n, *input_shape).
    """
    arranged = _move_channels_first(samples)
    if not samples.is_floating_point() and samples.dtype not in DTYPE_SCALES:
        dtype = torch.int64
    if out is None:
        if arranged.dtype == dtype:
            return arranged
        out = torch.empty(arranged.shape, dtype=dtype, device=samples.device)
    out.copy_(arranged)
    if samples.dtype in DTYPE_SCALES:
        out.div_(DTYPE_SCALES[samples.dtype])
    return out


def infer_target(y: NDArray[Any]) -> Target:
    """Return the kind of targets: classes (n,) or (n, length), int64, or numbers (n,), float32."""
    if y.dtype.kind == "f":
        return "number"
    return "class" if y.ndim == 1 else "sequence"


def _move_channels_first(samples: torch.Tensor) -> torch.Tensor:
    """Return images with their channels first, and sound with its one channel."""
    if samples.dtype == torch.int16:
        return samples.unsqueeze(1)
    if samples.dtype != torch.uint8:
        return samples
    gray = samples.ndim == len(("n", "height", "width"))
    return samples.unsqueeze(1) if gray else samples.movedim(-1, 1)


CLASSES_REQUIRED = (
    "data.priority must be all, random or a list, and availability.p a number or a list, where the "
    "targets are no classes"
)
