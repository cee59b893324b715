"""Stack matrices so that each begins at a cache line.

The rounding of a product depends on the memory alignment of its matrices. If every client's matrix
begins at a cache line, its bits do not depend on the other clients.
"""

import math

import torch

LINE_BYTES = 64  # bytes


def create_aligned(
    count: int, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """Return an uninitialized tensor (count, *shape) whose items begin at cache lines."""
    numbers = math.prod(shape)
    stacked = torch.empty((count, compute_padded_size(numbers, dtype)), dtype=dtype, device=device)
    return stacked[:, :numbers].view(count, *shape)


def copy_aligned(tensor: torch.Tensor, count: int) -> torch.Tensor:
    """Return ``count`` copies of a tensor, stacked and aligned."""
    stacked = create_aligned(count, tuple(tensor.shape), tensor.dtype, tensor.device)
    return stacked.copy_(tensor.expand_as(stacked))


def compute_padded_size(numbers: int, dtype: torch.dtype) -> int:
    """Return ``numbers`` rounded up to whole cache lines."""
    line = LINE_BYTES // dtype.itemsize
    return -(-numbers // line) * line


def compute_padded_rows(rows: int, numbers: int, dtype: torch.dtype) -> int:
    """Return the least count >= ``rows`` of rows of ``numbers`` numbers that fills whole lines."""
    line = LINE_BYTES // dtype.itemsize
    step = line // math.gcd(numbers, line)
    return -(-rows // step) * step
