"""q-FedAvg: weights by a power of the loss."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from strategies.parameters import NON_NEGATIVE, POSITIVE
from strategies.types import Call, FloatArray, IntArray, Population, Responses, Weights
from strategies.weighting.base import Weighting
from strategies.weighting.exponentiated_gradient import base_weights, by_losses_of_a_round, mix

_SMALLEST_LOSS = 1e-10


@dataclass(frozen=True)
class QFedAvg:
    """c_i = w_i F_i^q / sum_j w_j F_j^q over the clients heard, w_i their fraction of the data.

    In the language of exponentiated gradients r_i = q log F_i on the prior w. q = 0 is FedAvg;
    q to infinity looks at the largest loss only. Where all losses are 0 it is FedAvg as well.

    With ``lipschitz`` L the update of the paper, whose length adapts to how much the objective
    sum_i w_i F_i^(q+1) / (q + 1) bends:

        x_{t+1} = x_t + sum_i w_i F_i^q L Delta_i / sum_j w_j h_j,
        h_j = q F_j^(q-1) |L Delta_j|^2 + L F_j^q.

    These c_i sum to less than 1 unless q = 0. The paper draws clients with probabilities w_i and
    sums without weights; here whoever is asked counts by its data, and who is drawn with
    replacement by its draws, which is the paper's. With equal amounts of data it is Flower's
    ``QFedAvg``. h has a pole at F = 0 for q < 1, so losses below 1e-10 count as 1e-10 in it.

    Parameters
    ----------
    q : float
        >= 0.
    lipschitz : float, optional
        L > 0, the paper's 1 / (client learning rate); None for the mixing form.

    Raises
    ------
    ParameterError
        For a value outside its range.

    References
    ----------
    Li, Sanjabi, Beirami and Smith, "Fair Resource Allocation in Federated Learning", ICLR 2020,
    Lemma 3 and Algorithm 2; the mixing form Hahn, Kim and Lee 2024, Table 1.
    """

    needs_losses: ClassVar[bool] = True
    fixed_divisor: ClassVar[bool] = False
    factor: ClassVar[str] = "w_k F_k^q"
    q: float = 1.0
    lipschitz: float | None = None

    def __post_init__(self) -> None:
        NON_NEGATIVE.check("q", self.q)
        if self.lipschitz is not None:
            POSITIVE.check("lipschitz", self.lipschitz)

    @property
    def divisor(self) -> str:
        """What it is divided by, in words."""
        own = "the same" if self.lipschitz is None else "w_j h_j / L"
        return f"the sum of {own} over {{whom}}"

    def over_known(self) -> Weighting[Any]:
        """Refuse, with the reason as a ``ParameterError``."""
        raise by_losses_of_a_round("qfedavg")

    def init(self, population: Population) -> IntArray:
        """Return the clients ascending, shape (K,): nothing else is remembered."""
        return population.ascending

    def weigh(
        self, state: IntArray, call: Call, responses: Responses, share: FloatArray
    ) -> tuple[IntArray, Weights]:
        """Return c_i; ``mixing`` is w_i F_i^q, normalised, in both forms.

        Raises
        ------
        ValueError
            If the clients did not measure the model they received, or if the updates' norms,
            which the Lipschitz form needs, are missing.
        """
        weights = mix(state, call, responses, share, self._respond)
        if self.lipschitz is None or weights.response is None:
            return state, weights
        counts = ~np.isnan(weights.response)
        base = np.where(counts, base_weights(call, responses, share), 0.0)
        # F^q over its largest value, so that no power overflows
        loss = np.where(counts, np.maximum(responses.loss, _SMALLEST_LOSS), 1.0)
        power = base * (loss / loss[counts].max()) ** self.q
        squared = squared_norms(responses)
        bend = self.q * self.lipschitz * squared / loss
        return state, replace(
            weights,
            weight=power / (power * (1.0 + bend)).sum(),
            update_norm=np.where(counts, np.sqrt(squared), np.nan),
        )

    def _respond(self, loss: FloatArray) -> FloatArray:
        if self.q == 0.0:
            return np.zeros_like(loss)
        with np.errstate(divide="ignore"):
            response: FloatArray = self.q * np.log(loss)
        return response


def squared_norms(responses: Responses) -> FloatArray:
    """Return |Delta_i|^2, shape (n,).

    Raises
    ------
    ValueError
        If nobody provides the updates' inner products.
    """
    if responses.gram is None:
        raise ValueError("this rule needs the norms of the updates, and nobody provides them")
    return np.diag(responses.gram()).astype(np.float64)
