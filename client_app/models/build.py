"""From settings to a model with its initial values."""

import torch
from torch import nn

from client_app.models.cnn import CNN
from client_app.models.logistic_regression import LogisticRegression
from client_app.models.mlp import MLP
from conf.errors import SettingsError
from conf.schema import CnnSettings, LogisticRegressionSettings, MlpSettings, ModelSettings
from strategies.streams import derived_seed

SMALLEST_IMAGE = 16


def build_model(
    settings: ModelSettings, input_shape: tuple[int, ...], num_classes: int, seed: int
) -> nn.Module:
    """Return the model, initialised from (seed, "model") without touching torch's own state.

    Raises
    ------
    SettingsError
        If the model cannot take inputs of this shape.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(derived_seed(seed, "model"))
        if isinstance(settings, LogisticRegressionSettings):
            return LogisticRegression(input_shape, num_classes)
        if isinstance(settings, MlpSettings):
            return MLP(input_shape, num_classes, settings.hidden)
        if isinstance(settings, CnnSettings):
            image = len(input_shape) == len(("channels", "height", "width"))
            if not image or min(input_shape[1:]) < SMALLEST_IMAGE:
                raise SettingsError(
                    "model must be logistic_regression or mlp where inputs are no images of at "
                    f"least {SMALLEST_IMAGE} x {SMALLEST_IMAGE}, got cnn for inputs {input_shape}"
                )
            return CNN(input_shape, num_classes)
    raise TypeError(f"no model for {type(settings).__name__}")
