"""How the combined update moves the model."""

from strategies.server_optimizer.base import Parameters, ServerOptimizer
from strategies.server_optimizer.sgd import SGD

__all__ = ["SGD", "Parameters", "ServerOptimizer"]
