"""Weight updates by a power of the loss (q-FedAvg)."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from ..decisions import DecisionTrace
from ..description import RuleDescription
from ..formatting import format_number
from ..parameters import NON_NEGATIVE, POSITIVE, FloatRange
from ..rule import parameter
from ..types import AggregationWeights, ClientUpdates, FloatArray, IntArray, RoundPlan
from .base import WeightingTraits
from .exponentiated_gradient import PriorMixing, compute_base_weights

_MIN_LOSS = 1e-10


@dataclass(frozen=True)
class QFedAvgWeighting(PriorMixing):
    """Weight the reporting clients by c_i = w_i F_i^q / sum_j w_j F_j^q, w_i the data fraction.

    As an exponentiated gradient, the rule has r_i = q log F_i and the prior w. q = 0 is FedAvg. As
    q tends to infinity, only the largest loss counts. If all losses are 0, the rule is FedAvg.

    With ``lipschitz`` L the rule makes the paper's update, whose length adapts to the curvature of
    the objective sum_i w_i F_i^(q+1) / (q + 1):

        x_{t+1} = x_t + sum_i w_i F_i^q L Delta_i / sum_j w_j h_j,
        h_j = q F_j^(q-1) |L Delta_j|^2 + L F_j^q.

    These c_i sum to less than 1 unless q = 0. The paper draws clients with probabilities w_i and
    sums without weights. Here a client counts by its data, or by its draws if clients are sampled
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

    description = RuleDescription(
        key="qfedavg",
        summary="q-FedAvg: weights by the q-th power of the loss.",
        weight="w F^q",
        source="Li et al. 2020",
        trusts="the loss of the received model",
        gain="weight from a high loss: a huge one is the whole step at once",
        default_form="mixing form",
        authors_form="authors' form with h",
    )

    q: float = parameter(1.0, NON_NEGATIVE, FloatRange(0.01, 10.0))
    lipschitz: float | None = parameter(None, POSITIVE)

    @property
    def traits(self) -> WeightingTraits:
        """Those of a mixing by losses, with the denominator of the form."""
        terms = "the same" if self.lipschitz is None else "w_j h_j / L"
        return replace(
            super().traits,
            numerator="w_k F_k^q",
            denominator=f"the sum of {terms} over {{whom}}",
        )

    def weigh(
        self,
        state: IntArray,
        plan: RoundPlan,
        updates: ClientUpdates,
        admitted_fraction: FloatArray,
    ) -> tuple[IntArray, AggregationWeights]:
        """Return c_i; ``mixing`` is w_i F_i^q, normalized, in both forms.

        Raises
        ------
        ValueError
            If the clients did not evaluate the model that they received.
        """
        state, weights = super().weigh(state, plan, updates, admitted_fraction)
        if self.lipschitz is None or weights.response is None:
            return state, weights
        counts = ~np.isnan(weights.response)
        base = np.where(counts, compute_base_weights(plan, updates, admitted_fraction), 0.0)
        # F^q over its largest value, so that no power overflows
        loss = np.where(counts, np.maximum(updates.loss, _MIN_LOSS), 1.0)
        power = base * (loss / loss[counts].max()) ** self.q
        squared = np.where(counts, compute_squared_norms(updates), 0.0)
        curvature = self.q * self.lipschitz * squared / loss
        return state, replace(
            weights,
            numerator=power,
            denominator=float((power * (1.0 + curvature)).sum()),
            update_norm=np.where(counts, np.sqrt(squared), np.nan),
        )

    def compute_log_weights(self, loss: FloatArray) -> FloatArray:
        """Return q log F_i."""
        if self.q == 0.0:
            return np.zeros_like(loss)
        with np.errstate(divide="ignore"):
            response: FloatArray = self.q * np.log(loss)
        return response

    def explain(self, trace: DecisionTrace, index: int) -> Iterator[str]:
        """Yield the weight from F^q, or from the Lipschitz form, with its numbers."""
        loss = trace.updates.loss[index]
        if self.lipschitz is None:
            formula = f"q log F_k = {self.q:g} x log {format_number(loss)}"
            yield from self._explain_prior(formula, trace, index)
            return
        weights = trace.weights
        if weights is None or weights.update_norm is None:
            return
        norm = weights.update_norm[index]
        curvature = self.q / loss * (self.lipschitz * norm) ** 2 + self.lipschitz
        w = compute_base_weights(trace.plan, trace.updates, trace.admitted_fraction)[index]
        yield (
            "c_k = w_k F_k^q L / sum of w_j h_j, h_k / F_k^q = q |L Delta_k|^2 / F_k + L = "
            f"{format_number(curvature)} with w_k = {format_number(w)}, "
            f"F_k = {format_number(loss)}, q = {self.q:g}, "
            f"L = {self.lipschitz:g}, |Delta_k| = {format_number(norm)}: "
            f"c_k = {format_number(weights.weight[index])}"
        )


def compute_squared_norms(updates: ClientUpdates) -> FloatArray:
    """Return |Delta_i|^2, shape (n,)."""
    assert updates.gram is not None, "a round has the inner products of its updates"
    return np.diag(updates.gram()).astype(np.float64)
