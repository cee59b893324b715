"""Define multinomial logistic regression."""

import math

import torch
from torch import nn


class LogisticRegression(nn.Module):
    """Logits W x + b of the flattened input; softmax is part of the loss.

    Parameters
    ----------
    input_shape : tuple of int
        Shape of one input.
    num_classes : int
        Number of logits.
    """

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(math.prod(input_shape), num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits (n, num_classes) of inputs (n, *input_shape)."""
        logits: torch.Tensor = self.linear(x.flatten(start_dim=1))
        return logits
