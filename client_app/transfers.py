"""How numbers of the host get onto the device where clients train."""

import torch


def sent(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a tensor on the device, and let nobody wait for it.

    A copy from pageable memory waits until a GPU has done all that it was asked before. One from
    pinned memory takes its place in the queue; PyTorch keeps that memory until the copy is done.
    """
    if device.type == "cuda" and tensor.device.type == "cpu":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)
