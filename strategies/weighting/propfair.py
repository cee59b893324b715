"""PropFair: weights that grow as the loss comes near the largest acceptable one."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from strategies.parameters import POSITIVE
from strategies.types import Call, FloatArray, IntArray, Population, Responses, Weights
from strategies.weighting.base import Weighting
from strategies.weighting.exponentiated_gradient import by_losses_of_a_round, mix


@dataclass(frozen=True)
class PropFair:
    """c_i proportional to w_i / max(M - F_i, epsilon), w_i the fraction of the data heard.

    In the language of exponentiated gradients r_i = -log max(M - F_i, epsilon) on the prior w:
    the weights of the gradient of -sum_i w_i log_eps (M - F_i). The logarithm is continued
    along its tangent where M - F < epsilon, as in the paper, so that F < M holds wherever it is
    taken and a loss above M has the largest weight, 1 / epsilon, and not a negative one.

    The paper's algorithm puts the objective into every client's minibatches; this is its mixing
    form, which leaves local training alone.

    Parameters
    ----------
    bound : float
        M > 0, a loss that no client should have, in units of the loss.
    guard : float
        epsilon > 0, in units of the loss; the paper's 0.2.

    Raises
    ------
    ParameterError
        For a value outside its range.

    References
    ----------
    Zhang, Malekmohammadi, Chen and Yu, "Proportional Fairness in Federated Learning", TMLR 2023,
    Algorithm 1; the mixing form Hahn, Kim and Lee 2024, Table 1.
    """

    needs_losses: ClassVar[bool] = True
    fixed_divisor: ClassVar[bool] = False
    factor: ClassVar[str] = "w_k / max(M - F_k, epsilon)"
    divisor: ClassVar[str] = "the sum of the same over {whom}"
    bound: float = 3.0
    guard: float = 0.2

    def __post_init__(self) -> None:
        POSITIVE.check("bound", self.bound)
        POSITIVE.check("guard", self.guard)

    def over_known(self) -> Weighting[Any]:
        """Refuse, with the reason as a ``ParameterError``."""
        raise by_losses_of_a_round("propfair")

    def init(self, population: Population) -> IntArray:
        """Return the clients ascending, shape (K,): nothing else is remembered."""
        return population.ascending

    def weigh(
        self, state: IntArray, call: Call, responses: Responses, share: FloatArray
    ) -> tuple[IntArray, Weights]:
        """Return c_i.

        Raises
        ------
        ValueError
            If the clients did not measure the model they received.
        """
        return state, mix(state, call, responses, share, self._respond)

    def _respond(self, loss: FloatArray) -> FloatArray:
        response: FloatArray = -np.log(np.maximum(self.bound - loss, self.guard))
        return response
