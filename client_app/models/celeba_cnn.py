"""LEAF's convolutional network for CelebA."""

import torch
from torch import nn

BLOCKS = 4


class CelebaCNN(nn.Module):
    """Four 3x3 convolutions of 32 channels, and the logits.

    Each convolution pads by 1 and is followed by batch normalisation, a 2x2 maximum pooling that
    keeps an odd last row and column, and a ReLU: 84 x 84 becomes 6 x 6. All initial values are
    torch's own.

    The running means and variances of the batch normalisation are part of the model: they are
    sent, and averaged with the same weights as the parameters. LEAF's has none and always
    normalises by the batch at hand, so that what it predicts for one image depends on the others.

    Parameters
    ----------
    input_shape : tuple of int
        (channels, height, width).
    num_classes : int
        Number of logits.

    References
    ----------
    Caldas et al., LEAF: a benchmark for federated settings (2018); its models/celeba/cnn.py.
    """

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        channels, height, width = input_shape
        layers: list[nn.Module] = []
        for _ in range(BLOCKS):
            layers += [
                nn.Conv2d(channels, 32, 3, padding=1),
                nn.BatchNorm2d(32),
                nn.MaxPool2d(2, ceil_mode=True),
                nn.ReLU(),
            ]
            channels, height, width = 32, -(-height // 2), -(-width // 2)
        self.layers = nn.Sequential(
            *layers, nn.Flatten(), nn.Linear(32 * height * width, num_classes)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits (n, num_classes) of inputs (n, channels, height, width)."""
        logits: torch.Tensor = self.layers(x)
        return logits
