"""Models by the names of the benchmark's workloads."""

import torch
from torch import nn


def make_stock_model(model: str) -> nn.Module:
    """Build ``logreg:FEATURES:CLASSES`` or ``cnn:CHANNELS:SIDE:HIDDEN:...``, with 10 classes."""
    torch.manual_seed(0)
    kind, *numbers = model.split(":")
    sizes = [int(n) for n in numbers]
    if kind == "logreg":
        return nn.Sequential(nn.Flatten(), nn.Linear(sizes[0], sizes[1]))
    channels, side, *hidden = sizes
    layers: list[nn.Module] = [
        nn.Conv2d(channels, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
    ]
    size = 32 * (side // 4) ** 2
    for units in hidden:
        layers += [nn.Linear(size, units), nn.ReLU()]
        size = units
    return nn.Sequential(*layers, nn.Linear(size, 10))
