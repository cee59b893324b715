"""How the combined update moves the model."""

from strategies.server_optimizer.adagrad import Adagrad
from strategies.server_optimizer.adam import Adam
from strategies.server_optimizer.base import OptimizerOf, Parameters, ServerOptimizer
from strategies.server_optimizer.momentum import Momentum
from strategies.server_optimizer.sgd import SGD
from strategies.server_optimizer.yogi import Yogi

__all__ = [
    "SGD",
    "Adagrad",
    "Adam",
    "Momentum",
    "OptimizerOf",
    "Parameters",
    "ServerOptimizer",
    "Yogi",
]
