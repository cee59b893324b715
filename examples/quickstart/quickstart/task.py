"""Model, data and training."""

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CLASSES, PIXELS = 10, 64


class Net(nn.Module):
    """A small network for 8 x 8 images."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(PIXELS, 32)
        self.fc2 = nn.Linear(32, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits, shape (n, 10)."""
        return self.fc2(F.relu(self.fc1(x)))


def load_data(partition_id: int, num_partitions: int) -> tuple[DataLoader, DataLoader]:
    """Return a client's training and validation data: noisy patterns, each with its own classes."""
    patterns = torch.randn(CLASSES, PIXELS, generator=torch.Generator().manual_seed(0))
    rng = torch.Generator().manual_seed(1 + partition_id)
    size = 200 + 100 * partition_id
    classes = torch.tensor([k for k in range(CLASSES) if k % num_partitions != partition_id])
    labels = classes[torch.randint(len(classes), (size,), generator=rng)]
    images = patterns[labels] + 2.0 * torch.randn(size, PIXELS, generator=rng)
    cut = size * 4 // 5
    return (
        DataLoader(TensorDataset(images[:cut], labels[:cut]), batch_size=32, shuffle=True),
        DataLoader(TensorDataset(images[cut:], labels[cut:]), batch_size=32),
    )


def train(net: nn.Module, trainloader: DataLoader, epochs: int, lr: float) -> float:
    """Train, and return the mean loss of the batches."""
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    net.train()
    running_loss = 0.0
    for _ in range(epochs):
        for images, labels in trainloader:
            optimizer.zero_grad()
            loss = F.cross_entropy(net(images), labels)
            loss.backward()
            optimizer.step()
            running_loss += loss.item()
    return running_loss / (epochs * len(trainloader))


@torch.no_grad()
def test(net: nn.Module, testloader: DataLoader) -> tuple[float, float]:
    """Return loss and accuracy."""
    net.eval()
    correct, loss = 0, 0.0
    for images, labels in testloader:
        outputs = net(images)
        loss += F.cross_entropy(outputs, labels, reduction="sum").item()
        correct += int((outputs.argmax(1) == labels).sum())
    count = len(testloader.dataset)
    return loss / count, correct / count
