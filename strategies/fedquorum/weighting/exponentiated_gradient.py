"""Mix clients by exponentiated gradients: p_i proportional to prior_i exp(r_i)."""

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from ..report import Decided
from ..responses import heard, positions, scattered
from ..types import Call, FloatArray, IntArray, Population, Responses, Weights
from ..words import digits
from .base import BY_LOSSES, Weighting
from .data_fraction import DataFraction


def exponentiated_gradient(prior: FloatArray | None, response: FloatArray) -> FloatArray:
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


class PriorMixing(Weighting[IntArray]):
    """Weight the clients heard by c_i = w_i exp(r_i) / sum_j w_j exp(r_j), r from the losses.

    w_i is FedAvg's weight among the clients heard, unless a rule has another ``base``. If no client
    is heard, all c_i are 0. The state has the clients ascending, shape (K,), and nothing of earlier
    rounds.

    References
    ----------
    Hahn, Kim and Lee 2024, Table 1.
    """

    by_data: ClassVar[bool] = True
    default_form: ClassVar[str] = "mixing form"
    unbounded: ClassVar[str] = BY_LOSSES

    @abstractmethod
    def respond(self, loss: FloatArray) -> FloatArray:
        """Return r for the losses of the m clients heard, shape (m,), finite or -inf."""

    def base(self, call: Call, responses: Responses, share: FloatArray) -> FloatArray:
        """Return w_i of the clients with a share, 0 elsewhere, shape (n,)."""
        return base_weights(call, responses, share)

    def over_known(self) -> Weighting[Any]:
        """Refuse a correction for participation."""
        raise self.uncorrectable(
            "it weights by the losses of a round, and absent clients report none"
        )

    def init(self, population: Population) -> IntArray:
        """Return the clients ascending."""
        return population.ascending

    def weigh(
        self, state: IntArray, call: Call, responses: Responses, share: FloatArray
    ) -> tuple[IntArray, Weights]:
        """Return c_i, which are also the mixing coefficients.

        Raises
        ------
        ValueError
            If the clients did not measure the model that they received.
        """
        counts = heard(call, responses, share)
        weight, mixing = np.zeros_like(share), np.zeros(len(state))
        if not counts.any():
            return state, Weights(weight, mixing=mixing)
        base = self.base(call, responses, np.where(counts, share, 0.0))[counts]
        if not base.any():  # clients of FedAvg may report no data at all
            return state, Weights(weight, mixing=mixing)
        response = self.respond(responses.loss[counts])
        weight[counts] = exponentiated_gradient(base, response)
        mixing[positions(state, responses)] = weight
        return state, Weights(weight, response=scattered(response, counts), mixing=mixing)

    def explain_prior(self, formula: str, decided: Decided, place: int) -> Iterator[str]:
        """Yield c_i with its numbers; ``formula`` is the one for r_i."""
        weights = decided.weights
        if weights is None or weights.response is None:
            return
        counts = np.isfinite(decided.responses.loss)
        share = np.where(counts, decided.share, 0.0)
        base = self.base(decided.call, decided.responses, share)
        response = weights.response - np.max(weights.response[counts])
        total = float((base[counts] * np.exp(response[counts])).sum())
        yield f"r_k = {formula} = {digits(weights.response[place])}"
        yield (
            "c_k = w_k exp(r_k - max r) / sum of w_j exp(r_j - max r) = "
            f"{digits(base[place])} x {digits(np.exp(response[place]))} / {digits(total)} = "
            f"{digits(weights.weight[place])}"
        )


def base_weights(call: Call, responses: Responses, share: FloatArray) -> FloatArray:
    """Return w_i, FedAvg's weights of the clients with a share, 0 elsewhere, shape (n,).

    w_i = s_i D_i / sum_j s_j D_j. If clients were drawn with replacement, their draws replace D_i.
    """
    _, weights = DataFraction().weigh(None, call, responses, share)
    return weights.weight
