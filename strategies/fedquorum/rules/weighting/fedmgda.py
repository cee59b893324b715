"""Step along the shortest combination of the normalized updates (FedMGDA+)."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import ParameterError
from ..decisions import DecisionTrace
from ..description import RuleDescription
from ..formatting import format_number
from ..parameters import FRACTION, FloatRange
from ..rule import parameter
from ..selection.base import Selection
from ..server_optimizer.base import ServerOptimizer
from ..simplex import minimize_quadratic
from ..types import AggregationWeights, ClientUpdates, FloatArray, IntArray, Population, RoundPlan
from .base import Weighting, WeightingTraits, find_contradictions
from .exponentiated_gradient import compute_base_weights
from .responses import find_client_indices, scatter


@dataclass(frozen=True)
class FedMGDAWeighting(Weighting[IntArray]):
    """Weight client i by c_i = p_i / |Delta_i|, with p the shortest mixture of directions.

        p = argmin |sum_i p_i Delta_i / |Delta_i||^2  over the simplex with |p_i - w_i| <= epsilon,

    where w_i is client i's fraction of the data reported. With epsilon = 1 the mixture harms no
    participant, to first order. epsilon = 0 is FedAvg on normalized updates. An update of length 0
    has no direction: it enters as the zero vector and moves nothing. The step is unique; p is
    unique if the directions are linearly independent.

    The step has length at most 1, whatever the clients' learning rates. The paper therefore gives
    it a separate server learning rate. The rule does not use losses.

    Parameters
    ----------
    max_deviation : float
        epsilon in [0, 1].

    Raises
    ------
    ParameterError
        If ``max_deviation`` is outside its range.

    References
    ----------
    Hu, Shaloudegi, Zhang and Yu, "Federated Learning Meets Multi-Objective Optimization", IEEE
    TNSE 2022, Algorithm 1. The center of the box is w_i, with equal amounts of data 1 / n.
    """

    description = RuleDescription(
        key="fedmgda",
        summary="FedMGDA+: the shortest combination of the normalized updates.",
        weight="the shortest combination of the normalized updates",
        source="Hu et al. 2022",
        trusts="the update, `num-examples`",
        gain="an update can turn the shortest combination",
        limit=(
            "the step has length at most server_lr; `strategy.max_deviation` keeps weights near "
            "the amounts of data"
        ),
        default_form="min-norm in a box",
        unreplayable=(
            "the mixing coefficients of fedmgda: they need the inner products of the updates, "
            "which no record holds (checked instead: simplex, box, and weight = p / |Delta|)"
        ),
    )
    traits = WeightingTraits(
        numerator="p_k / |Delta_k|",
        denominator="the sum of p over {whom}, which is 1",
        needs_updates=True,
        weights_by_data=True,
        tolerance=1e-6,  # p comes from a solver, and other machines round differently
        dp_unsupported_reason=(
            "what an update counts follows from all others: one can turn the whole step"
        ),
        late_unsupported_reason="its direction is common to updates of one model",
        uncorrectable_reason=(
            "multiplied by omega its combination is no longer the shortest, which is its point"
        ),
    )

    max_deviation: float = parameter(1.0, FRACTION, FloatRange(0.05, 1.0))

    def init(self, population: Population) -> IntArray:
        """Return the state: the clients ascending, shape (K,)."""
        return population.sorted_clients

    def weigh(
        self,
        state: IntArray,
        plan: RoundPlan,
        updates: ClientUpdates,
        admitted_fraction: FloatArray,
    ) -> tuple[IntArray, AggregationWeights]:
        """Return c_i; ``mixing`` is p.

        Raises
        ------
        SolverError
            If the quadratic program is not solved to its accuracy.
        """
        weight, mixing = np.zeros_like(admitted_fraction), np.zeros(len(state))
        base = compute_base_weights(plan, updates, admitted_fraction)
        counts = base > 0
        if not counts.any():
            return state, AggregationWeights(weight, mixing=mixing)
        assert updates.gram is not None, "a round has the inner products of its updates"
        gram = updates.gram()[np.ix_(counts, counts)]
        length = np.sqrt(np.diag(gram))
        inverse = np.divide(1.0, length, out=np.zeros_like(length), where=length > 0)
        center = base[counts]
        coefficients = minimize_quadratic(
            gram * np.outer(inverse, inverse),
            np.zeros(len(center)),
            low=np.maximum(center - self.max_deviation, 0.0),
            high=np.minimum(center + self.max_deviation, 1.0),
        )
        weight[counts] = coefficients * inverse
        mixing[find_client_indices(state, updates)[counts]] = coefficients
        return state, AggregationWeights(weight, mixing=mixing, update_norm=scatter(length, counts))

    def check_with(self, selection: Selection, server_optimizer: ServerOptimizer[Any]) -> None:
        """Refuse a gate, and server optimizers that step in another direction."""
        if not server_optimizer.is_linear:
            raise ParameterError(
                "server_optimizer",
                "sgd with the weighting fedmgda",
                server_optimizer.description.key,
                "another step than along the shortest combination may harm clients, which it is "
                "there to avoid",
            )
        if selection.traits.has_gate:
            raise ParameterError(
                "selection",
                "one without a gate with the weighting fedmgda",
                selection.description.key,
                "the step harms none of those in it, so a client without priority could stop "
                "that of the priority clients",
            )

    def explain(self, trace: DecisionTrace, index: int) -> Iterator[str]:
        """Yield the recorded p, and the weight that follows from it."""
        recorded = trace.recorded_decisions[index]
        w = compute_base_weights(trace.plan, trace.updates, trace.admitted_fraction)[index]
        yield (
            "p = argmin |sum of p_i Delta_i / |Delta_i||^2 over the simplex with |p_i - w_i| <= "
            f"{self.max_deviation:g}: p_k = {format_number(recorded.mixing_coefficient)}, w_k = "
            f"{format_number(w)}; the inner products of the updates that decide it are not in the "
            "records"
        )
        yield (
            f"c_k = p_k / |Delta_k| = {format_number(recorded.mixing_coefficient)} / "
            f"{format_number(recorded.update_norm)}"
        )


@find_contradictions.register
def _(weighting: FedMGDAWeighting, trace: DecisionTrace) -> Iterator[tuple[int | None, str]]:
    """Yield each p outside the simplex or the box, and each weight that is not p / |Delta|."""
    base = compute_base_weights(trace.plan, trace.updates, trace.admitted_fraction)
    tolerance, total = weighting.traits.tolerance, 0.0
    for recorded, center in zip(trace.recorded_decisions, base.tolist(), strict=True):
        p, norm = recorded.mixing_coefficient or 0.0, recorded.update_norm
        total += p
        if abs(p - center) > weighting.max_deviation + tolerance:
            deviation = f"{weighting.max_deviation:g}"
            text = f"mixing {p:.9g} is further than {deviation} from w = {center:.9g}"
            yield recorded.client, text
        expected = p / norm if norm else 0.0
        if trace.weight_cap is not None:
            expected = min(expected, trace.weight_cap)
        if not math.isclose(recorded.weight, expected, rel_tol=1e-9, abs_tol=1e-12):
            text = f"weight is {recorded.weight:.9g}, the other records give {expected:.9g}"
            yield recorded.client, text
    if (base > 0).any() and not math.isclose(total, 1.0, rel_tol=tolerance):
        yield None, f"the mixing coefficients sum to {total:.9g}, not to 1"
