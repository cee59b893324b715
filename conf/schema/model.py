"""Define the settings of the models."""

from dataclasses import dataclass, field
from typing import Any

from fedquorum.rules.parameters import (
    FRACTION_BELOW_ONE,
    MODEL_INIT,
    POSITIVE_INT,
    POSITIVE_INTS,
    OneOf,
)
from fedquorum.rules.rule import parameter
from omegaconf import MISSING

from conf.schema.ranges import ARGUMENTS, FilePath, ImportPath

MODULE = "module"


@dataclass
class ModelSettings:
    """A model by name. Its input and output follow from the data.

    ``init``: the initial values, see ``client_app.models.init``.
    """

    name: str = MISSING
    init: str = parameter("default", MODEL_INIT)


@dataclass
class LogisticRegressionSettings(ModelSettings):
    """One linear layer with bias on the flattened input; see ``client_app.models``."""

    name: str = "logistic_regression"


@dataclass
class MlpSettings(ModelSettings):
    """Two hidden layers of ``hidden`` units with ReLU; see ``client_app.models.MLP``."""

    name: str = "mlp"
    hidden: int = parameter(200, POSITIVE_INT)


@dataclass
class CnnSettings(ModelSettings):
    """Two convolutions and three fully connected layers with batch normalization.

    See ``client_app.models.CNN``.
    """

    name: str = "cnn"


@dataclass
class SmallCnnSettings(ModelSettings):
    """Two 3x3 convolutions of 32 channels and fully connected layers.

    See ``client_app.models.SmallCNN``.
    """

    name: str = "small_cnn"
    hidden: list[int] = field(
        default_factory=lambda: [256, 64], metadata={"allowed": POSITIVE_INTS}
    )
    dropout: float = parameter(0.0, FRACTION_BELOW_ONE)


@dataclass
class M5Settings(ModelSettings):
    """Four convolutions for sound, with c, c, 2c and ``widening`` c ``channels``.

    See ``client_app.models.M5``.
    """

    name: str = "m5"
    channels: int = parameter(32, POSITIVE_INT)
    widening: int = parameter(2, POSITIVE_INT)
    padding: int = parameter(0, OneOf((0, 1)))


@dataclass
class CelebaCnnSettings(ModelSettings):
    """Four 3x3 convolutions of 32 channels, LEAF's network or that of AAggFF's authors.

    See ``client_app.models.CelebaCNN``.
    """

    name: str = "celeba_cnn"
    variant: str = parameter("leaf", OneOf(("leaf", "aaggff")))


@dataclass
class EfficientNetSettings(ModelSettings):
    """EfficientNet from torchvision, for color images. Only the server reads ``pretrained``.

    See ``client_app.models.efficientnet``; ``dropout`` null is torchvision's for the variant.
    """

    name: str = "efficientnet"
    variant: str = parameter("b0", OneOf(tuple(f"b{i}" for i in range(8))))
    dropout: float | None = parameter(None, FRACTION_BELOW_ONE)
    pretrained: str | None = parameter(None, FilePath("a file of weights"))


@dataclass
class LstmSettings(ModelSettings):
    """A recurrent network for tokens; see ``client_app.models.LSTM``."""

    name: str = "lstm"
    embedding: int = parameter(256, POSITIVE_INT)
    hidden: int = parameter(256, POSITIVE_INT)
    layers: int = parameter(2, POSITIVE_INT)


@dataclass
class TextCnnSettings(ModelSettings):
    """A small convolutional network for tokens; see ``client_app.models.TextCNN``."""

    name: str = "text"
    embedding: int = parameter(64, POSITIVE_INT)
    channels: int = parameter(64, POSITIVE_INT)
    dropout: float = parameter(0.0, FRACTION_BELOW_ONE)


@dataclass
class DistilBertSettings(ModelSettings):
    """DistilBERT from transformers, for tokens: ``pip install transformers``.

    See ``client_app.models.DistilBERT``; only the server reads ``pretrained``.
    """

    name: str = "distilbert"
    layers: int = parameter(6, POSITIVE_INT)
    width: int = parameter(768, POSITIVE_INT)
    heads: int = parameter(12, POSITIVE_INT)
    dropout: float = parameter(0.1, FRACTION_BELOW_ONE)
    pretrained: str | None = parameter(None, FilePath("a folder of weights"))


@dataclass
class ModuleSettings(ModelSettings):
    """Any ``torch.nn.Module``: ``model.path=package.module.Class 'model.args={name: value}'``.

    See ``client_app.models.custom``.
    """

    name: str = MODULE
    path: str = parameter("", ImportPath())
    args: Any = field(default=None, metadata={"allowed": ARGUMENTS})
