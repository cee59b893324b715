"""Settings of the models."""

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING

from conf.schema.ranges import ARGUMENTS, FilePath, ImportPath, setting
from strategies.parameters import COUNT, COUNTS, MODEL_INIT, SHARE_BELOW_ONE, OneOf


@dataclass
class ModelSettings:
    """A model by name; its input and output follow from the data.

    ``init``: the initial values, see ``client_app.models.initialisation``.
    """

    name: str = MISSING
    init: str = setting("default", MODEL_INIT)


@dataclass
class LogisticRegressionSettings(ModelSettings):
    """See ``client_app.models``."""

    name: str = "logistic_regression"


@dataclass
class MlpSettings(ModelSettings):
    """See ``client_app.models.MLP``."""

    name: str = "mlp"
    hidden: int = setting(200, COUNT)


@dataclass
class CnnSettings(ModelSettings):
    """See ``client_app.models.CNN``."""

    name: str = "cnn"


@dataclass
class SmallCnnSettings(ModelSettings):
    """See ``client_app.models.SmallCNN``."""

    name: str = "small_cnn"
    hidden: list[int] = field(default_factory=lambda: [256, 64], metadata={"allowed": COUNTS})
    dropout: float = setting(0.0, SHARE_BELOW_ONE)


@dataclass
class M5Settings(ModelSettings):
    """See ``client_app.models.M5``."""

    name: str = "m5"
    channels: int = setting(32, COUNT)


@dataclass
class CelebaCnnSettings(ModelSettings):
    """See ``client_app.models.CelebaCNN``."""

    name: str = "celeba_cnn"


@dataclass
class EfficientNetSettings(ModelSettings):
    """See ``client_app.models.efficientnet``; ``pretrained`` is read by the server only."""

    name: str = "efficientnet"
    variant: str = setting("b0", OneOf(tuple(f"b{i}" for i in range(8))))
    pretrained: str | None = setting(None, FilePath("a file of weights"))


@dataclass
class LstmSettings(ModelSettings):
    """See ``client_app.models.LSTM``."""

    name: str = "lstm"
    embedding: int = setting(256, COUNT)
    hidden: int = setting(256, COUNT)
    layers: int = setting(2, COUNT)


@dataclass
class TextCnnSettings(ModelSettings):
    """See ``client_app.models.TextCNN``."""

    name: str = "text"
    embedding: int = setting(64, COUNT)
    channels: int = setting(64, COUNT)
    dropout: float = setting(0.0, SHARE_BELOW_ONE)


@dataclass
class DistilBertSettings(ModelSettings):
    """See ``client_app.models.DistilBERT``; ``pretrained`` is read by the server only."""

    name: str = "distilbert"
    layers: int = setting(6, COUNT)
    width: int = setting(768, COUNT)
    heads: int = setting(12, COUNT)
    dropout: float = setting(0.1, SHARE_BELOW_ONE)
    pretrained: str | None = setting(None, FilePath("a folder of weights"))


@dataclass
class ModuleSettings(ModelSettings):
    """Any ``torch.nn.Module``, made by ``path`` of ``args``; see ``client_app.models.module``."""

    name: str = "module"
    path: str = setting("", ImportPath())
    args: Any = field(default=None, metadata={"allowed": ARGUMENTS})
