"""Count a model's operations and numbers for one sample."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd


@torch.no_grad()
def count_sample_flops(model: nn.Module, x: torch.Tensor) -> int:
    """Return the operations of one sample's forward pass in products with weights.

    Each weight counts two operations for each output position that uses it; ``x``
    (n, *input_shape). Embedding lookups, elementwise operations and products without weights do
    not count.
    """
    # torch.utils.flop_counter counts more, but imports torch's compiler: that takes more than a
    # second in every process, and a device starts one for every message.
    total = 0

    def count(layer: nn.Module, _inputs: Any, output: Any) -> None:
        nonlocal total
        first = output[0] if isinstance(output, tuple) else output
        if isinstance(first, torch.Tensor) and first.numel():
            features = first.shape[1] if isinstance(layer, _ConvNd) else first.shape[-1]
            total += 2 * _count_weights(layer) * (first.numel() // features)

    _run_with_hooks(model, x, [layer for layer in model.modules() if _count_weights(layer)], count)
    return total // len(x)


def _count_weights(layer: nn.Module) -> int:
    """Return the number of weights that multiply the layer's inputs."""
    if isinstance(layer, nn.Embedding | nn.EmbeddingBag):
        return 0
    return sum(weight.numel() for weight in layer.parameters(recurse=False) if weight.ndim > 1)


@torch.no_grad()
def count_sample_activations(model: nn.Module, x: torch.Tensor) -> int:
    """Return the size of one sample's inputs and layer outputs, in numbers; ``x`` (n, ...)."""
    total = x.numel()

    def count(_module: nn.Module, _inputs: Any, output: Any) -> None:
        nonlocal total
        total += output.numel() if isinstance(output, torch.Tensor) else 0

    leaves = [layer for layer in model.modules() if not list(layer.children())]
    _run_with_hooks(model, x, leaves, count)
    return total // len(x)


def _run_with_hooks(
    model: nn.Module, x: torch.Tensor, layers: list[nn.Module], hook: Callable[..., None]
) -> None:
    """Run the model on ``x`` in evaluation mode with ``hook`` on layers, and restore its mode."""
    handles = [layer.register_forward_hook(hook) for layer in layers]
    training = model.training
    model.eval()
    model(x)
    model.train(training)
    for handle in handles:
        handle.remove()
