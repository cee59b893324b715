"""What one sample costs a model."""

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from client_app.models import build_model
from client_app.training.flops import count_sample_activations, count_sample_flops
from conf import compose_settings


def test_flops_of_a_sample() -> None:
    """Two for each weight and output position, counted by hand; the mode is as before."""
    linear = nn.Linear(7, 3)
    assert count_sample_flops(linear, torch.zeros(4, 7)) == 2 * 7 * 3
    convolution = nn.Sequential(nn.Conv2d(2, 5, 3), nn.BatchNorm2d(5)).train()
    assert count_sample_flops(convolution, torch.zeros(2, 2, 6, 8)) == 2 * (2 * 9) * 5 * (4 * 6)
    assert convolution.training
    assert int(convolution.state_dict()["1.num_batches_tracked"]) == 0


def test_flops_of_a_sample_of_tokens() -> None:
    """Looking up is free; a recurrent layer's weights are used at every step."""

    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(10, 8)
            self.recurrent = nn.LSTM(8, 16, 2, batch_first=True)
            self.out = nn.Linear(16, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            states, _ = self.recurrent(self.embedding(x))
            return torch.as_tensor(self.out(states))

    recurrent = 4 * 16 * (8 + 16) + 4 * 16 * (16 + 16)
    expected = 2 * 5 * (recurrent + 16 * 10)
    assert count_sample_flops(Tokens(), torch.zeros((3, 5), dtype=torch.int64)) == expected


@pytest.mark.parametrize("name", ["celeba_cnn", "cnn", "efficientnet", "mlp", "small_cnn"])
def test_flops_are_those_that_torch_counts(name: str) -> None:
    """Layers of an image's models count as with torch's own, slower counter."""
    settings = compose_settings("", f"model={name}").settings.model
    model = build_model(settings, (3, 84, 84), 10, seed=1, pretrained=False).eval()
    x = torch.zeros(2, 3, 84, 84)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(x)
    assert count_sample_flops(model, x) == counter.get_total_flops() // 2 > 0


def test_numbers_of_a_sample() -> None:
    """Those of the input and of every layer's output, counted by hand; the mode is as before."""
    model = nn.Sequential(nn.Conv2d(2, 5, 3), nn.ReLU(), nn.Flatten(), nn.Linear(120, 7)).train()
    counted = 2 * 6 * 8 + 3 * (5 * 4 * 6) + 7
    assert count_sample_activations(model, torch.zeros(3, 2, 6, 8)) == counted
    assert model.training
