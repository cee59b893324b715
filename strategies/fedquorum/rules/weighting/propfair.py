"""Weight updates more as their losses approach the largest acceptable loss (PropFair)."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from ..decisions import DecisionTrace
from ..description import RuleDescription
from ..formatting import format_number
from ..parameters import POSITIVE, FloatRange
from ..rule import parameter
from ..types import FloatArray
from .exponentiated_gradient import PRIOR_MIXING_TRAITS, PriorMixing


@dataclass(frozen=True)
class PropFairWeighting(PriorMixing):
    """Weight client i in proportion to w_i / max(M - F_i, epsilon).

    w_i is client i's fraction of the reported data. As an exponentiated gradient, the rule has
    r_i = -log max(M - F_i, epsilon) and the prior w. Its weights are those of the gradient of
    -sum_i w_i log_eps (M - F_i). As in the paper, the logarithm continues along its tangent for
    M - F < epsilon. A loss above M therefore has the largest weight, 1 / epsilon, and not a
    negative one.

    The paper's algorithm applies the objective to each client's minibatches. This is the mixing
    form, which does not change local training.

    Parameters
    ----------
    bound : float
        M > 0, a loss that no client should reach, in units of the loss.
    epsilon : float
        epsilon > 0, in units of the loss; 0.2 as in the paper.

    Raises
    ------
    ParameterError
        If a value is outside its range.

    References
    ----------
    Zhang, Malekmohammadi, Chen and Yu, "Proportional Fairness in Federated Learning", TMLR 2023,
    Algorithm 1; the mixing form Hahn, Kim and Lee 2024, Table 1.
    """

    description = RuleDescription(
        key="propfair",
        summary="PropFair: weights by 1 / (M - loss).",
        weight="w / (M - F)",
        source="Zhang et al. 2023",
        trusts="the loss of the received model",
        gain="weight from a high loss",
        limit="`strategy.epsilon`",
        default_form="mixing form",
    )
    traits = replace(PRIOR_MIXING_TRAITS, numerator="w_k / max(M - F_k, epsilon)")

    bound: float = parameter(3.0, POSITIVE, FloatRange(2.0, 10.0))
    epsilon: float = parameter(0.2, POSITIVE)

    def compute_log_weights(self, loss: FloatArray) -> FloatArray:
        """Return -log max(M - F_i, epsilon)."""
        response: FloatArray = -np.log(np.maximum(self.bound - loss, self.epsilon))
        return response

    def explain(self, trace: DecisionTrace, index: int) -> Iterator[str]:
        """Yield the weight from the distance to M, with its numbers."""
        loss = format_number(trace.updates.loss[index])
        formula = (
            f"-log max(M - F_k, {self.epsilon:g}) = "
            f"-log max({self.bound:g} - {loss}, {self.epsilon:g})"
        )
        yield from self._explain_prior(formula, trace, index)
