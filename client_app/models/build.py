"""Build a model with its initial values from the settings."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from fedquorum.errors import SettingsError
from fedquorum.rng import derive_seed
from torch import nn

from client_app.data.base import FederatedData
from client_app.losses import check_task, count_outputs
from client_app.models.celeba_cnn import CelebaCNN
from client_app.models.cnn import CNN
from client_app.models.custom import check_model_outputs, import_model
from client_app.models.distilbert import DistilBERT
from client_app.models.efficientnet import build_efficientnet
from client_app.models.init import initialize_weights
from client_app.models.logistic_regression import LogisticRegression
from client_app.models.lstm import LSTM
from client_app.models.m5 import M5, compute_min_length
from client_app.models.mlp import MLP
from client_app.models.small_cnn import SmallCNN
from client_app.models.text_cnn import TextCNN
from client_app.rng import seed_torch
from conf.schema.model import (
    CelebaCnnSettings,
    CnnSettings,
    DistilBertSettings,
    EfficientNetSettings,
    LogisticRegressionSettings,
    LstmSettings,
    M5Settings,
    MlpSettings,
    ModelSettings,
    ModuleSettings,
    SmallCnnSettings,
    TextCnnSettings,
)
from conf.schema.settings import Settings

TOKEN_MODELS = (LstmSettings, TextCnnSettings, DistilBertSettings)


@dataclass(frozen=True)
class ModelShapes:
    """The shapes of inputs and outputs; see ``build_model``."""

    input_shape: tuple[int, ...]
    num_outputs: int
    num_tokens: int
    sequence: bool


def build_model(
    settings: ModelSettings,
    input_shape: tuple[int, ...],
    num_outputs: int,
    seed: int,
    *,
    num_tokens: int | None = None,
    sequence: bool = False,
    pretrained: bool = True,
) -> nn.Module:
    """Return the model, initialized from (seed, "model") without touching torch's own state.

    Parameters
    ----------
    settings : ModelSettings
    input_shape : tuple of int
        Shape of one input: (channels, height, width) of an image, (channels, length) of sound,
        (length,) of a text.
    num_outputs : int
        Outputs of one prediction.
    seed : int
        The run's seed.
    num_tokens : int, optional
        Size of the vocabulary if inputs are tokens, int64; other inputs are float32.
    sequence : bool
        Whether each position of the input has a prediction.
    pretrained : bool
        Whether to read the weights that the settings name; a received model replaces them.

    Raises
    ------
    SettingsError
        If the model does not support inputs of this shape, or such outputs.
    """
    _check_kind(settings, num_tokens, sequence)
    with seed_torch(derive_seed(seed, "model"), torch.device("cpu")):
        shapes = ModelShapes(input_shape, num_outputs, num_tokens or 0, sequence)
        model = _create_model(settings, shapes, pretrained=pretrained)
        initialize_weights(model, settings.init)
        if isinstance(settings, ModuleSettings):
            inputs = create_example_inputs(input_shape, num_tokens)
            outputs = (*input_shape, num_outputs) if sequence else (num_outputs,)
            check_model_outputs(model, settings.path, inputs, outputs)
        return model


def build_model_for(
    settings: Settings, data: FederatedData, *, pretrained: bool = True
) -> nn.Module:
    """Return the model of the settings for this data; see ``build_model``.

    Raises
    ------
    SettingsError
        If the model, the loss or the metric does not fit the data.
    """
    check_task(settings, data)
    return build_model(
        settings.model,
        data.input_shape,
        count_outputs(settings, data),
        settings.seed,
        num_tokens=data.num_tokens,
        sequence=data.target == "sequence",
        pretrained=pretrained,
    )


def create_example_inputs(input_shape: tuple[int, ...], num_tokens: int | None) -> torch.Tensor:
    """Return two inputs of zeros, float32, or int64 for tokens."""
    dtype = torch.float32 if num_tokens is None else torch.int64
    return torch.zeros((2, *input_shape), dtype=dtype)


def _create_model(settings: ModelSettings, shapes: ModelShapes, *, pretrained: bool) -> nn.Module:
    if isinstance(settings, EfficientNetSettings):
        _check_images(settings.name, shapes.input_shape, min_size=1, channels=3)
        weights = settings.pretrained if pretrained else None
        return build_efficientnet(
            settings.variant, shapes.num_outputs, weights, dropout=settings.dropout
        )
    if isinstance(settings, DistilBertSettings):
        return DistilBERT(
            shapes.num_tokens,
            shapes.num_outputs,
            shapes.input_shape[0],
            layers=settings.layers,
            width=settings.width,
            heads=settings.heads,
            dropout=settings.dropout,
            pretrained=settings.pretrained if pretrained else None,
        )
    if type(settings) not in _BUILDERS:
        raise TypeError(f"no model for {type(settings).__name__}")
    return _BUILDERS[type(settings)](settings, shapes)


def _build_cnn(settings: CnnSettings, shapes: ModelShapes) -> nn.Module:
    _check_images(settings.name, shapes.input_shape, min_size=16)
    return CNN(shapes.input_shape, shapes.num_outputs)


def _build_small_cnn(settings: SmallCnnSettings, shapes: ModelShapes) -> nn.Module:
    _check_images(settings.name, shapes.input_shape, min_size=4)
    return SmallCNN(shapes.input_shape, shapes.num_outputs, settings.hidden, settings.dropout)


def _build_celeba_cnn(settings: CelebaCnnSettings, shapes: ModelShapes) -> nn.Module:
    # Group normalization with one group per channel needs two numbers in a channel.
    smallest = 1 if settings.variant == "leaf" else 2
    _check_images(settings.name, shapes.input_shape, smallest)
    return CelebaCNN(shapes.input_shape, shapes.num_outputs, settings.variant)


def _build_m5(settings: M5Settings, shapes: ModelShapes) -> nn.Module:
    _check_sound(settings.name, shapes.input_shape, compute_min_length(settings.padding))
    return M5(
        shapes.input_shape,
        shapes.num_outputs,
        settings.channels,
        settings.widening,
        settings.padding,
    )


def _build_lstm(settings: LstmSettings, shapes: ModelShapes) -> nn.Module:
    return LSTM(
        shapes.num_tokens,
        shapes.num_outputs,
        settings.embedding,
        settings.hidden,
        settings.layers,
        every_position=shapes.sequence,
    )


def _build_text_cnn(settings: TextCnnSettings, shapes: ModelShapes) -> nn.Module:
    return TextCNN(
        shapes.num_tokens,
        shapes.num_outputs,
        settings.embedding,
        settings.channels,
        settings.dropout,
    )


_BUILDERS: Mapping[type[ModelSettings], Callable[[Any, ModelShapes], nn.Module]] = {
    LogisticRegressionSettings: lambda _, shapes: LogisticRegression(
        shapes.input_shape, shapes.num_outputs
    ),
    MlpSettings: lambda settings, shapes: MLP(
        shapes.input_shape, shapes.num_outputs, settings.hidden
    ),
    CnnSettings: _build_cnn,
    SmallCnnSettings: _build_small_cnn,
    CelebaCnnSettings: _build_celeba_cnn,
    M5Settings: _build_m5,
    LstmSettings: _build_lstm,
    TextCnnSettings: _build_text_cnn,
    ModuleSettings: lambda settings, _: import_model(settings.path, settings.args or {}),
}


def _check_kind(settings: ModelSettings, num_tokens: int | None, sequence: bool) -> None:
    name = settings.name
    if sequence and not isinstance(settings, (LstmSettings, ModuleSettings)):
        raise SettingsError(
            f"model must be lstm or module where each position has a target, got {name}"
        )
    if num_tokens is None and isinstance(settings, TOKEN_MODELS):
        raise SettingsError(
            f"model={name} needs inputs of tokens, got data of numbers; model=logistic_regression "
            "and model=mlp take any"
        )
    if num_tokens is not None and not isinstance(settings, (*TOKEN_MODELS, ModuleSettings)):
        raise SettingsError(
            "model must be one of lstm, text, distilbert, module where inputs are tokens, got "
            f"{name}"
        )


def _check_images(
    name: str, input_shape: tuple[int, ...], min_size: int, channels: int | None = None
) -> None:
    is_image = len(input_shape) == len(("channels", "height", "width"))
    if not is_image or min(input_shape[1:]) < min_size or channels not in {None, input_shape[0]}:
        channel_text = f" and {channels} channels" if channels else ""
        raise SettingsError(
            f"model={name} needs images of at least {min_size} x {min_size}{channel_text}, got "
            f"inputs of shape {input_shape}; model=logistic_regression and model=mlp take any"
        )


def _check_sound(name: str, input_shape: tuple[int, ...], min_length: int) -> None:
    is_sound = len(input_shape) == len(("channels", "length"))
    if not is_sound or input_shape[1] < min_length:
        raise SettingsError(
            f"model={name} needs sound of a length of at least {min_length}, got inputs of shape "
            f"{input_shape}; model=logistic_regression and model=mlp take any"
        )
