"""fedau: A Flower Baseline."""

import torch
from torch import nn

from fedau.utils import NUM_CLASSES, SOURCES


class Net(nn.Module):
    """The authors' network: two 3x3 convolutions and one or two hidden layers.

    Weights before a ReLU are Kaiming-initialized with biases 0.

    Parameters
    ----------
    dataset : str
        The data set, which determines the input's shape and the hidden layers.
    """

    def __init__(self, dataset: str):
        super().__init__()
        channels, height, width = SOURCES[dataset].shape
        layers: list[nn.Module] = []
        for inputs in (channels, 32):
            layers += [nn.Conv2d(inputs, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        layers.append(nn.Flatten())
        size = 32 * (height // 4) * (width // 4)
        for units in SOURCES[dataset].hidden:
            layers += [nn.Linear(size, units), nn.ReLU()]
            size = units
        for layer in layers:
            if isinstance(layer, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
                nn.init.zeros_(layer.bias)
        self.layers = nn.Sequential(*layers, nn.Linear(size, NUM_CLASSES))

    def forward(self, x):
        """Return the logits."""
        return self.layers(x)


def train(net, batches, lr: float, device) -> float:
    """Take one step of SGD for each batch, and return the mean loss."""
    net.to(device).train()
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    losses = []
    for images, labels in batches:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(images.to(device)), labels.to(device))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return sum(losses) / len(losses)


def test(net, images, labels, device) -> tuple[float, float]:
    """Return the mean loss and the accuracy."""
    net.to(device).eval()
    loss, correct = 0.0, 0
    with torch.no_grad():
        for x, y in zip(images.split(1000), labels.split(1000), strict=True):
            outputs = net(x.to(device)).cpu()
            loss += nn.functional.cross_entropy(outputs, y, reduction="sum").item()
            correct += int((outputs.argmax(1) == y).sum())
    return loss / len(labels), correct / len(labels)
