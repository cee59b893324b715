"""Step the model by the combined update."""

from typing import Any

from ..rule import index_by_key
from .adagrad import Adagrad
from .adam import Adam
from .base import Parameters, ServerOptimizer
from .momentum import Momentum
from .sgd import SGD
from .yogi import Yogi

SERVER_OPTIMIZERS: dict[str, type[ServerOptimizer[Any]]] = index_by_key(
    (SGD, Momentum, Adam, Yogi, Adagrad)
)
"""All server optimizers by their keys."""

__all__ = [
    "SERVER_OPTIMIZERS",
    "SGD",
    "Adagrad",
    "Adam",
    "Momentum",
    "Parameters",
    "ServerOptimizer",
    "Yogi",
]
