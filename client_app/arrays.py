"""Represent a model as a list of arrays in the order of its ``state_dict``; copy to a device."""

from collections.abc import Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import nn

Arrays = list[NDArray[Any]]


def load_arrays(arrays: Sequence[NDArray[Any]], model: nn.Module) -> None:
    """Load arrays into ``model``, in the order of its ``state_dict``."""
    names = model.state_dict()
    model.load_state_dict(
        {name: torch.from_numpy(a) for name, a in zip(names, arrays, strict=True)}
    )


def to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a tensor on the device, without waiting for the copy.

    A copy from pageable memory waits until the GPU has finished all queued work. A copy from
    pinned memory is queued itself; PyTorch holds that memory until the copy is done.
    """
    if device.type == "cuda" and tensor.device.type == "cpu":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)
