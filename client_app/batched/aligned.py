"""Stacked matrices that each begin at a cache line.

What a product rounds depends on where in memory its matrices begin. With every client's matrix at
the beginning of a cache line, its bits are the same whoever is beside it.
"""

import math

import torch

LINE_BYTES = 64  # bytes


def create_aligned(
    count: int, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """Return an uninitialized tensor (count, *shape), each of whose parts begins at a line."""
    numbers = math.prod(shape)
    stacked = torch.empty((count, compute_padded_size(numbers, dtype)), dtype=dtype, device=device)
    return stacked[:, :numbers].view(count, *shape)


def copy_aligned(tensor: torch.Tensor, count: int) -> torch.Tensor:
    """Return so many copies of a tensor, stacked and aligned."""
    stacked = create_aligned(count, tuple(tensor.shape), tensor.dtype, tensor.device)
    return stacked.copy_(tensor.expand_as(stacked))


def compute_padded_size(numbers: int, dtype: torch.dtype) -> int:
    """Return how many numbers fill the lines that so many begin."""
    line = LINE_BYTES // dtype.itemsize
    return -(-numbers // line) * line


def compute_padded_rows(rows: int, numbers: int, dtype: torch.dtype) -> int:
    """Return how many rows of so many numbers, at least ``rows``, fill whole lines."""
    line = LINE_BYTES // dtype.itemsize
    step = line // math.gcd(numbers, line)
    return -(-rows // step) * step
