"""Define the interface of a federated data set."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray

from client_app.data.scaling import AgreedScales
from client_app.data.summary import DataSummary, describe_inputs, describe_target

if TYPE_CHECKING:
    from client_app.data.coding.base import Coding

Inputs = NDArray[np.float32]
Labels = NDArray[np.int64]
Split = Literal["train", "test", "validation"]
Target = Literal["class", "sequence", "number"]
Targets = NDArray[Any]
"""Classes or next tokens, int64, or numbers: float32 if scaled, float64 before."""
Samples = NDArray[Any]

IGNORE_INDEX = -100
"""The label of a position of a sequence without a target, which torch ignores by default."""

DTYPE_SCALES = {torch.uint8: 255, torch.int16: 32768}
"""The divisor of samples of each dtype."""


class LazyArray(Protocol):
    """Samples that are read on demand, such as a folder of images."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape (n, ...) of the array of all samples."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the numbers."""

    def __len__(self) -> int:
        """Return n, the number of samples."""

    def __getitem__(self, rows: Any) -> Samples:
        """Return the samples of a slice or of an array of rows.

        Raises
        ------
        DataError
            If one of them cannot be read.
        """

    def check(self, rows: NDArray[np.int64]) -> None:
        """Check what can be known of these samples without reading them whole.

        Raises
        ------
        DataError
            If one of them is missing, or of another kind or shape.
        """


@dataclass(frozen=True)
class ClientData:
    """One client's data: inputs (n, *input_shape) float32, or int64 for tokens.

    The targets are classes, int64 (n,); the next token at every position, int64 (n, length), or
    ``IGNORE_INDEX`` without one; or scaled numbers, float32 (n,). The test split has the
    distribution of the training split and shares no row with any client's training split. The
    validation split is taken from the training split; it is empty unless
    ``data.validation_fraction`` is set.
    """

    x_train: NDArray[Any]
    y_train: Targets
    x_test: NDArray[Any]
    y_test: Targets
    validation: tuple[NDArray[Any], Targets] | None = None

    def with_validation(self, train: NDArray[np.int64], validation: NDArray[np.int64]) -> Self:
        """Return the data with the training split divided into these rows."""
        x, y = self.x_train, self.y_train
        held_out = (x[validation], y[validation])
        return replace(self, x_train=x[train], y_train=y[train], validation=held_out)


@dataclass(frozen=True, eq=False)
class RowIndex(Mapping[int, NDArray[np.int64]]):
    """Each client's row indices, as a mapping by client id backed by flat arrays.

    Parameters
    ----------
    clients : array of int
        The clients' ids, each once, (K,).
    counts : array of int
        The number of each client's rows, (K,).
    flat : array of int
        The row indices, one client after the other.
    """

    clients: NDArray[np.int64]
    counts: NDArray[np.int64]
    flat: NDArray[np.int64]

    @classmethod
    def from_mapping(cls, rows: Mapping[int, NDArray[np.int64]]) -> Self:
        """Build the index from a mapping, in its order."""
        counts = np.array([len(indices) for indices in rows.values()], dtype=np.int64)
        flat = np.concatenate([np.zeros(0, np.int64), *rows.values()])
        return cls(np.array(list(rows), dtype=np.int64), counts, flat)

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """The offset in ``flat`` of each client's rows, (K,)."""
        return np.cumsum(self.counts) - self.counts

    @cached_property
    def _order(self) -> NDArray[np.int64]:
        return np.argsort(self.clients, kind="stable")

    @cached_property
    def _ascending(self) -> NDArray[np.int64]:
        return self.clients[self._order]

    @cached_property
    def _regular(self) -> range | None:
        """The clients as a range if they are evenly spaced, as on a node; otherwise None."""
        clients = self.clients
        step = int(clients[1] - clients[0]) if len(clients) > 1 else 1
        if len(clients) == 0 or step <= 0:
            return None
        spaced = range(int(clients[0]), int(clients[-1]) + 1, step)
        return spaced if np.array_equal(clients, np.asarray(spaced)) else None

    def get_index(self, client: int) -> int:
        """Return the index of a client in ``clients``; raise KeyError if it is missing."""
        if self._regular is None:
            return int(self.get_indices([client])[0])
        if client not in self._regular:
            raise KeyError(client)
        return self._regular.index(client)

    def get_span(self, client: int) -> tuple[int, int]:
        """Return the offset in ``flat`` and the number of a client's rows."""
        index = self.get_index(client)
        return int(self.starts[index]), int(self.counts[index])

    def get_indices(self, clients: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the indices of these clients in ``clients``, (m,).

        Raises
        ------
        KeyError
            For the first missing client.
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
    """Normalization of pixels x in [0, 1] to inputs (x - mean_c) / std_c, for each channel c.

    Attributes
    ----------
    mean, std : tuple of float
        For each channel; float32 numbers, std > 0.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def normalize(self, pixels: torch.Tensor) -> torch.Tensor:
        """Return the inputs of pixels (n, channels, height, width)."""
        mean, std = self._get_channels(pixels)
        return pixels.sub(mean).div_(std)

    def denormalize(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the pixels of inputs (n, channels, height, width), up to rounding."""
        mean, std = self._get_channels(inputs)
        return inputs.mul(std).add_(mean)

    def _get_channels(self, like: torch.Tensor) -> list[torch.Tensor]:
        """Return mean and std, (channels, 1, 1), on the device and in the dtype of a tensor."""
        return [
            to_device(torch.tensor(numbers, dtype=like.dtype), like.device)[:, None, None]
            for numbers in (self.mean, self.std)
        ]


@dataclass(frozen=True)
class PooledSplit:
    """One split of several clients, in shared arrays.

    Attributes
    ----------
    x : array
        Samples as read, (N, ...): uint8 images, int16 sound, tokens or float32; see
        ``to_inputs``. Or a ``LazyArray`` of them.
    y : array
        Targets (N, ...).
    rows : RowIndex
        Each client's rows.
    pixel_scale : PixelNormalization, optional
        The normalization of the images, if they are normalized.
    """

    x: NDArray[Any] | LazyArray
    y: Targets
    rows: RowIndex
    pixel_scale: PixelNormalization | None = None


class FederatedData(Protocol):
    """Data of ``num_clients`` clients, which depends only on the settings and the seed."""

    @property
    def num_clients(self) -> int:
        """The number of clients; ids start at 0."""

    @property
    def priority(self) -> tuple[int, ...]:
        """The priority clients of the settings, ascending."""

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input."""

    @property
    def num_classes(self) -> int:
        """The number of classes; that of tokens for next-token targets, 1 for numbers."""

    @property
    def num_tokens(self) -> int | None:
        """The size of the vocabulary, or None if the inputs are no tokens."""

    @property
    def target(self) -> Target:
        """The kind of target: a class, a class at each position of a sequence, or a number."""

    @property
    def client_names(self) -> tuple[str, ...] | None:
        """The clients' names by id, or None if the data does not name them."""

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """The names of the classes, or None if the data does not name them."""

    @property
    def scales(self) -> AgreedScales:
        """The scales of numbers that all clients share."""

    @property
    def coding(self) -> "Coding":
        """How rows become inputs."""

    @property
    def summary(self) -> DataSummary:
        """The interpretation of the data."""

    def get_client(self, client: int) -> ClientData:
        """Return the data of one client."""

    def get_targets(self, client: int) -> tuple[Targets, Targets]:
        """Return the training and test targets of a client, without building inputs if possible."""

    def get_labels(self, client: int) -> Labels:
        """Return the training labels of one client, without building its inputs if possible.

        Raises
        ------
        SettingsError
            If the targets are not classes.
        """

    def get_pooled_split(self, split: Split, clients: Sequence[int]) -> PooledSplit:
        """Return one split of these clients, without copying the arrays if possible."""


class ClientwiseData(ABC):
    """Data whose clients are built one by one, by ``get_client``."""

    num_clients: int
    input_shape: tuple[int, ...]
    num_classes: int
    num_tokens = None
    target: Target
    client_names: tuple[str, ...] | None = None
    class_names: tuple[str, ...] | None = None
    scales = AgreedScales()

    @abstractmethod
    def get_client(self, client: int) -> ClientData:
        """Return the data of one client."""

    @property
    @abstractmethod
    def coding(self) -> "Coding":
        """How rows become inputs."""

    @property
    def summary(self) -> DataSummary:
        """The interpretation of the data, known without building a client."""
        return DataSummary(
            self.num_clients,
            describe_target(self.target, self.num_classes),
            describe_inputs(self.input_shape, self.num_tokens),
            classes=dict.fromkeys(self.class_names or ()),
        )

    def get_targets(self, client: int) -> tuple[Targets, Targets]:
        """Return the training and test targets of a client."""
        data = self.get_client(client)
        return data.y_train, data.y_test

    def get_labels(self, client: int) -> Labels:
        """Return the training labels of one client."""
        labels: Labels = self.get_client(client).y_train
        return labels

    def get_pooled_split(self, split: Split, clients: Sequence[int]) -> PooledSplit:
        """Return one split of these clients, in new arrays."""
        return build_pooled_split({k: select_split(self.get_client(k), split) for k in clients})


def build_pooled_split(arrays_by_client: Mapping[int, tuple[NDArray[Any], Targets]]) -> PooledSplit:
    """Build a pool by concatenating the arrays of the clients."""
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
    """Return inputs and targets of one of a client's splits."""
    if split == "validation":
        return data.validation or (data.x_train[:0], data.y_train[:0])
    return (data.x_train, data.y_train) if split == "train" else (data.x_test, data.y_test)


def to_inputs(samples: NDArray[Any]) -> NDArray[Any]:
    """Convert samples to a model's inputs, float32 or int64 (n, *input_shape).

    uint8 images become (n, channels, height, width) in [0, 1], int16 sound (n, 1, length) in
    [-1, 1), int32 tokens int64; float32 does not change.
    """
    if not samples.flags.writeable:  # e.g. mapped from a file, which torch does not support
        samples = samples.copy()
    inputs: NDArray[Any] = to_input_tensor(torch.from_numpy(samples), torch.float32).numpy()
    return inputs


def to_input_tensor(
    samples: torch.Tensor, dtype: torch.dtype, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Convert samples to a model's inputs on their device, see ``to_inputs``.

    Parameters
    ----------
    samples : tensor
        (n, ...).
    dtype : torch.dtype
        The type of floating inputs.
    out : tensor, optional
        Memory for the inputs (n, *input_shape).
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


def to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a tensor on the device, without waiting for the copy.

    A copy from pageable memory waits until the GPU has finished all queued work. A copy from
    pinned memory is queued itself; PyTorch holds that memory until the copy is done.
    """
    if device.type == "cuda" and tensor.device.type == "cpu":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def infer_target(y: NDArray[Any]) -> Target:
    """Return the kind of targets: classes (n,) or (n, length), int64, or numbers (n,)."""
    if y.dtype.kind == "f":
        return "number"
    return "class" if y.ndim == 1 else "sequence"


def _move_channels_first(samples: torch.Tensor) -> torch.Tensor:
    """Return images with the channels first, and sound with a channel axis."""
    if samples.dtype == torch.int16:
        return samples.unsqueeze(1)
    if samples.dtype != torch.uint8:
        return samples
    is_gray = samples.ndim == len(("n", "height", "width"))
    return samples.unsqueeze(1) if is_gray else samples.movedim(-1, 1)


CLASSES_REQUIRED = (
    "data.priority must be all, random or a list, and availability.p a number or a list, where the "
    "targets are no classes"
)
