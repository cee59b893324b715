"""From settings to a model with its initial values."""

import torch
from torch import nn

from client_app.models.logistic_regression import LogisticRegression
from conf.schema import LogisticRegressionSettings, ModelSettings
from strategies.streams import derived_seed


def build_model(
    settings: ModelSettings, input_shape: tuple[int, ...], num_classes: int, seed: int
) -> nn.Module:
    """Return the model, initialised from (seed, "model") without touching torch's own state."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(derived_seed(seed, "model"))
        if isinstance(settings, LogisticRegressionSettings):
            return LogisticRegression(input_shape, num_classes)
    raise TypeError(f"no model for {type(settings).__name__}")
