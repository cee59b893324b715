"""TERM: weights that grow exponentially with the loss."""

from dataclasses import dataclass
from typing import Any, ClassVar

from strategies.parameters import REAL
from strategies.types import Call, FloatArray, IntArray, Population, Responses, Weights
from strategies.weighting.base import Weighting
from strategies.weighting.exponentiated_gradient import by_losses_of_a_round, mix


@dataclass(frozen=True)
class TERM:
    """c_i = w_i exp(lambda F_i) / sum_j w_j exp(lambda F_j), w_i the fraction of the data heard.

    In the language of exponentiated gradients r_i = lambda F_i on the prior w: the weights of
    the gradient of (1 / lambda) log sum_i w_i exp(lambda F_i).

    Parameters
    ----------
    tilt : float
        lambda: positive looks at the large losses, negative at the small ones, 0 is FedAvg.

    Raises
    ------
    ParameterError
        If ``tilt`` is not a finite number.

    References
    ----------
    Li, Beirami, Sanjabi and Smith, "Tilted Empirical Risk Minimization", ICLR 2021, Lemma 1, and
    its tilting over groups; Hahn, Kim and Lee 2024, Table 1.
    """

    needs_losses: ClassVar[bool] = True
    fixed_divisor: ClassVar[bool] = False
    factor: ClassVar[str] = "w_k exp(lambda F_k)"
    divisor: ClassVar[str] = "the sum of the same over {whom}"
    tilt: float = 1.0

    def __post_init__(self) -> None:
        REAL.check("tilt", self.tilt)

    def over_known(self) -> Weighting[Any]:
        """Refuse, with the reason as a ``ParameterError``."""
        raise by_losses_of_a_round("term")

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
        return state, mix(state, call, responses, share, lambda loss: self.tilt * loss)
