"""Copy numbers from the host to the device of the training."""

import torch


def sent(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a tensor on the device, without waiting for the copy.

    A copy from pageable memory waits until a GPU has done all that it was asked before. One from
    pinned memory takes its place in the queue; PyTorch keeps that memory until the copy is done.
    """
    if device.type == "cuda" and tensor.device.type == "cpu":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)
