"""PropFair: weights that grow as the loss comes near the largest acceptable one."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..parameters import POSITIVE
from ..report import Decided
from ..rule import parameter
from ..search import Between
from ..types import FloatArray
from ..words import digits
from .exponentiated_gradient import PriorMixing


@dataclass(frozen=True)
class LossHeadroom(PriorMixing):
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

    key = "propfair"
    summary = "PropFair: weights by 1 / (M - loss)."
    factor = "w_k / max(M - F_k, epsilon)"

    bound: float = parameter(3.0, POSITIVE, Between(2.0, 10.0))
    guard: float = parameter(0.2, POSITIVE)

    def respond(self, loss: FloatArray) -> FloatArray:
        """Return -log max(M - F_i, epsilon)."""
        response: FloatArray = -np.log(np.maximum(self.bound - loss, self.guard))
        return response

    def explain(self, decided: Decided, place: int) -> Iterator[str]:
        """Yield the weight by the distance from M with its numbers."""
        loss = digits(decided.responses.loss[place])
        formula = (
            f"-log max(M - F_k, {self.guard:g}) = -log max({self.bound:g} - {loss}, {self.guard:g})"
        )
        yield from self.explain_prior(formula, decided, place)
