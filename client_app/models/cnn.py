"""Define the convolutional network of FedALIGN's CIFAR-10 experiments."""

import torch
from torch import nn

from client_app.models.init import initialize_weights


class CNN(nn.Module):
    """Two 5x5 convolutions (32 and 64 channels), fully connected 512, 128 and the logits.

    Batch normalization after the second convolution and after both hidden fully connected
    layers, ReLU, Kaiming initialization of all weights, biases 0. A 2x2 maximum pooling follows
    each convolution; the paper does not say whether it pools.

    The running means and variances of the batch normalization are part of the model: they are
    sent, and averaged with the same weights as the parameters. Their integer step counters are
    the rounded weighted mean.

    Parameters
    ----------
    input_shape : tuple of int
        (channels, height, width), height and width at least 16.
    num_classes : int
        Number of logits.

    References
    ----------
    Ravi and Shomorony, supplement B.1.
    """

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        channels, height, width = input_shape
        pooled = [((size - 4) // 2 - 4) // 2 for size in (height, width)]
        self.layers = nn.Sequential(
            nn.Conv2d(channels, 32, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 5),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64 * pooled[0] * pooled[1], 512),
            nn.BatchNorm1d(512),
            nn.ReLU(),
            nn.Linear(512, 128),
            nn.BatchNorm1d(128),
            nn.ReLU(),
            nn.Linear(128, num_classes),
        )
        initialize_weights(self.layers, "kaiming")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits (n, num_classes) of inputs (n, channels, height, width)."""
        logits: torch.Tensor = self.layers(x)
        return logits
