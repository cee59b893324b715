"""Mix many sampled clients in closed form (AAggFF-D, for cross-device learning)."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import ParameterError
from ..decisions import DecisionTrace
from ..description import RuleDescription
from ..formatting import (
    explain_normalization,
    explain_response,
    find_population_index,
    format_number,
)
from ..parameters import BASELINE_RESPONSE, CDF, Choices
from ..regret import Bound, compute_regret_bound, compute_regret_bound_d
from ..rounding import round_half_even
from ..rule import parameter
from ..selection.base import Selection
from ..server_optimizer.base import ServerOptimizer
from ..simplex import renormalize
from ..types import (
    AggregationWeights,
    BoolArray,
    ClientUpdates,
    FloatArray,
    IntArray,
    Population,
    RoundPlan,
)
from .exponentiated_gradient import compute_exponentiated_gradient
from .population_mixing import PopulationMixing
from .response_mixing import ResponseMixing
from .responses import (
    compute_bounded_responses,
    compute_cdf,
    compute_decision_loss,
    estimate_doubly_robust,
    find_client_indices,
    resolve_response_range,
    scatter,
)


@dataclass(frozen=True)
class AAggFFDState:
    """The sums over earlier rounds, by the clients ascending.

    ``gradient`` is sum_tau g_tau, shape (K,); ``mixing`` is p, shape (K,). ``rounds`` is m, the
    number of gradients in the sum, and ``rbar_sum`` is the sum of those rounds' mean responses.
    """

    client: IntArray
    gradient: FloatArray
    mixing: FloatArray
    rounds: int
    rbar_sum: float


@dataclass(frozen=True)
class AAggFFDWeighting(ResponseMixing[AAggFFDState]):
    """Weight client i by c_i = p_i / (sum of p over the reporting clients).

    Each round decides p for all K clients from the responses of the few sampled ones. The response
    of a reporting client is r_i = C1 + (C2 - C1) CDF(F_i / mean F). The doubly robust estimate for
    all clients is r~_i = (1 - I_i / C) rbar + (I_i / C) r_i. The gradient of
    l(p) = -log(1 + <p, r>), linearized at r = rbar 1, is

        g = -r~ / (1 + rbar) + rbar 1 <p, r~ - rbar 1> / (1 + rbar)^2,

    With m gradients in the sum, p_i is proportional to
    exp(-sqrt(log K) sum_tau g_tau,i / (L sqrt(m + 1))) with
    L = C2 / (1 + C1) + 2 (C2 - C1) / (C (1 + C1)). p starts uniform. The decision of a round uses
    the round's responses and weights the round's updates.

    C is the number of selected clients divided by the number of eligible clients: K, or the number
    of priority clients if only they are eligible. A client that was not selected, or did not
    report, counts as not sampled. If no client reports, the state stays the same. Time and memory
    are O(K).

    Parameters
    ----------
    cdf : {"weibull", "exponential", "frechet", "normal", "gumbel", "logistic"}
        The CDF of the response; see ``compute_cdf``.
    c1, c2 : float, optional
        The range of the responses, 0 <= C1 < C2; by default [0, C].
    baseline_response : {"sample", "running"}
        ``sample`` (the paper): the mean response of the reporting clients, which shrinks the
        estimate towards the mean (see ``estimate_doubly_robust``). ``running``: the mean of earlier
        rounds' mean responses, which is unbiased; in the first round it is C1 + (C2 - C1) CDF(1),
        the response to the mean loss.

    Raises
    ------
    ParameterError
        If a value is outside its range.

    References
    ----------
    Hahn, Kim and Lee, "Pursuing Overall Welfare in Federated Learning through Sequential Decision
    Making", ICML 2024, Lemma 4.3, Remark 4.5 and Algorithm 3. ``running`` is ours.
    """

    description = RuleDescription(
        key="aaggff_d",
        summary="AAggFF-D: fair mixing coefficients for many sampled clients, in closed form.",
        use="many devices, a few in each round, should be treated fairly",
        weight="p in closed form, with doubly robust responses for clients not sampled",
        source="[Hahn, Kim and Lee](https://arxiv.org/abs/2405.20821), Algorithm 3",
        trusts="the loss of the received model",
        gain="weight from a high loss: p moves towards clients that are worse off",
        limit=(
            "responses are bounded, so p moves by a bounded step a round, but in the long run "
            "towards a client that keeps lying"
        ),
        is_baseline=False,
    )

    cdf: str = parameter("weibull", CDF, Choices(CDF.choices))
    baseline_response: str = parameter("sample", BASELINE_RESPONSE)

    def with_fixed_denominator(self) -> PopulationMixing:
        """Return p over the sum of p of all registered clients that can count."""
        return PopulationMixing(self)

    def init(self, population: Population) -> AAggFFDState:
        """Return the state before round 0, with uniform p and empty sums."""
        size = len(population.clients)
        return AAggFFDState(
            client=population.sorted_clients,
            gradient=np.zeros(size),
            mixing=np.full(size, 1.0 / size),
            rounds=0,
            rbar_sum=0.0,
        )

    def decide(
        self,
        state: AAggFFDState,
        plan: RoundPlan,
        updates: ClientUpdates,
        admitted_fraction: FloatArray,
        counts: BoolArray,
    ) -> tuple[AAggFFDState, AggregationWeights]:
        """Return the state after the decision, and its p on the reporting clients."""
        size = len(state.client)
        fraction = compute_sampled_fraction(plan, size)
        c1, c2 = resolve_response_range(self.c1, self.c2, fraction)
        client_indices = find_client_indices(state.client, updates)
        reported_responses = compute_bounded_responses(updates.loss[counts], self.cdf, c1, c2)
        rbar = self._compute_rbar(state, reported_responses, c1, c2)
        response = estimate_doubly_robust(
            reported_responses, client_indices[counts], size, fraction, rbar
        )
        gradient = state.gradient + compute_linearized_gradient(state.mixing, response, rbar)
        rounds = state.rounds + 1
        step = math.sqrt(math.log(size) / (rounds + 1)) / compute_lipschitz_d(c1, c2, fraction)
        next_state = AAggFFDState(
            client=state.client,
            gradient=gradient,
            mixing=compute_exponentiated_gradient(None, -step * gradient),
            rounds=rounds,
            rbar_sum=state.rbar_sum + float(reported_responses.mean()),
        )
        # restricted in the exponent, where no client's p underflows
        reported_mixing = compute_exponentiated_gradient(
            None, -step * gradient[client_indices[counts]]
        )
        return next_state, AggregationWeights(
            renormalize(np.nan_to_num(scatter(reported_mixing, counts)), admitted_fraction, counts),
            response=scatter(reported_responses, counts),
            mixing=next_state.mixing,
            decision_loss=compute_decision_loss(state.mixing, response),
            estimate=response,
        )

    def check_with(self, selection: Selection, server_optimizer: ServerOptimizer[Any]) -> None:
        """Refuse a selection by losses."""
        if selection.hooks.before_round is not None:
            raise ParameterError(
                "selection",
                "one that draws uniformly with the weighting aaggff_d",
                selection.description.key,
                "its estimates divide by the probability of being selected, which is unknown if "
                "losses decide it",
            )

    def _compute_rbar(
        self, state: AAggFFDState, reported_responses: FloatArray, c1: float, c2: float
    ) -> float:
        if self.baseline_response == "sample":
            return float(reported_responses.mean())
        if state.rounds == 0:
            return float(c1 + (c2 - c1) * compute_cdf(self.cdf, np.ones(1))[0])
        return state.rbar_sum / state.rounds

    def explain(self, trace: DecisionTrace, index: int) -> Iterator[str]:
        """Yield the response, its estimate, p, and the restriction, with their numbers."""
        weights, next_state = trace.weights, trace.next_state
        if weights is None or weights.estimate is None:
            return
        size = len(trace.state.client)
        fraction = compute_sampled_fraction(trace.plan, size)
        c1, c2 = resolve_response_range(self.c1, self.c2, fraction)
        yield from explain_response(self.cdf, c1, c2, trace, index)
        i = find_population_index(trace.state.client, trace, index)
        yield (
            f"doubly robust r~_k = (1 - 1/C) rbar + r_k / C = {format_number(weights.estimate[i])} "
            f"with C = {format_number(fraction)}"
        )
        step = math.sqrt(math.log(size) / (next_state.rounds + 1)) / compute_lipschitz_d(
            c1, c2, fraction
        )
        yield (
            "p_k ~ exp(-sqrt(log K / (m + 1)) / L sum of g_k) = "
            f"exp(-{format_number(step)} x {format_number(next_state.gradient[i])}), "
            f"normalized over K = {size}: p_k = {format_number(next_state.mixing[i])}"
        )
        yield from explain_normalization(trace.state.client, next_state.mixing, trace, index)


@compute_regret_bound.register
def _(weighting: AAggFFDWeighting, rounds: int, clients: int, fraction: float) -> Bound:
    """Return 2 L sqrt(T log K), proven for C = 1 and the linearized losses."""
    sample_fraction = max(1, round_half_even(fraction, clients)) / clients
    c1, c2 = resolve_response_range(weighting.c1, weighting.c2, sample_fraction)
    bound = compute_regret_bound_d(rounds, clients, compute_lipschitz_d(c1, c2, sample_fraction))
    return Bound(bound, is_proven=False)


def compute_sampled_fraction(plan: RoundPlan, num_clients: int) -> float:
    """Return C: the number of selected clients / the number of eligible clients (by default K)."""
    return len(plan.clients) / (num_clients if plan.eligible is None else len(plan.eligible))


def compute_linearized_gradient(
    mixing: FloatArray, response: FloatArray, rbar: float
) -> FloatArray:
    """Return g = -r / (1 + rbar <p, 1>) + rbar 1 <p, r - rbar 1> / (1 + rbar <p, 1>)^2, shape (K,).

    This is the first-order expansion of -r / (1 + <p, r>) in r at rbar 1, for p on the simplex. It
    is linear in r, so that an unbiased estimate of r gives an unbiased g.

    References
    ----------
    Hahn, Kim and Lee 2024, Algorithm 3.
    """
    growth = 1.0 + rbar
    shift = rbar * float(mixing @ response - rbar) / growth**2
    gradient: FloatArray = shift - response / growth
    return gradient


def compute_lipschitz_d(c1: float, c2: float, fraction: float) -> float:
    """Return L = C2 / (1 + C1) + 2 (C2 - C1) / (C (1 + C1)), a bound on |g_i|."""
    return c2 / (1.0 + c1) + 2.0 * (c2 - c1) / (fraction * (1.0 + c1))
