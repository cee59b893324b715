"""Define the convolutional networks for CelebA: LEAF's, and that of AAggFF's authors."""

from collections.abc import Callable

import torch
from torch import nn

NUM_BLOCKS = 4
NUM_CHANNELS = 32
AVG_POOL_SIZE = 5
"""Height and width after the average pooling of AAggFF's network."""


class CelebaCNN(nn.Module):
    """Four 3x3 convolutions of 32 channels, and the logits.

    Each convolution pads by 1 and is followed by a normalization, a 2x2 maximum pooling and a
    ReLU. All initial values are torch's own.

    ``leaf``    Convolutions with bias, batch normalization, and poolings that include an odd last
                row and column: 84 x 84 becomes 6 x 6. The running means and variances are part of
                the model: they are sent, and averaged with the same weights as the parameters.
                LEAF's network has none and always normalizes by the current batch, so that its
                prediction for one image depends on the others.
    ``aaggff``  Convolutions without bias; group normalization by 32, 16, 8 and 4 groups, which
                uses one image alone and has no running statistics; poolings that pad by 1:
                84 x 84 becomes 7 x 7, averaged to 5 x 5.

    Parameters
    ----------
    input_shape : tuple of int
        (channels, height, width); height and width at least 2 for ``aaggff``.
    num_classes : int
        Number of logits.
    variant : str
        ``leaf`` or ``aaggff``.

    References
    ----------
    Caldas et al., LEAF: a benchmark for federated settings (2018), its models/celeba/cnn.py; Hahn
    et al., Pursuing overall welfare in federated learning through sequential decision making
    (ICML 2024), https://github.com/vaseline555/AAggFF, src/models/celebacnn.py.
    """

    def __init__(
        self, input_shape: tuple[int, ...], num_classes: int, variant: str = "leaf"
    ) -> None:
        super().__init__()
        channels, height, width = input_shape
        block = _BLOCK_BUILDERS[variant]
        layers: list[nn.Module] = []
        for number in range(NUM_BLOCKS):
            layers += [*block(channels, number), nn.ReLU()]
            channels, height, width = NUM_CHANNELS, -(-height // 2), -(-width // 2)
        if variant == "aaggff":
            layers.append(nn.AdaptiveAvgPool2d(AVG_POOL_SIZE))
            height = width = AVG_POOL_SIZE
        self.layers = nn.Sequential(
            *layers, nn.Flatten(), nn.Linear(NUM_CHANNELS * height * width, num_classes)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits (n, num_classes) of inputs (n, channels, height, width)."""
        logits: torch.Tensor = self.layers(x)
        return logits


def _build_leaf_block(channels: int, _number: int) -> list[nn.Module]:
    return [
        nn.Conv2d(channels, NUM_CHANNELS, 3, padding=1),
        nn.BatchNorm2d(NUM_CHANNELS),
        nn.MaxPool2d(2, ceil_mode=True),
    ]


def _build_aaggff_block(channels: int, number: int) -> list[nn.Module]:
    return [
        nn.Conv2d(channels, NUM_CHANNELS, 3, padding=1, bias=False),
        nn.GroupNorm(NUM_CHANNELS >> number, NUM_CHANNELS),
        nn.MaxPool2d(2, padding=1),
    ]


_BLOCK_BUILDERS: dict[str, Callable[[int, int], list[nn.Module]]] = {
    "leaf": _build_leaf_block,
    "aaggff": _build_aaggff_block,
}
