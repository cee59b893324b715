"""Mix clients by gradient ascent on the losses, projected onto the simplex (AFL)."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..decisions import DecisionTrace
from ..description import RuleDescription
from ..formatting import explain_normalization, find_population_index, format_number
from ..parameters import POSITIVE, FloatRange
from ..rule import parameter
from ..simplex import project, renormalize
from ..types import AggregationWeights, ClientUpdates, FloatArray, IntArray, Population, RoundPlan
from .base import LATE_LOSS, WEIGHTS_DEPEND_ON_LOSSES, Weighting, WeightingTraits
from .population_mixing import PopulationMixing
from .responses import compute_reported_mask, find_client_indices, scatter


@dataclass(frozen=True)
class AFLState:
    """The clients ascending and p, shapes (K,)."""

    client: IntArray
    mixing: FloatArray


@dataclass(frozen=True)
class AFLWeighting(Weighting[AFLState]):
    """Weight client i by c_i = p_i, where p climbs the losses: the inner step of min_x max_p.

    A round replaces p by the projection of p + gamma F onto the simplex, and then weights its
    updates by p. p starts uniform. The p of a client that does not report stays the same. The p of
    the reporting clients is projected onto their previous total mass; restricted to them and
    normalized, it weights their updates. If they hold no mass, which is common once p is
    concentrated, their p stays 0, and the client with the largest loss has all the weight of the
    round. This is the limit of the projection as the mass tends to 0.

    Parameters
    ----------
    step_size : float
        gamma > 0, in units of 1 / loss.

    Raises
    ------
    ParameterError
        If the step size is outside its range.

    References
    ----------
    Mohri, Sivek and Suresh, "Agnostic Federated Learning", ICML 2019 (Stochastic-AFL).
    That the step on p comes first, and partial participation, are ours.
    """

    description = RuleDescription(
        key="afl",
        summary="AFL: coefficients by gradient ascent on the losses, on the simplex.",
        weight="p by gradient ascent on the losses, on the simplex",
        source="Mohri et al. 2019",
        trusts="the loss of the received model",
        gain="weight from a high loss",
        limit="its step size a round",
        default_form="projected step",
    )
    traits = WeightingTraits(
        numerator="p_k",
        denominator="the sum of p over {whom}",
        requires_fixed_population=True,
        dp_unsupported_reason=WEIGHTS_DEPEND_ON_LOSSES,
        late_unsupported_reason=LATE_LOSS,
    )

    step_size: float = parameter(0.1, POSITIVE, FloatRange(0.001, 1.0))

    def with_fixed_denominator(self) -> PopulationMixing:
        """Return p over the sum of p of all registered clients that can count."""
        return PopulationMixing(self)

    def init(self, population: Population) -> AFLState:
        """Return the uniform p."""
        client = population.sorted_clients
        return AFLState(client, np.full(len(client), 1.0 / len(client)))

    def weigh(
        self,
        state: AFLState,
        plan: RoundPlan,
        updates: ClientUpdates,
        admitted_fraction: FloatArray,
    ) -> tuple[AFLState, AggregationWeights]:
        """Return the next p, and its restriction to the reporting clients.

        Raises
        ------
        ValueError
            If the clients did not evaluate the model that they received.
        """
        counts = compute_reported_mask(plan, updates, admitted_fraction)
        client_indices = find_client_indices(state.client, updates)
        mixing = state.mixing.copy()
        if not counts.any():
            return state, AggregationWeights(np.zeros_like(admitted_fraction), mixing=mixing)
        reported_mixing = mixing[client_indices[counts]]
        response = self.step_size * updates.loss[counts]
        mass = float(reported_mixing.sum())
        reported_mixing = (
            project(reported_mixing + response, mass)
            if mass > 0
            else 1.0 * (response == response.max())
        )
        mixing[client_indices[counts]] = reported_mixing if mass > 0 else 0.0
        return AFLState(state.client, mixing), AggregationWeights(
            renormalize(np.nan_to_num(scatter(reported_mixing, counts)), admitted_fraction, counts),
            response=scatter(response, counts),
            mixing=mixing,
        )

    def explain(self, trace: DecisionTrace, index: int) -> Iterator[str]:
        """Yield the ascent on p, and its restriction, with their numbers."""
        if trace.weights is None:
            return
        i = find_population_index(trace.state.client, trace, index)
        loss, before = trace.updates.loss[index], trace.state.mixing[i]
        ascended = before + self.step_size * loss
        yield (
            f"p_k + gamma F_k = {format_number(before)} + {self.step_size:g} x "
            f"{format_number(loss)} = "
            f"{format_number(ascended)}, projected onto the simplex of the reporting clients: "
            f"p_k = {format_number(trace.next_state.mixing[i])}"
        )
        yield from explain_normalization(trace.state.client, trace.next_state.mixing, trace, index)
