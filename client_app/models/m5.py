"""Define a convolutional network for waveforms."""

from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional

FIRST_KERNEL_SIZE, FIRST_STRIDE = 80, 4
KERNEL_SIZE = 3
POOL_SIZE = 4
NUM_LATER_CONVS = 3
"""Number of convolutions after the first."""


def to_channels_last(x: torch.Tensor) -> torch.Tensor:
    """Return sound (n, c, l) as images of one row (n, c, 1, l), with the channels last in memory.

    torch supports this layout only for images. On CPUs convolutions and poolings are faster in it.
    """
    numbers = x.transpose(1, 2).flatten(start_dim=1)
    rows: torch.Tensor = numbers.unflatten(1, (1, -1, x.shape[1]))
    return rows.movedim(3, 1)


class SoundAsImage(nn.Module):
    """Sound (n, c, l) as images of one row (n, c, 1, l).

    In evaluation their channels are last in memory. In training they are not, because torch's batch
    normalization adds the numbers of a channel less accurately in that layout.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the images."""
        return x.unsqueeze(2) if self.training else to_channels_last(x)


class RowConv1d(nn.Conv1d):
    """A ``torch.nn.Conv1d`` whose inputs and outputs are images of one row."""

    @property
    def geometry(self) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
        """Stride, padding and dilation of the convolution of images."""
        return (1, self.stride[0]), (0, int(self.padding[0])), (1, self.dilation[0])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return images (n, c', 1, l') of images (n, c, 1, l)."""
        return functional.conv2d(x, self.weight.unsqueeze(2), self.bias, *self.geometry)


class M5(nn.Module):
    """Four convolutions of a waveform, its mean over time, and the logits.

    Kernel 80 and stride 4, then three of kernel 3 and stride 1; batch normalization, ReLU and a
    maximum pooling of 4 after each. The four have c, c, 2c and ``widening`` c channels; the last
    three pad by ``padding``. All initial values are torch's own. The published networks:

    | source | c | widening | padding |
    | --- | --- | --- | --- |
    | Dai et al., Table 1 | 128 | 4 | not stated |
    | PyTorch's tutorial on speech commands, the default here | 32 | 2 | 0 |
    | AAggFF's authors | 64 | 4 | 1 |

    The running means and variances of the batch normalization are part of the model: they are
    sent, and averaged with the same weights as the parameters.

    The parameters have the shapes of ``torch.nn.Conv1d``, although the layers process images.

    Parameters
    ----------
    input_shape : tuple of int
        (channels, length), length at least ``compute_min_length(padding)``: one second of one
        channel at 8 kHz is (1, 8000).
    num_classes : int
        Number of logits.
    channels : int
        c in the table.
    widening : int
        Channels of the last convolution, as a multiple of c.
    padding : int
        Zeros on both sides of the input of each convolution except the first, 0 or 1.

    References
    ----------
    Dai et al., Very deep convolutional neural networks for raw waveforms (ICASSP 2017);
    Hahn et al., Pursuing overall welfare in federated learning through sequential decision making
    (ICML 2024), https://github.com/vaseline555/AAggFF, src/models/m5.py.
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        num_classes: int,
        channels: int = 32,
        widening: int = 2,
        padding: int = 0,
    ) -> None:
        super().__init__()
        widths = (channels, channels, 2 * channels, widening * channels)
        layers: list[nn.Module] = [
            RowConv1d(input_shape[0], widths[0], FIRST_KERNEL_SIZE, FIRST_STRIDE),
            *_build_layer_tail(widths[0]),
        ]
        for before, width in pairwise(widths):
            layers += [
                RowConv1d(before, width, KERNEL_SIZE, padding=padding),
                *_build_layer_tail(width),
            ]
        self.image = SoundAsImage()
        self.features = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.logits = nn.Linear(widths[-1], num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits (n, num_classes) of inputs (n, channels, length)."""
        logits: torch.Tensor = self.logits(self.features(self.image(x)))
        return logits


def compute_min_length(padding: int) -> int:
    """Return the input length that leaves one number after all convolutions and poolings."""
    length = 1
    for _ in range(NUM_LATER_CONVS):
        length = POOL_SIZE * length + KERNEL_SIZE - 1 - 2 * padding
    return FIRST_STRIDE * (POOL_SIZE * length - 1) + FIRST_KERNEL_SIZE


def _build_layer_tail(width: int) -> tuple[nn.Module, ...]:
    return nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d((1, POOL_SIZE))
