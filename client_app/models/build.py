"""From settings to a model with its initial values."""

import torch
from torch import nn

from client_app.models.cnn import CNN
from client_app.models.logistic_regression import LogisticRegression
from client_app.models.m5 import M5, SMALLEST
from client_app.models.mlp import MLP
from client_app.models.small_cnn import SmallCNN
from client_app.randomness import torch_seeded
from conf.errors import SettingsError
from conf.schema import (
    CnnSettings,
    LogisticRegressionSettings,
    M5Settings,
    MlpSettings,
    ModelSettings,
    SmallCnnSettings,
)
from strategies.streams import derived_seed


def build_model(
    settings: ModelSettings, input_shape: tuple[int, ...], num_classes: int, seed: int
) -> nn.Module:
    """Return the model, initialised from (seed, "model") without touching torch's own state.

    Raises
    ------
    SettingsError
        If the model cannot take inputs of this shape.
    """
    with torch_seeded(derived_seed(seed, "model"), torch.device("cpu")):
        if isinstance(settings, LogisticRegressionSettings):
            return LogisticRegression(input_shape, num_classes)
        if isinstance(settings, MlpSettings):
            return MLP(input_shape, num_classes, settings.hidden)
        if isinstance(settings, CnnSettings):
            _check_images(settings.name, input_shape, smallest=16)
            return CNN(input_shape, num_classes)
        if isinstance(settings, SmallCnnSettings):
            _check_images(settings.name, input_shape, smallest=4)
            return SmallCNN(input_shape, num_classes, settings.hidden, settings.dropout)
        if isinstance(settings, M5Settings):
            _check_sound(settings.name, input_shape)
            return M5(input_shape, num_classes, settings.channels)
    raise TypeError(f"no model for {type(settings).__name__}")


def _check_images(name: str, input_shape: tuple[int, ...], smallest: int) -> None:
    image = len(input_shape) == len(("channels", "height", "width"))
    if not image or min(input_shape[1:]) < smallest:
        raise SettingsError(
            f"model must be another than {name} where inputs are no images of at least "
            f"{smallest} x {smallest}, got {name} for inputs {input_shape}"
        )


def _check_sound(name: str, input_shape: tuple[int, ...]) -> None:
    sound = len(input_shape) == len(("channels", "length"))
    if not sound or input_shape[1] < SMALLEST:
        raise SettingsError(
            f"model must be another than {name} where inputs are no sound of a length of at least "
            f"{SMALLEST}, got {name} for inputs {input_shape}"
        )
