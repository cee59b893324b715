"""Define the base model, the data, and the training of the adapter."""

import torch
import torch.nn.functional as F  # noqa: N812 - the usual name
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from adapter.lora import add_adapters

CLASSES, PIXELS, WIDTH = 10, 64, 512


def build_base() -> nn.Module:
    """Return the base model of 0.3 million parameters: random, but the same on every machine.

    In your app, read it from a file that every node has.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Linear(PIXELS, WIDTH),
            nn.ReLU(),
            nn.Linear(WIDTH, WIDTH),
            nn.ReLU(),
            nn.Linear(WIDTH, CLASSES),
        )
        for name, parameter in model.named_parameters():
            if name.endswith("weight"):
                nn.init.kaiming_normal_(parameter)
        return model


def build_model(rank: int) -> nn.Module:
    """Return the base model with adapters, whose initial A is the same on every machine."""
    model = build_base()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return add_adapters(model, rank)


def load_data(partition_id: int) -> tuple[DataLoader, DataLoader]:
    """Return a client's training and validation data: noisy patterns of 10 classes."""
    patterns = torch.randn(CLASSES, PIXELS, generator=torch.Generator().manual_seed(0))
    rng = torch.Generator().manual_seed(1 + partition_id)
    size = 200 + 100 * partition_id
    labels = torch.randint(CLASSES, (size,), generator=rng)
    images = patterns[labels] + torch.randn(size, PIXELS, generator=rng)
    cut = size * 4 // 5
    return (
        DataLoader(TensorDataset(images[:cut], labels[:cut]), batch_size=32, shuffle=True),
        DataLoader(TensorDataset(images[cut:], labels[cut:]), batch_size=32),
    )


def train(model: nn.Module, loader: DataLoader, epochs: int, lr: float) -> float:
    """Train the adapter, and return the mean loss of the batches."""
    adapter = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(adapter, lr=lr)
    losses = []
    for _ in range(epochs):
        for images, labels in loader:
            loss = F.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return sum(losses) / len(losses)


@torch.no_grad()
def test(model: nn.Module, loader: DataLoader) -> tuple[float, float]:
    """Return loss and accuracy."""
    correct, loss, count = 0, 0.0, 0
    for images, labels in loader:
        outputs = model(images)
        loss += F.cross_entropy(outputs, labels, reduction="sum").item()
        correct += int((outputs.argmax(1) == labels).sum())
        count += len(labels)
    return loss / count, correct / count
