"""Weight updates by a power of the loss (q-FedAvg)."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from ..description import SUM_BY_LOSSES, RuleDescription
from ..parameters import NON_NEGATIVE, POSITIVE
from ..report import Decided
from ..rule import parameter
from ..search import Between
from ..types import Call, FloatArray, IntArray, Responses, Weights
from ..words import digits
from .exponentiated_gradient import PriorMixing, base_weights

_SMALLEST_LOSS = 1e-10


@dataclass(frozen=True)
class LossPower(PriorMixing):
    """Weight the clients heard by c_i = w_i F_i^q / sum_j w_j F_j^q, w_i the data fraction.

    As an exponentiated gradient, the rule has r_i = q log F_i and the prior w. q = 0 is FedAvg. As
    q tends to infinity, only the largest loss counts. If all losses are 0, the rule is FedAvg.

    With ``lipschitz`` L the rule makes the paper's update, whose length adapts to the curvature of
    the objective sum_i w_i F_i^(q+1) / (q + 1):

        x_{t+1} = x_t + sum_i w_i F_i^q L Delta_i / sum_j w_j h_j,
        h_j = q F_j^(q-1) |L Delta_j|^2 + L F_j^q.

    These c_i sum to less than 1 unless q = 0. The paper draws clients with probabilities w_i and
    sums without weights. Here a client counts by its data, or by its draws if clients are drawn
    with replacement, which is the paper's form. With equal amounts of data it is Flower's
    ``QFedAvg``. Since h has a pole at F = 0 for q < 1, losses below 1e-10 count as 1e-10 in h.

    Parameters
    ----------
    q : float
        >= 0.
    lipschitz : float, optional
        L > 0, 1 / (client learning rate) in the paper; None for the mixing form.

    Raises
    ------
    ParameterError
        If a value is outside its range.

    References
    ----------
    Li, Sanjabi, Beirami and Smith, "Fair Resource Allocation in Federated Learning", ICLR 2020,
    Lemma 3 and Algorithm 2; the mixing form Hahn, Kim and Lee 2024, Table 1.
    """

    key = "qfedavg"
    summary = "q-FedAvg: weights by the q-th power of the loss."
    description = RuleDescription(
        weight="w F^q",
        source="Li et al. 2020",
        trusts="the loss of the received model",
        gain="weight from a high loss: a huge one is the whole step at once",
        secure_sum=SUM_BY_LOSSES,
    )
    factor = "w_k F_k^q"
    authors_form = "authors' form with h"

    q: float = parameter(1.0, NON_NEGATIVE, Between(0.01, 10.0))
    lipschitz: float | None = parameter(None, POSITIVE)

    @property
    def divisor(self) -> str:
        """The divisor of the weights, in words."""
        terms = "the same" if self.lipschitz is None else "w_j h_j / L"
        return f"the sum of {terms} over {{whom}}"

    def weigh(
        self, state: IntArray, call: Call, responses: Responses, share: FloatArray
    ) -> tuple[IntArray, Weights]:
        """Return c_i; ``mixing`` is w_i F_i^q, normalised, in both forms.

        Raises
        ------
        ValueError
            If the clients did not measure the model that they received, or the updates' norms,
            which the Lipschitz form needs, are missing.
        """
        state, weights = super().weigh(state, call, responses, share)
        if self.lipschitz is None or weights.response is None:
            return state, weights
        counts = ~np.isnan(weights.response)
        base = np.where(counts, base_weights(call, responses, share), 0.0)
        # F^q over its largest value, so that no power overflows
        loss = np.where(counts, np.maximum(responses.loss, _SMALLEST_LOSS), 1.0)
        power = base * (loss / loss[counts].max()) ** self.q
        squared = np.where(counts, squared_norms(responses), 0.0)
        bend = self.q * self.lipschitz * squared / loss
        return state, replace(
            weights,
            factor=power,
            divisor=float((power * (1.0 + bend)).sum()),
            update_norm=np.where(counts, np.sqrt(squared), np.nan),
        )

    def respond(self, loss: FloatArray) -> FloatArray:
        """Return q log F_i."""
        if self.q == 0.0:
            return np.zeros_like(loss)
        with np.errstate(divide="ignore"):
            response: FloatArray = self.q * np.log(loss)
        return response

    def explain(self, decided: Decided, place: int) -> Iterator[str]:
        """Yield the weight from F^q, or from the Lipschitz form, with its numbers."""
        loss = decided.responses.loss[place]
        if self.lipschitz is None:
            formula = f"q log F_k = {self.q:g} x log {digits(loss)}"
            yield from self.explain_prior(formula, decided, place)
            return
        weights = decided.weights
        if weights is None or weights.update_norm is None:
            return
        norm = weights.update_norm[place]
        bend = self.q / loss * (self.lipschitz * norm) ** 2 + self.lipschitz
        w = base_weights(decided.call, decided.responses, decided.share)[place]
        yield (
            "c_k = w_k F_k^q L / sum of w_j h_j, h_k / F_k^q = q |L Delta_k|^2 / F_k + L = "
            f"{digits(bend)} with w_k = {digits(w)}, F_k = {digits(loss)}, q = {self.q:g}, "
            f"L = {self.lipschitz:g}, |Delta_k| = {digits(norm)}: "
            f"c_k = {digits(weights.weight[place])}"
        )


def squared_norms(responses: Responses) -> FloatArray:
    """Return |Delta_i|^2, shape (n,).

    Raises
    ------
    ValueError
        If the updates' inner products are not available.
    """
    if responses.gram is None:
        raise ValueError("this rule needs the norms of the updates, and nobody provides them")
    return np.diag(responses.gram()).astype(np.float64)
