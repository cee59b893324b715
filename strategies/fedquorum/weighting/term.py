"""TERM: weights that grow exponentially with the loss."""

from collections.abc import Iterator
from dataclasses import dataclass

from ..parameters import REAL
from ..report import Decided
from ..rule import parameter
from ..types import FloatArray
from ..words import digits
from .exponentiated_gradient import PriorMixing, explain_prior


@dataclass(frozen=True)
class TiltedLoss(PriorMixing):
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

    key = "term"
    summary = "TERM: weights by the exponential of the loss."
    factor = "w_k exp(lambda F_k)"

    tilt: float = parameter(1.0, REAL)

    def respond(self, loss: FloatArray) -> FloatArray:
        """Return lambda F_i."""
        return self.tilt * loss

    def explain(self, decided: Decided, place: int) -> Iterator[str]:
        """Yield the tilted weight with its numbers."""
        loss = digits(decided.responses.loss[place])
        yield from explain_prior(f"lambda F_k = {self.tilt:g} x {loss}", decided, place)
