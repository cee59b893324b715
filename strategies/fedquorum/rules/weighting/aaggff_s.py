"""Mix a few clients by an online Newton step (AAggFF-S, for cross-silo learning)."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
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
from ..parameters import NEWTON_VARIANT
from ..regret import Bound, compute_regret_bound, compute_regret_bound_s, is_bound_s_proven
from ..rule import parameter
from ..selection.base import Selection
from ..server_optimizer.base import ServerOptimizer
from ..simplex import MAX_GAP, minimize_quadratic, renormalize
from ..types import (
    AggregationWeights,
    BoolArray,
    ClientUpdates,
    FloatArray,
    IntArray,
    Population,
    RoundPlan,
)
from .response_mixing import ResponseMixing
from .responses import (
    compute_authors_cdf,
    compute_bounded_responses,
    compute_cdf,
    compute_decision_loss,
    find_client_indices,
    resolve_response_range,
    scatter,
)

_NO_MASS = 1e-9
_VARIANTS = {
    "paper": "",
    "authors_code": " (as in the authors' code: b = sum g, H = alpha (1 + beta) I + beta sum g g')",
}


@dataclass(frozen=True)
class AAggFFSState:
    """The sums over earlier rounds, by the clients ascending.

    ``linear`` is b = sum g - beta sum g <g, p_tau>, shape (K,). ``quadratic`` is H = alpha I + beta
    sum g g^T, shape (K, K). ``mixing`` is p, shape (K,). The form of the authors' code has b = sum
    g and H = alpha (1 + beta) I + beta sum g g^T.
    """

    client: IntArray
    linear: FloatArray
    quadratic: FloatArray
    mixing: FloatArray


@dataclass(frozen=True)
class AAggFFSWeighting(ResponseMixing[AAggFFSState]):
    """Weight client i by c_i = p_i, where p follows the regularized leader.

    The response of client i is r_i = C1 + (C2 - C1) CDF(F_i / mean F). With the gradient
    g = -r / (1 + <p, r>) of l(p) = -log(1 + <p, r>), a round decides

        p^(t+1) = argmin over the simplex of sum_tau <g_tau, p> + (alpha / 2) |p|^2
                  + (beta / 2) sum_tau <g_tau, p - p_tau>^2
                = argmin <b, p> + p^T H p / 2,

    with alpha = 4 K L, beta = 1 / (4 L), L = C2 / (1 + C1). p starts uniform. The decision of a
    round uses the round's responses and weights the round's updates. The quadratic program is
    solved to a gap of 1e-10 (times L K, which is 1 by default), so that p is within 7e-6 of its
    minimum; in practice it is within 1e-9.

    All clients should report in every round. If a client does not report, its response is taken to
    be the mean of the reported responses, and the updates have the weights p, restricted to the
    reporting clients and normalized. If no client reports, the state stays the same. If the
    reporting clients hold no mass (less than 1e-9, below the solver's resolution), the model stays
    the same.

    The authors' published code, ``variant="authors_code"``, differs from the paper in three places.
    It adds alpha to H twice, once multiplied by beta, and omits the term with p_tau:

        p^(t+1) = argmin <sum g, p> + p^T (alpha (1 + beta) I + beta sum g g^T) p / 2.

    Its normal CDF falls with the loss, (1 + erfc((x - 1) / sqrt 2)) / 2, so that with the default
    ``cdf`` clients with smaller losses have larger responses. This form has no regret bound. (The
    code takes its first gradient at p = (1, ..., 1), which is not on the simplex; this class takes
    it at the uniform p, as the paper does.)

    The state has K^2 numbers, and a round takes O(K^3) time.

    Parameters
    ----------
    cdf : {"weibull", "exponential", "frechet", "normal", "gumbel", "logistic"}
        The CDF of the response; see ``compute_cdf``.
    c1, c2 : float, optional
        The range of the responses, 0 <= C1 < C2; by default [0, 1 / K].
    variant : {"paper", "authors_code"}
        The paper's step, or that of the authors' code; see above.

    Raises
    ------
    ParameterError
        If a value is outside its range.

    References
    ----------
    Hahn, Kim and Lee, "Pursuing Overall Welfare in Federated Learning through Sequential Decision
    Making", ICML 2024, Algorithm 2 (with eq. 8); the authors' code, github.com/vaseline555/AAggFF,
    src/server/aaggffserver.py, which made the paper's tables.
    """

    description = RuleDescription(
        key="aaggff_s",
        summary="AAggFF-S: fair mixing coefficients for few clients, by an online Newton step.",
        use="a few silos, all in every round, should be treated fairly",
        clients="all clients",
        weight=(
            "mixing coefficients p by an online Newton step on bounded responses to the losses"
        ),
        source="[Hahn, Kim and Lee](https://arxiv.org/abs/2405.20821), Algorithm 2",
        state="24, and 8 for each pair of clients",
        trusts="the loss of the received model",
        gain="weight from a high loss: p moves towards clients that are worse off",
        limit=(
            "responses are bounded, so p moves by a bounded step a round, but in the long run "
            "towards a client that keeps lying"
        ),
        is_baseline=False,
        authors_form="authors' code",
    )
    traits = replace(
        ResponseMixing.traits,
        requires_full_participation=True,
        tolerance=1e-6,  # p comes from a solver, and other machines round differently
        uncorrectable_reason=(
            "its Newton step needs all clients in every round: there is no absence to correct for"
        ),
    )

    variant: str = parameter("paper", NEWTON_VARIANT)

    def init(self, population: Population) -> AAggFFSState:
        """Return the state before round 0, with uniform p and empty sums."""
        size = len(population.clients)
        return AAggFFSState(
            client=population.sorted_clients,
            linear=np.zeros(size),
            quadratic=self._compute_ridge(size) * np.eye(size),
            mixing=np.full(size, 1.0 / size),
        )

    def weigh(
        self,
        state: AAggFFSState,
        plan: RoundPlan,
        updates: ClientUpdates,
        admitted_fraction: FloatArray,
    ) -> tuple[AAggFFSState, AggregationWeights]:
        """Return the state after the Newton step, and its p on the reporting clients.

        Raises
        ------
        SolverError
            If the quadratic program is not solved to its accuracy.
        ValueError
            If not all clients were selected, or they did not evaluate the model that they received.
        """
        if len(plan.clients) < len(state.client):
            raise ValueError(
                f"AAggFF-S needs the responses of all {len(state.client)} clients in every round, "
                f"got a round that selects {len(plan.clients)}; with sampling use AAggFF-D"
            )
        return super().weigh(state, plan, updates, admitted_fraction)

    def decide(
        self,
        state: AAggFFSState,
        plan: RoundPlan,
        updates: ClientUpdates,
        admitted_fraction: FloatArray,
        counts: BoolArray,
    ) -> tuple[AAggFFSState, AggregationWeights]:
        """Return the state after the Newton step, and its p on the reporting clients."""
        client_indices = find_client_indices(state.client, updates)
        value = compute_cdf if self._is_paper_variant else compute_authors_cdf
        reported_responses = compute_bounded_responses(
            updates.loss[counts], self.cdf, *self._resolve_range(len(state.client)), value
        )
        response = np.full(len(state.client), reported_responses.mean())
        response[client_indices[counts]] = reported_responses
        next_state = self._step(state, response)
        return next_state, AggregationWeights(
            renormalize(next_state.mixing[client_indices], admitted_fraction, counts, _NO_MASS),
            response=scatter(reported_responses, counts),
            mixing=next_state.mixing,
            decision_loss=compute_decision_loss(state.mixing, response),
            estimate=response,
        )

    def _step(self, state: AAggFFSState, response: FloatArray) -> AAggFFSState:
        """Return the state after the response of all clients, shape (K,)."""
        size = len(response)
        lipschitz = self._compute_lipschitz(size)
        beta = 1.0 / (4.0 * lipschitz)
        gradient = -response / (1.0 + state.mixing @ response)
        gradient_scale = 1.0 - beta * (gradient @ state.mixing) if self._is_paper_variant else 1.0
        linear = state.linear + gradient * gradient_scale
        quadratic = state.quadratic + beta * np.outer(gradient, gradient)
        scale = size * lipschitz  # so that H starts as 4 I and the gap means the same for any L
        mixing = minimize_quadratic(quadratic / scale, linear / scale, gap=MAX_GAP)
        return replace(state, linear=linear, quadratic=quadratic, mixing=mixing)

    @property
    def _is_paper_variant(self) -> bool:
        return self.variant == "paper"

    def _compute_ridge(self, size: int) -> float:
        """Return the initial diagonal of H."""
        lipschitz = self._compute_lipschitz(size)
        alpha = 4.0 * size * lipschitz
        return alpha if self._is_paper_variant else alpha * (1.0 + 1.0 / (4.0 * lipschitz))

    def _resolve_range(self, size: int) -> tuple[float, float]:
        return resolve_response_range(self.c1, self.c2, 1.0 / size)

    def _compute_lipschitz(self, size: int) -> float:
        c1, c2 = self._resolve_range(size)
        return compute_lipschitz_s(c1, c2)

    def check_with(self, selection: Selection, server_optimizer: ServerOptimizer[Any]) -> None:
        """Refuse a selection that does not select all clients in every round."""
        reason = "its Newton step needs the losses of all clients in every round"
        if not selection.traits.selects_all:
            got = selection.description.key
            raise ParameterError("selection", "everyone with the weighting aaggff_s", got, reason)
        if selection.sampling.fraction < 1.0:
            raise ParameterError(
                "fraction",
                "1 for AAggFF-S",
                selection.sampling.fraction,
                f"{reason}; with sampling use AAggFF-D",
            )

    def explain(self, trace: DecisionTrace, index: int) -> Iterator[str]:
        """Yield the response, the Newton step, and the restriction, with their numbers."""
        if trace.weights is None:
            return
        before, after = trace.state, trace.next_state
        is_decreasing = self.cdf == "normal" and not self._is_paper_variant
        name = f"(3/2 - {self.cdf})" if is_decreasing else self.cdf
        yield from explain_response(name, *self._resolve_range(len(before.client)), trace, index)
        i = find_population_index(before.client, trace, index)
        yield (
            f"p = argmin over the simplex of <b, p> + p' H p / 2{_VARIANTS[self.variant]}, "
            f"with b_k = {format_number(after.linear[i])} and "
            f"H_kk = {format_number(after.quadratic[i, i])} after this round's response: "
            f"p_k = {format_number(after.mixing[i])}, before it {format_number(before.mixing[i])}"
        )
        yield from explain_normalization(before.client, after.mixing, trace, index)


@compute_regret_bound.register
def _(weighting: AAggFFSWeighting, rounds: int, clients: int, fraction: float) -> Bound | None:  # noqa: ARG001
    """Return 2 L K (1 + log(1 + T / (16 K))), for the paper's form only."""
    if weighting.variant != "paper":
        return None
    lipschitz = compute_lipschitz_s(
        *resolve_response_range(weighting.c1, weighting.c2, 1.0 / clients)
    )
    bound = compute_regret_bound_s(rounds, clients, lipschitz)
    return Bound(bound, is_bound_s_proven(lipschitz))


def compute_lipschitz_s(c1: float, c2: float) -> float:
    """Return L = C2 / (1 + C1), the largest |g_i| for responses in [C1, C2]."""
    return c2 / (1.0 + c1)
