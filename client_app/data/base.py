"""Define the interface of a federated data set."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray

from client_app.arrays import sent
from client_app.data.account import Account

Inputs = NDArray[np.float32]
Labels = NDArray[np.int64]
Part = Literal["train", "test", "validation"]
Target = Literal["class", "sequence", "number"]
Targets = NDArray[Any]
"""Classes or next tokens, int64, or numbers, float32."""
Samples = NDArray[Any]

SCALES = {torch.uint8: 255, torch.int16: 32768}
"""What samples of a type are divided by."""


class Collection(Protocol):
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
class ClientRows(Mapping[int, NDArray[np.int64]]):
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
    def of(cls, rows: Mapping[int, NDArray[np.int64]]) -> Self:
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

    def place(self, client: int) -> int:
        """Return the place of a client in ``clients``; raises KeyError if it is not there."""
        if self._regular is None:
            return int(self.places([client])[0])
        if client not in self._regular:
            raise KeyError(client)
        return self._regular.index(client)

    def span(self, client: int) -> tuple[int, int]:
        """Return where in ``flat`` a client's rows begin, and how many they are."""
        place = self.place(client)
        return int(self.starts[place]), int(self.counts[place])

    def places(self, clients: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
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

    def of_clients(self, clients: Sequence[int]) -> "ClientRows":
        """Return the rows of these clients, in their order."""
        places = self.places(clients)
        if np.array_equal(places, np.arange(len(self.clients))):
            return self
        counts = self.counts[places]
        begins = self.starts[places] - (np.cumsum(counts) - counts)
        flat = self.flat[np.repeat(begins, counts) + np.arange(counts.sum())]
        return ClientRows(self.clients[places], counts, flat)

    def __getitem__(self, client: int) -> NDArray[np.int64]:
        start, count = self.span(client)
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
class PixelScale:
    """Images whose pixels x in [0, 1] are inputs (x - mean_c) / spread_c, channel by channel.

    Attributes
    ----------
    mean, spread : tuple of float
        For each channel; float32 numbers, spread above 0.
    """

    mean: tuple[float, ...]
    spread: tuple[float, ...]

    def inputs(self, pixels: torch.Tensor) -> torch.Tensor:
        """Return the inputs of pixels (n, channels, height, width)."""
        mean, spread = self._channels(pixels)
        return pixels.sub(mean).div_(spread)

    def pixels(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the pixels of inputs (n, channels, height, width), up to rounding."""
        mean, spread = self._channels(inputs)
        return inputs.mul(spread).add_(mean)

    def _channels(self, like: torch.Tensor) -> list[torch.Tensor]:
        """Return mean and spread, (channels, 1, 1), on the device and in the type of a tensor."""
        return [
            sent(torch.tensor(numbers, dtype=like.dtype), like.device)[:, None, None]
            for numbers in (self.mean, self.spread)
        ]


@dataclass(frozen=True)
class Pool:
    """One part of several clients in arrays that they share.

    Attributes
    ----------
    x : array
        Samples as read, (N, ...): uint8 images, int16 sound, tokens or float32; see
        ``as_inputs``. Or what reads those of some rows.
    y : array
        Targets (N, ...).
    rows : ClientRows
        Which rows are a client's.
    pixel_scale : PixelScale, optional
        Of images that are normalised.
    """

    x: NDArray[Any] | Collection
    y: Targets
    rows: ClientRows
    pixel_scale: PixelScale | None = None


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
    def account(self) -> Account:
        """The interpretation of the data."""

    def client(self, client: int) -> ClientData:
        """Return the data of one client."""

    def targets(self, client: int) -> tuple[Targets, Targets]:
        """Return the targets of a client's two parts, without making inputs where possible."""

    def labels(self, client: int) -> Labels:
        """Return the training labels of one client, without making its inputs where possible.

        Raises
        ------
        SettingsError
            If the targets are no classes.
        """

    def pool(self, part: Part, clients: Sequence[int]) -> Pool:
        """Return one part of these clients, without a copy of the arrays where possible."""


def pooled(parts: Mapping[int, tuple[NDArray[Any], Targets]]) -> Pool:
    """Return the pool of clients that have arrays of their own: these, one after the other."""
    counts = np.array([len(y) for _, y in parts.values()], dtype=np.int64)
    rows = ClientRows(np.array(list(parts), dtype=np.int64), counts, np.arange(counts.sum()))
    return Pool(
        np.concatenate([x for x, _ in parts.values()]),
        np.concatenate([y for _, y in parts.values()]),
        rows,
    )


def part_of(data: ClientData, part: Part) -> tuple[NDArray[Any], Targets]:
    """Return inputs and labels of one of a client's parts."""
    if part == "validation":
        return data.validation or (data.x_train[:0], data.y_train[:0])
    return (data.x_train, data.y_train) if part == "train" else (data.x_test, data.y_test)


def as_inputs(samples: NDArray[Any]) -> NDArray[Any]:
    """Return samples as read as a model's inputs, float32 or int64 (n, *input_shape).

    uint8 images become (n, channels, height, width) in [0, 1], int16 sound (n, 1, length) in
    [-1, 1), int32 tokens int64; float32 stays as it is.
    """
    if not samples.flags.writeable:  # as mapped from a file: torch has no such tensors
        samples = samples.copy()
    inputs: NDArray[Any] = inputs_of(torch.from_numpy(samples), torch.float32).numpy()
    return inputs


def inputs_of(
    samples: torch.Tensor, dtype: torch.dtype, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Return a model's inputs of samples as read, on their device: see ``as_inputs``.

    Parameters
    ----------
    samples : tensor
        (n, ...).
    dtype : torch.dtype
        Of floating inputs.
    out : tensor, optional
        Where the inputs go (n, *input_shape).
    """
    arranged = _arranged(samples)
    if not samples.is_floating_point() and samples.dtype not in SCALES:
        dtype = torch.int64
    if out is None:
        if arranged.dtype == dtype:
            return arranged
        out = torch.empty(arranged.shape, dtype=dtype, device=samples.device)
    out.copy_(arranged)
    if samples.dtype in SCALES:
        out.div_(SCALES[samples.dtype])
    return out


def target_of(y: NDArray[Any]) -> Target:
    """Return the kind of targets: classes (n,) or (n, length), int64, or numbers (n,), float32."""
    if y.dtype.kind == "f":
        return "number"
    return "class" if y.ndim == 1 else "sequence"


def _arranged(samples: torch.Tensor) -> torch.Tensor:
    """Return images with their channels first, and sound with its one channel."""
    if samples.dtype == torch.int16:
        return samples.unsqueeze(1)
    if samples.dtype != torch.uint8:
        return samples
    grey = samples.ndim == len(("n", "height", "width"))
    return samples.unsqueeze(1) if grey else samples.movedim(-1, 1)


NEEDS_CLASSES = (
    "data.priority must be all, random or a list, and availability.p a number or a list, where the "
    "targets are no classes"
)
