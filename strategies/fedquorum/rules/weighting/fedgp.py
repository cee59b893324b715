"""Project other updates onto the priority clients' step (FedGP)."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import ParameterError
from ..decisions import DecisionTrace
from ..description import Goal, RuleDescription
from ..formatting import format_number
from ..parameters import FRACTION, FloatRange
from ..rule import parameter
from ..selection.base import Selection
from ..server_optimizer.base import ServerOptimizer
from ..types import AggregationWeights, BoolArray, ClientUpdates, FloatArray, Population, RoundPlan
from .base import Weighting, WeightingTraits, find_contradictions
from .data_fraction import DataFraction
from .responses import scatter


@dataclass(frozen=True)
class FedGPWeighting(Weighting[None]):
    """Step by (1 - beta) g_T + (beta / N_s) sum_i max(<g_T, Delta_i>, 0) / |Delta_i|^2 Delta_i.

    g_T = sum_{k in P} p_k Delta_k is FedAvg's step on the priority clients P. The N_s other clients
    are the sources. A priority client has the weight c_k = (1 - beta) p_k. A source has c_i = (beta
    / N_s) max(<g_T, Delta_i>, 0) / |Delta_i|^2, with <g_T, Delta_i> = sum_{k in P} p_k <Delta_k,
    Delta_i>. A source moves the model by at most (beta / N_s) |g_T|, whatever the length of its
    update, although c_i has no bound. Its weight is 0 if its update points away from g_T, has
    length 0, or is so short that c_i overflows.

    With beta = 0, or without any source, the step is FedAvg on P with the same bits. Without an
    update of a priority client, all weights are 0. Priority weights lambda_k below 1 enter as in
    the objective, p_k = lambda_k D_k / sum_i lambda_i D_i; such clients are not sources.

    Parameters
    ----------
    beta : float
        In [0, 1], the same for all sources.

    Raises
    ------
    ParameterError
        If beta is outside its range.

    References
    ----------
    Jiang, Zhang and Koyejo, "Principled Federated Domain Adaptation: Gradient Projection and
    Auto-Weighting", ICLR 2024, Definition 4.3, and its default beta. Here several clients may be
    the target. The authors' code projects array by array and weighs the sources by their data;
    this is the paper's form, on whole updates. The weights beta_i that the paper estimates from
    the target's single batches are left out.
    """

    description = RuleDescription(
        key="fedgp",
        summary="FedGP: other updates count by their projection onto the priority clients' step.",
        use="priority clients matter, and every update should help as far as it points their way",
        weight=(
            "(1 - beta) p_k with priority; any other update counts only by its projection "
            "onto the priority clients' step"
        ),
        source="[Jiang, Zhang and Koyejo 2024](https://arxiv.org/abs/2302.05049), Definition 4.3",
        trusts="the update; `num-examples` of clients with priority",
        gain=(
            "a client without priority can turn the step by the direction of its update "
            "alone; a priority client moves the direction against which all other updates are "
            "measured"
        ),
        limit=(
            "the other clients together move the model by at most beta times the priority "
            "clients' step, whatever they send"
        ),
        required_options={
            "priority": (
                "the ids of the priority clients, such as [0, 1]",
                "the other clients' updates are projected on theirs",
            )
        },
        goal=Goal.PRIORITY,
        sampled_scope="all clients, drawn or not",
        unreplayable=(
            "the projections of fedgp: they need the inner products of the updates, which no "
            "record holds (checked instead: the priority clients' weights, and that no other "
            "update moves the model further than its bound)"
        ),
    )
    traits = WeightingTraits(
        numerator=(
            "(1 - beta) D_k with priority, "
            "(beta / N_s) max(sum of D_j <Delta_j, Delta_k> over P, 0) / |Delta_k|^2 without"
        ),
        denominator="the training data of the priority clients among {whom}",
        needs_losses=False,
        needs_updates=True,
        weights_by_data=True,
        dp_unsupported_reason=(
            "an update counts by its client's amount of data or by the priority clients' updates, "
            "which its weight reveals"
        ),
        late_unsupported_reason="it projects on updates of the priority clients, of one model",
        uncorrectable_reason=(
            "multiplied by omega an update may move the model further than its bound, which is "
            "the point of the projection"
        ),
    )

    beta: float = parameter(0.5, FRACTION, FloatRange(0.1, 0.9, log=False))

    def init(self, population: Population) -> None:
        """Return the empty state."""

    def weigh(
        self, state: None, plan: RoundPlan, updates: ClientUpdates, admitted_fraction: FloatArray
    ) -> tuple[None, AggregationWeights]:
        """Return c_k, and ``update_norm`` if a source is projected."""
        target, sources = (
            _compute_target_weights(plan, updates, admitted_fraction),
            _find_sources(updates, admitted_fraction),
        )
        if not sources.any() or not target.numerator.any():
            return None, target
        assert updates.gram is not None, "a round has the inner products of its updates"
        gram, counts = updates.gram(), admitted_fraction > 0
        projection = np.where(sources, _compute_projections(target.numerator, gram), 0.0)
        return None, AggregationWeights(
            (1.0 - self.beta) * target.numerator + self.beta / sources.sum() * projection,
            target.denominator,
            update_norm=scatter(np.sqrt(np.diag(gram)[counts]), counts),
        )

    def check_with(self, selection: Selection, server_optimizer: ServerOptimizer[Any]) -> None:
        """Refuse a gate."""
        if selection.traits.has_gate:
            raise ParameterError(
                "selection",
                "one without a gate with the weighting fedgp",
                selection.description.key,
                "the projection decides itself what the clients without priority add",
            )

    def explain(self, trace: DecisionTrace, index: int) -> Iterator[str]:
        """Yield the weight of a priority client by its data, and a source's with its bound."""
        plan, updates, fractions = trace.plan, trace.updates, trace.admitted_fraction
        target, sources = (
            _compute_target_weights(plan, updates, fractions),
            _find_sources(updates, fractions),
        )
        recorded = trace.recorded_decisions[index]
        c = f"c_k = {format_number(recorded.weight)}"
        if not sources[index]:
            beta = self.beta if sources.any() else 0.0
            yield (
                "c_k = (1 - beta) p_k, p_k its fraction of the priority clients' data: "
                f"(1 - {beta:g}) x {format_number(target.weight[index])}"
                f"{'' if sources.any() else ', as no source reported'}: {c}"
            )
            return
        if recorded.update_norm is None:
            yield f"no priority client's update arrived to project the other updates onto: {c}"
            return
        yield (
            "c_k = (beta / N_s) max(<g_T, Delta_k>, 0) / |Delta_k|^2, g_T the priority clients' "
            f"step, beta = {self.beta:g}, N_s = {sources.sum()}, |Delta_k| = "
            f"{format_number(recorded.update_norm)}; the inner products are not in the records"
        )
        yield (
            f"it moves the model by c_k |Delta_k| = {format_number(recorded.weight)} x "
            f"{format_number(recorded.update_norm)} <= (beta / N_s) |g_T| <= "
            "(beta / N_s) sum of p_j |Delta_j| over P = "
            f"{format_number(_compute_bound(self.beta, trace, target, sources))}: {c}"
        )


