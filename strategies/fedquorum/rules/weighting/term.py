"""Weight updates by the exponential of the loss (TERM)."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from ...errors import ParameterError
from ..decisions import DecisionTrace
from ..description import RuleDescription
from ..formatting import format_number
from ..parameters import PRIOR, REAL, FloatRange
from ..rule import parameter
from ..selection.base import Selection
from ..server_optimizer.base import ServerOptimizer
from ..types import ClientUpdates, FloatArray, RoundPlan
from .base import WeightingTraits
from .exponentiated_gradient import PriorMixing


@dataclass(frozen=True)
class TERMWeighting(PriorMixing):
    """Weight the reporting clients by c_i = w_i exp(lambda F_i) / sum_j w_j exp(lambda F_j).

    As an exponentiated gradient, the rule has r_i = lambda F_i and the prior w over the reporting
    clients. Its weights are those of the gradient of (1 / lambda) log sum_i w_i exp(lambda F_i).
    With either prior and lambda = 1 / tau these are the weights of FedEBA.

    Parameters
    ----------
    tilt : float
        lambda. A positive value favors large losses, a negative one small losses; 0 gives the
        prior.
    prior : {"data", "uniform"}
        w_i: the fraction of the reported data, or 1 / n.

    Raises
    ------
    ParameterError
        If ``tilt`` is not a finite number, or there is no such prior.

    References
    ----------
    Li, Beirami, Sanjabi and Smith, "Tilted Empirical Risk Minimization", ICLR 2021, Lemma 1, and
    its tilting over groups; Hahn, Kim and Lee 2024, Table 1. The uniform prior: Wang et al.,
    "FedEBA+", arXiv 2301.12407, according to third parties; its alignment ("+") is left out.
    """

    description = RuleDescription(
        key="term",
        summary="TERM: weights by the exponential of the loss.",
        weight="w exp(tF) (FedEBA with `prior=uniform`)",
        source="Li et al. 2021",
        trusts="the loss of the received model",
        gain="weight from a high loss: a huge one is the whole step at once",
        default_form="mixing form",
    )

    tilt: float = parameter(1.0, REAL, FloatRange(0.01, 10.0))
    prior: str = parameter("data", PRIOR)

    @property
    def traits(self) -> WeightingTraits:
        """Those of a mixing by losses, with the numerator of the prior."""
        prior = "" if self.prior == "uniform" else "w_k "
        return replace(super().traits, numerator=f"{prior}exp(lambda F_k)")

    def _compute_prior_weights(
        self, plan: RoundPlan, updates: ClientUpdates, admitted_fraction: FloatArray
    ) -> FloatArray:
        """Return the prior of the admitted clients and 0 for others, shape (n,)."""
        if self.prior == "data":
            return super()._compute_prior_weights(plan, updates, admitted_fraction)
        total = admitted_fraction.sum()
        return admitted_fraction / total if total > 0 else admitted_fraction

    def check_with(self, selection: Selection, server_optimizer: ServerOptimizer[Any]) -> None:
        """Refuse a uniform prior if priority clients are sampled by their data."""
        num_samples = selection.sampling.priority_samples
        if num_samples is not None and self.prior == "uniform":
            raise ParameterError(
                "priority_samples",
                "None with prior=uniform",
                num_samples,
                "a draw counts as its client's share of the data",
            )

    def compute_log_weights(self, loss: FloatArray) -> FloatArray:
        """Return lambda F_i."""
        return self.tilt * loss

    def explain(self, trace: DecisionTrace, index: int) -> Iterator[str]:
        """Yield the tilted weight with its numbers."""
        loss = format_number(trace.updates.loss[index])
        yield from self._explain_prior(f"lambda F_k = {self.tilt:g} x {loss}", trace, index)
