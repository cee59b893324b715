"""Define the two-hidden-layer network of FedALIGN's EMNIST experiments."""

import math

import torch
from torch import nn


class MLP(nn.Module):
    """Flattened input - hidden - hidden - logits, ReLU between (784-200-200-47 for EMNIST).

    Parameters
    ----------
    input_shape : tuple of int
        Shape of one input.
    num_classes : int
        Number of logits.
    hidden : int
        Width of both hidden layers.

    References
    ----------
    Ravi and Shomorony, supplement B.1.
    """

    def __init__(self, input_shape: tuple[int, ...], num_classes: int, hidden: int = 200) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(),
            nn.Linear(math.prod(input_shape), hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, num_classes),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits (n, num_classes) of inputs (n, *input_shape)."""
        logits: torch.Tensor = self.layers(x)
        return logits
