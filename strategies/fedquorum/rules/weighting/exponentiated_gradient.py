"""Mix clients by exponentiated gradients: p_i proportional to prior_i exp(r_i)."""

from abc import abstractmethod
from collections.abc import Iterator

import numpy as np

from ..decisions import DecisionTrace
from ..formatting import format_number
from ..types import AggregationWeights, ClientUpdates, FloatArray, IntArray, Population, RoundPlan
from .base import LATE_LOSS, WEIGHTS_DEPEND_ON_LOSSES, Weighting, WeightingTraits
from .data_fraction import DataFraction
from .responses import compute_reported_mask, find_client_indices, scatter


def compute_exponentiated_gradient(prior: FloatArray | None, response: FloatArray) -> FloatArray:
    """Return p_i = prior_i exp(r_i) / sum_j prior_j exp(r_j), shape (K,).

    The function subtracts the largest exponent first, so that no finite response overflows. A
    response of -inf gives 0. If all clients with a prior have -inf, the result is the prior.

    Parameters
    ----------
    prior : FloatArray or None
        Values >= 0 with a positive sum, shape (K,); None for uniform.
    response : FloatArray
        r / eta, finite or -inf, shape (K,).

    References
    ----------
    Kivinen and Warmuth 1997; Hahn, Kim and Lee 2024, section 3 and Table 1.
    """
    largest = response.max() if prior is None else response[prior > 0].max()
    if largest == -np.inf:
        response, largest = np.zeros_like(response), 0.0
    mixing: FloatArray = np.exp(np.minimum(response - largest, 0.0))
    if prior is not None:
        mixing *= prior
    mixing /= mixing.sum()
    return mixing


PRIOR_MIXING_TRAITS = WeightingTraits(
    numerator="w_k exp(r_k)",
    weights_by_data=True,
    dp_unsupported_reason=WEIGHTS_DEPEND_ON_LOSSES,
    late_unsupported_reason=LATE_LOSS,
    uncorrectable_reason="it weights by the losses of a round, and absent clients report none",
)
"""The traits of a ``PriorMixing``; a subclass replaces ``numerator``."""


class PriorMixing(Weighting[IntArray]):
    """Weight the reporting clients by c_i = w_i exp(r_i) / sum_j w_j exp(r_j), r from the losses.

    w_i is FedAvg's weight among the reporting clients, unless a rule overrides
    ``_compute_prior_weights``. If no client reports, all c_i are 0. The state has the clients
    ascending, shape (K,), and nothing about earlier rounds.

    References
    ----------
    Hahn, Kim and Lee 2024, Table 1.
    """

    @property
    def traits(self) -> WeightingTraits:
        """Weights by losses and data."""
        return PRIOR_MIXING_TRAITS

    @abstractmethod
    def compute_log_weights(self, loss: FloatArray) -> FloatArray:
        """Return r for the losses of the m reporting clients, shape (m,), finite or -inf."""

    def _compute_prior_weights(
        self, plan: RoundPlan, updates: ClientUpdates, admitted_fraction: FloatArray
    ) -> FloatArray:
        """Return w_i of the admitted clients, 0 for others, shape (n,)."""
        return compute_base_weights(plan, updates, admitted_fraction)

    def init(self, population: Population) -> IntArray:
        """Return the clients ascending."""
        return population.sorted_clients

    def weigh(
        self,
        state: IntArray,
        plan: RoundPlan,
        updates: ClientUpdates,
        admitted_fraction: FloatArray,
    ) -> tuple[IntArray, AggregationWeights]:
        """Return c_i, which are also the mixing coefficients.

        Raises
        ------
        ValueError
            If the clients did not evaluate the model that they received.
        """
        counts = compute_reported_mask(plan, updates, admitted_fraction)
        weight, mixing = np.zeros_like(admitted_fraction), np.zeros(len(state))
        if not counts.any():
            return state, AggregationWeights(weight, mixing=mixing)
        base = self._compute_prior_weights(plan, updates, np.where(counts, admitted_fraction, 0.0))[
            counts
        ]
        if not base.any():  # all clients may report 0 examples
            return state, AggregationWeights(weight, mixing=mixing)
        response = self.compute_log_weights(updates.loss[counts])
        weight[counts] = compute_exponentiated_gradient(base, response)
        mixing[find_client_indices(state, updates)] = weight
        return state, AggregationWeights(weight, response=scatter(response, counts), mixing=mixing)

    def _explain_prior(self, formula: str, trace: DecisionTrace, index: int) -> Iterator[str]:
        """Yield c_i with its numbers; ``formula`` is the one for r_i."""
        weights = trace.weights
        if weights is None or weights.response is None:
            return
        counts = np.isfinite(trace.updates.loss)
        fractions = np.where(counts, trace.admitted_fraction, 0.0)
        base = self._compute_prior_weights(trace.plan, trace.updates, fractions)
        response = weights.response - np.max(weights.response[counts])
        total = float((base[counts] * np.exp(response[counts])).sum())
        yield f"r_k = {formula} = {format_number(weights.response[index])}"
        yield (
            "c_k = w_k exp(r_k - max r) / sum of w_j exp(r_j - max r) = "
            f"{format_number(base[index])} x {format_number(np.exp(response[index]))} / "
            f"{format_number(total)} = {format_number(weights.weight[index])}"
        )


def compute_base_weights(
    plan: RoundPlan, updates: ClientUpdates, admitted_fraction: FloatArray
) -> FloatArray:
    """Return w_i, FedAvg's weights of the admitted clients, 0 for others, shape (n,).

    w_i = s_i D_i / sum_j s_j D_j. For clients sampled with replacement, their draws replace D_i.
    """
    _, weights = DataFraction().weigh(None, plan, updates, admitted_fraction)
    return weights.weight
