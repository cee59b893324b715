"""What one sample costs a model: operations and numbers."""

from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode


def flops_of_sample(model: nn.Module, x: torch.Tensor) -> int:
    """Return how many operations one sample's forward pass takes; ``x`` (n, *input_shape)."""
    training = model.training
    model.eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(x)
    model.train(training)
    return int(counter.get_total_flops()) // len(x)


@torch.no_grad()
def numbers_of_sample(model: nn.Module, x: torch.Tensor) -> int:
    """Return how many numbers inputs and layers' outputs are of one sample; ``x`` (n, ...)."""
    total = x.numel()

    def count(_module: nn.Module, _inputs: Any, output: Any) -> None:
        nonlocal total
        total += output.numel() if isinstance(output, torch.Tensor) else 0

    layers = [layer for layer in model.modules() if not list(layer.children())]
    handles = [layer.register_forward_hook(count) for layer in layers]
    training = model.training
    model.eval()
    model(x)
    model.train(training)
    for handle in handles:
        handle.remove()
    return total // len(x)
