"""What one sample costs a model."""

import torch
from torch import nn

from client_app.costs import flops_of_sample, numbers_of_sample


def test_flops_of_a_sample() -> None:
    """Two for each weight and output position, counted by hand; the mode is as before."""
    linear = nn.Linear(7, 3)
    assert flops_of_sample(linear, torch.zeros(4, 7)) == 2 * 7 * 3
    convolution = nn.Sequential(nn.Conv2d(2, 5, 3), nn.BatchNorm2d(5)).train()
    assert flops_of_sample(convolution, torch.zeros(2, 2, 6, 8)) == 2 * (2 * 9) * 5 * (4 * 6)
    assert convolution.training
    assert int(convolution.state_dict()["1.num_batches_tracked"]) == 0


def test_numbers_of_a_sample() -> None:
    """Those of the input and of every layer's output, counted by hand; the mode is as before."""
    model = nn.Sequential(nn.Conv2d(2, 5, 3), nn.ReLU(), nn.Flatten(), nn.Linear(120, 7)).train()
    counted = 2 * 6 * 8 + 3 * (5 * 4 * 6) + 7
    assert numbers_of_sample(model, torch.zeros(3, 2, 6, 8)) == counted
    assert model.training
