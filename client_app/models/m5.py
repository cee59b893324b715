"""A convolutional network for waveforms."""

import torch
from torch import nn

SMALLEST = 1772  # samples that leave one after four convolutions and poolings


class M5(nn.Module):
    """Four convolutions of a waveform, its mean over time, and the logits.

    Kernel 80 and stride 4, then three of kernel 3 and stride 1, none padded; batch normalisation,
    ReLU and a maximum pooling of 4 after each. The four have c, c, 2c and 2c channels, as in
    PyTorch's tutorial on speech commands, whose c is 32; the paper has 128, 128, 256 and 512. All
    initial values are torch's own.

    The running means and variances of the batch normalisation are part of the model: they are
    sent, and averaged with the same weights as the parameters.

    Parameters
    ----------
    input_shape : tuple of int
        (channels, length), length at least 1772: one channel of a second at 8 kHz is (1, 8000).
    num_classes : int
        Number of logits.
    channels : int
        c.

    References
    ----------
    Dai et al., Very deep convolutional neural networks for raw waveforms (ICASSP 2017), Table 1.
    """

    def __init__(self, input_shape: tuple[int, ...], num_classes: int, channels: int = 32) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *_block(input_shape[0], channels, kernel=80, stride=4),
            *_block(channels, channels),
            *_block(channels, 2 * channels),
            *_block(2 * channels, 2 * channels),
            nn.AdaptiveAvgPool1d(1),
            nn.Flatten(),
        )
        self.logits = nn.Linear(2 * channels, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits (n, num_classes) of inputs (n, channels, length)."""
        logits: torch.Tensor = self.logits(self.features(x))
        return logits


def _block(before: int, after: int, kernel: int = 3, stride: int = 1) -> tuple[nn.Module, ...]:
    return (
        nn.Conv1d(before, after, kernel, stride),
        nn.BatchNorm1d(after),
        nn.ReLU(),
        nn.MaxPool1d(4),
    )
