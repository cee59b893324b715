"""Settings of the server optimizers."""

from dataclasses import dataclass

from omegaconf import MISSING

from conf.schema.ranges import setting
from strategies.parameters import POSITIVE, SHARE_BELOW_ONE, OneOf


@dataclass
class ServerOptimizerSettings:
    """How the combined update moves the model, by ``strategy.server_lr``; SGD."""

    name: str = "sgd"


@dataclass
class MomentumSettings(ServerOptimizerSettings):
    """See ``strategies.server_optimizer.Momentum``."""

    name: str = "momentum"
    momentum: float = setting(0.9, SHARE_BELOW_ONE)


@dataclass
class AdaptiveSettings(ServerOptimizerSettings):
    """What Adam, Yogi and Adagrad have; see ``strategies.server_optimizer``."""

    beta1: float = setting(0.9, SHARE_BELOW_ONE)
    tau: float = setting(1e-3, POSITIVE)


@dataclass
class AdamSettings(AdaptiveSettings):
    """See ``strategies.server_optimizer.Adam`` and ``Yogi``."""

    name: str = setting(MISSING, OneOf(("adam", "yogi")))
    beta2: float = setting(0.99, SHARE_BELOW_ONE)


@dataclass
class AdagradSettings(AdaptiveSettings):
    """See ``strategies.server_optimizer.Adagrad``."""

    name: str = "adagrad"
    beta1: float = setting(0.0, SHARE_BELOW_ONE)
