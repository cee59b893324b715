"""Define the convolutional networks of FedAU's experiments."""

from collections.abc import Sequence

import torch
from torch import nn

from client_app.models.init import initialize_weights


class SmallCNN(nn.Module):
    """Two 3x3 convolutions of 32 channels, fully connected hidden layers and the logits.

    ReLU after each, a 2x2 maximum pooling after each convolution, no normalization. Details that
    the paper omits are from the authors' published code: the convolutions pad by 1, so that the
    fully connected layers receive 32 (h // 4) (w // 4) numbers; dropout comes before every fully
    connected layer, including that of the logits; Kaiming initialization with biases 0 before a
    ReLU, torch's own for the logits.

    Parameters
    ----------
    input_shape : tuple of int
        (channels, height, width), height and width at least 4.
    num_classes : int
        Number of logits.
    hidden : sequence of int
        Widths of the hidden layers: 256, 64 for CIFAR-10; 128 for SVHN and Fashion-MNIST;
        512, 256 for CIFAR-100 and CINIC-10.
    dropout : float
        Fraction of numbers dropped in training, below 1: 0.2 for CIFAR-100 and CINIC-10.

    References
    ----------
    Wang and Ji, A lightweight method for tackling unknown participation statistics in federated
    averaging (ICLR 2024); https://github.com/IBM/fedau.
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        num_classes: int,
        hidden: Sequence[int] = (256, 64),
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        channels, height, width = input_shape
        layers: list[nn.Module] = [
            nn.Conv2d(channels, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Dropout(dropout),
        ]
        size = 32 * (height // 4) * (width // 4)
        for units in hidden:
            layers += [nn.Linear(size, units), nn.ReLU(), nn.Dropout(dropout)]
            size = units
        self.features = nn.Sequential(*layers)
        self.logits = nn.Linear(size, num_classes)
        initialize_weights(self.features, "kaiming")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits (n, num_classes) of inputs (n, channels, height, width)."""
        logits: torch.Tensor = self.logits(self.features(x))
        return logits