@find_contradictions.register
def _(weighting: FedGPWeighting, trace: DecisionTrace) -> Iterator[tuple[int | None, str]]:
    """Yield wrong weights of priority clients, and sources that exceed their bound."""
    plan, updates, fractions = trace.plan, trace.updates, trace.admitted_fraction
    target, sources = (
        _compute_target_weights(plan, updates, fractions),
        _find_sources(updates, fractions),
    )
    beta, tolerance = weighting.beta, weighting.traits.tolerance
    has_projection = bool(sources.any() and target.numerator.any())
    expected = (1.0 - beta if has_projection else 1.0) * target.numerator / target.denominator
    bound = _compute_bound(beta, trace, target, sources) if has_projection else 0.0
    for index, recorded in enumerate(trace.recorded_decisions):
        weight, norm = recorded.weight, recorded.update_norm
        if sources[index] and has_projection:
            if norm is None or not 0.0 <= weight * norm <= bound * (1.0 + tolerance):
                text = (
                    f"its update moves the model by weight x length = {weight:.9g} x "
                    f"{format_number(norm)}, outside of 0 to {bound:.9g}"
                )
                yield recorded.client, text
            continue
        expected_weight = expected[index]
        if trace.weight_cap is not None:
            expected_weight = min(expected_weight, trace.weight_cap)
        if not math.isclose(weight, expected_weight, rel_tol=tolerance, abs_tol=1e-12):
            text = f"weight is {weight:.9g}, the other records give {expected_weight:.9g}"
            yield recorded.client, text


def _compute_bound(
    beta: float, trace: DecisionTrace, target: AggregationWeights, sources: BoolArray
) -> float:
    """Return (beta / N_s) sum_{k in P} p_k |Delta_k| >= (beta / N_s) |g_T|."""
    norms = np.array([recorded.update_norm or 0.0 for recorded in trace.recorded_decisions])
    return float(beta / sources.sum() * (target.weight @ norms))


def _compute_target_weights(
    plan: RoundPlan, updates: ClientUpdates, admitted_fraction: FloatArray
) -> AggregationWeights:
    """Return p_k, the weights of FedAvg on the priority clients alone."""
    target_fraction = np.minimum(admitted_fraction, updates.priority_weight)
    return DataFraction().weigh(None, plan, updates, target_fraction)[1]


def _compute_projections(factor: FloatArray, gram: FloatArray) -> FloatArray:
    """Return max(<sum_j a_j Delta_j, Delta_i>, 0) / |Delta_i|^2, 0 if that is not finite."""
    counts = factor > 0
    with np.errstate(all="ignore"):
        along = (factor[counts, None] * gram[counts]).sum(axis=0)
        projection: FloatArray = np.maximum(along, 0.0) / np.diag(gram)
    return np.where(np.isfinite(projection), projection, 0.0)


def _find_sources(updates: ClientUpdates, admitted_fraction: FloatArray) -> BoolArray:
    """Say for each client whether its update is projected, shape (n,): admitted, no priority."""
    sources: BoolArray = ~updates.priority & (admitted_fraction > 0)
    return sources
