"""Initial values that several models share."""

from torch import nn


def kaiming(layers: nn.Sequential) -> None:
    """Give convolutions and fully connected layers N(0, 2 / fan-in) weights and biases 0.

    References
    ----------
    He et al. 2015, Delving deep into rectifiers.
    """
    for layer in layers:
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
