"""Which models draw random numbers."""

import pytest
import torch
from torch import nn

from client_app.models import CNN, SmallCNN, TextCNN
from client_app.rng import has_random_layers
from client_app.training.dropout import replace_dropout


class Foreign(nn.Module):
    """Drops numbers in a way that its layers do not tell."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x, half of it dropped."""
        return nn.functional.dropout(x)


@pytest.mark.parametrize(
    ("model", "draws"),
    [
        (SmallCNN((1, 8, 8), 3), False),
        (SmallCNN((1, 8, 8), 3, dropout=0.1), True),
        (CNN((1, 16, 16), 3), False),
        (nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.0)), False),
        (nn.Sequential(nn.Linear(2, 2), nn.AlphaDropout(0.1)), True),
        (TextCNN(9, 3), False),
        (TextCNN(9, 3, dropout=0.1), True),
        (replace_dropout(TextCNN(9, 3, dropout=0.1), torch.ones(1, 4, dtype=torch.int64)), False),
        (nn.LSTM(2, 2, num_layers=2), False),
        (nn.LSTM(2, 2, num_layers=2, dropout=0.1), True),
        (nn.MultiheadAttention(2, 1), False),
        (nn.MultiheadAttention(2, 1, dropout=0.1), True),
        (nn.RReLU(), True),
        (nn.Sequential(Foreign()), True),
    ],
)
def test_models_with_random_layers(model: nn.Module, draws: bool) -> None:
    """Dropout of any kind does unless its share is 0; of a foreign model nobody knows."""
    assert has_random_layers(model) is draws
