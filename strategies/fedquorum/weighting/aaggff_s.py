"""AAggFF-S: the mixing vector of cross-silo learning, decided by an online Newton step."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..errors import ParameterError
from ..parameters import NEWTON_FORM
from ..regret import regret_bound_s
from ..report import Decided
from ..responses import (
    PUBLISHED_NORMAL,
    bounded_responses,
    decision_loss,
    positions,
    response_range,
    scattered,
)
from ..rule import parameter
from ..selection.base import Selection
from ..server_optimizer.base import ServerOptimizer
from ..types import (
    BoolArray,
    Call,
    FloatArray,
    IntArray,
    Population,
    Responses,
    Weights,
)
from ..words import digits, explain_response, explain_restricted, place_in
from .base import Weighting
from .response_mixing import ResponseMixing
from .simplex import GAP, minimise_quadratic, restricted

_NO_MASS = 1e-9
CODE = "code"


@dataclass(frozen=True)
class AAggFFSState:
    """The sums that stand for the history, by the clients ascending.

    ``linear`` is b = sum g - beta sum g <g, p_tau>, shape (K,). ``quadratic`` is
    H = alpha I + beta sum g g^T, shape (K, K). ``mixing`` is p, shape (K,).
    """

    client: IntArray
    linear: FloatArray
    quadratic: FloatArray
    mixing: FloatArray


@dataclass(frozen=True)
class NewtonMixing(ResponseMixing[AAggFFSState]):
    """c_i = p_i, where p follows the regularised leader over all rounds' responses.

    With r_i = C1 + (C2 - C1) CDF(F_i / mean F) and g = -r / (1 + <p, r>), the gradient of
    l(p) = -log(1 + <p, r>),

        p^(t+1) = argmin over the simplex of sum_tau <g_tau, p> + (alpha / 2) |p|^2
                  + (beta / 2) sum_tau <g_tau, p - p_tau>^2
                = argmin <b, p> + p^T H p / 2,

    alpha = 4 K L, beta = 1 / (4 L), L = C2 / (1 + C1). p starts uniform; the decision of a round
    uses its responses and weighs its updates. The quadratic program is solved to a gap of 1e-10
    (times L K, which is 1 by default), so that p is within 7e-6 of its minimum; in practice it
    is within 1e-9.

    ``form`` ``code`` is what the authors' published code does instead, with which the published
    numbers were made: there b = sum g without the term with p_tau, H = alpha (1 + beta) I +
    beta sum g g^T, and the ``normal`` transform is (1 + erfc((x - 1) / sqrt 2)) / 2, which falls
    with the loss: who has the larger loss gets the smaller coefficient. It has no regret bound.

    All clients are to answer in every round. Of one that does not, the response is taken as the
    mean of those heard, and the updates are weighed by p restricted to who answered, normalised.
    Where nobody is heard the state stays; where those heard hold no mass (less than 1e-9, below
    what the solver resolves) the model does.

    Memory and time: K^2 numbers, O(K^3) a round.

    Parameters
    ----------
    cdf : {"weibull", "exponential", "frechet", "normal", "gumbel", "logistic"}
        The response's transform; see ``cdf_value``.
    c1, c2 : float, optional
        The range of the responses, 0 <= C1 < C2; by default [0, 1 / K].
    form : {"paper", "code"}
        Whose rule.

    Raises
    ------
    ParameterError
        For a value outside its range.

    References
    ----------
    Hahn, Kim and Lee, "Pursuing Overall Welfare in Federated Learning through Sequential Decision
    Making", ICML 2024, Algorithm 2 (with eq. 8); their code, github.com/vaseline555/AAggFF.
    """

    key = "aaggff_s"
    summary = "AAggFF-S: fair mixing coefficients for few clients, by an online Newton step."
    needs_everyone = True
    tolerance = 1e-6  # p is the answer of a solver, which other machines round otherwise

    form: str = parameter("paper", NEWTON_FORM)

    def over_known(self) -> Weighting[Any]:
        """Refuse a correction for participation."""
        raise self.uncorrectable(
            "its Newton step needs all clients in every round: nobody is away to be corrected for"
        )

    def init(self, population: Population) -> AAggFFSState:
        """Return the state before round 0: uniform p, nothing seen."""
        size = len(population.clients)
        alpha, beta = self._constants(size)
        again = 1.0 + beta if self.form == CODE else 1.0
        return AAggFFSState(
            client=population.ascending,
            linear=np.zeros(size),
            quadratic=again * alpha * np.eye(size),
            mixing=np.full(size, 1.0 / size),
        )

    def weigh(
        self, state: AAggFFSState, call: Call, responses: Responses, share: FloatArray
    ) -> tuple[AAggFFSState, Weights]:
        """Return the state after the Newton step, and its p on the clients heard.

        Raises
        ------
        SolverError
            If the quadratic program is not solved to its accuracy.
        ValueError
            If not all clients were asked, or if they did not measure the model they received.
        """
        if len(call.clients) < len(state.client):
            raise ValueError(
                f"AAggFF-S needs the responses of all {len(state.client)} clients in every round, "
                f"got a round that asks {len(call.clients)}; with sampling use AAggFF-D"
            )
        return super().weigh(state, call, responses, share)

    def decide(
        self,
        state: AAggFFSState,
        call: Call,
        responses: Responses,
        share: FloatArray,
        counts: BoolArray,
    ) -> tuple[AAggFFSState, Weights]:
        """Return the state after the Newton step, and its p on the clients heard."""
        position = positions(state.client, responses)
        heard_responses = bounded_responses(
            responses.loss[counts], self._transform, *self._range(len(state.client))
        )
        response = np.full(len(state.client), heard_responses.mean())
        response[position[counts]] = heard_responses
        following = self._step(state, response)
        return following, Weights(
            restricted(following.mixing[position], share, counts, _NO_MASS),
            response=scattered(heard_responses, counts),
            mixing=following.mixing,
            decision_loss=decision_loss(state.mixing, response),
            estimate=response,
        )

    def _step(self, state: AAggFFSState, response: FloatArray) -> AAggFFSState:
        """Return the state after the response of all clients, shape (K,)."""
        size = len(response)
        alpha, beta = self._constants(size)
        gradient = -response / (1.0 + state.mixing @ response)
        at_p = 0.0 if self.form == CODE else beta * (gradient @ state.mixing)
        linear = state.linear + gradient * (1.0 - at_p)
        quadratic = state.quadratic + beta * np.outer(gradient, gradient)
        scale = alpha / 4.0  # so that the paper's H begins as 4 I and the gap is one for any L
        mixing = minimise_quadratic(quadratic / scale, linear / scale, gap=GAP)
        return replace(state, linear=linear, quadratic=quadratic, mixing=mixing)

    @property
    def _transform(self) -> str:
        return PUBLISHED_NORMAL if (self.form, self.cdf) == (CODE, "normal") else self.cdf

    def _constants(self, size: int) -> tuple[float, float]:
        """Return alpha = 4 K L and beta = 1 / (4 L)."""
        lipschitz = self._lipschitz(size)
        return 4.0 * size * lipschitz, 1.0 / (4.0 * lipschitz)

    def _range(self, size: int) -> tuple[float, float]:
        return response_range(self.c1, self.c2, 1.0 / size)

    def _lipschitz(self, size: int) -> float:
        c1, c2 = self._range(size)
        return lipschitz_s(c1, c2)

    def check_with(self, selection: Selection, server_optimizer: ServerOptimizer[Any]) -> None:
        """Refuse a selection that does not ask all clients in every round."""
        why = "its Newton step needs the losses of all clients in every round"
        if not selection.asks_all:
            raise ParameterError(
                "selection", "everyone with the weighting aaggff_s", selection.key, why
            )
        if selection.sampling.fraction < 1.0:
            raise ParameterError(
                "fraction",
                "1 for AAggFF-S",
                selection.sampling.fraction,
                f"{why}; with sampling use AAggFF-D",
            )

    def regret_bound(self, rounds: int, clients: int, fraction: float) -> float | None:
        """Return 2 L K (1 + log(1 + T / (16 K))), None of the published code's form."""
        if self.form == CODE:
            return None
        return regret_bound_s(rounds, clients, self._lipschitz(clients))

    def explain(self, decided: Decided, place: int) -> Iterator[str]:
        """Yield the response, the Newton step and the restriction with their numbers."""
        if decided.weights is None:
            return
        before, after = decided.state, decided.following
        yield from explain_response(
            self._transform, *self._range(len(before.client)), decided, place
        )
        i = place_in(before.client, decided, place)
        yield (
            "p = argmin over the simplex of <b, p> + p' H p / 2, with b_k = "
            f"{digits(after.linear[i])} and H_kk = {digits(after.quadratic[i, i])} after this "
            f"round's response: p_k = {digits(after.mixing[i])}, before it "
            f"{digits(before.mixing[i])}"
        )
        yield from explain_restricted(before.client, after.mixing, decided, place)


def lipschitz_s(c1: float, c2: float) -> float:
    """Return L = C2 / (1 + C1), the largest |g_i| that responses in [C1, C2] give."""
    return c2 / (1.0 + c1)
