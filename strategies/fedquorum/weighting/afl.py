"""Mix clients by gradient ascent on the losses, projected onto the simplex (AFL)."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..description import SUM_BY_LOSSES, RuleDescription
from ..parameters import POSITIVE
from ..report import Decided
from ..responses import heard, positions, scattered
from ..rule import parameter
from ..search import Between
from ..simplex import project, restricted
from ..types import Call, FloatArray, IntArray, Population, Responses, Weights
from ..words import digits, explain_restricted, place_in
from .base import BY_LOSSES, Weighting
from .known_mixing import KnownMixing


@dataclass(frozen=True)
class AFLState:
    """The clients ascending and p, shapes (K,)."""

    client: IntArray
    mixing: FloatArray


@dataclass(frozen=True)
class AgnosticMixing(Weighting[AFLState]):
    """Weight client i by c_i = p_i, where p climbs the losses: the inner step of min_x max_p.

    A round replaces p by the projection of p + gamma F onto the simplex, and then weights its
    updates by p. p starts uniform. Clients that are not heard keep their p. The p of the clients
    heard is projected onto the mass that they held together; restricted to them and normalised, it
    weights their updates. If they hold no mass, which is common once p is concentrated, they keep
    none, and the client with the largest loss has all the weight of the round. This is the limit of
    the projection as the mass tends to 0.

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

    key = "afl"
    summary = "AFL: coefficients by gradient ascent on the losses, on the simplex."
    description = RuleDescription(
        weight="p by gradient ascent on the losses, on the simplex",
        source="Mohri et al. 2019",
        trusts="the loss of the received model",
        gain="weight from a high loss",
        limit="its step size a round",
        secure_sum=SUM_BY_LOSSES,
    )
    fixed_population = True
    unbounded = BY_LOSSES
    default_form = "projected step"
    factor = "p_k"
    divisor = "the sum of p over {whom}"

    step_size: float = parameter(0.1, POSITIVE, Between(0.001, 1.0))

    def over_known(self) -> KnownMixing:
        """Return p over the sum of p of all known clients that can count."""
        return KnownMixing(self)

    def init(self, population: Population) -> AFLState:
        """Return the uniform p."""
        client = population.ascending
        return AFLState(client, np.full(len(client), 1.0 / len(client)))

    def weigh(
        self, state: AFLState, call: Call, responses: Responses, share: FloatArray
    ) -> tuple[AFLState, Weights]:
        """Return the next p, and its restriction to the clients heard.

        Raises
        ------
        ValueError
            If the clients did not measure the model that they received.
        """
        counts = heard(call, responses, share)
        position = positions(state.client, responses)
        mixing = state.mixing.copy()
        if not counts.any():
            return state, Weights(np.zeros_like(share), mixing=mixing)
        heard_mixing = mixing[position[counts]]
        response = self.step_size * responses.loss[counts]
        mass = float(heard_mixing.sum())
        heard_mixing = (
            project(heard_mixing + response, mass)
            if mass > 0
            else 1.0 * (response == response.max())
        )
        mixing[position[counts]] = heard_mixing if mass > 0 else 0.0
        return AFLState(state.client, mixing), Weights(
            restricted(np.nan_to_num(scattered(heard_mixing, counts)), share, counts),
            response=scattered(response, counts),
            mixing=mixing,
        )

    def explain(self, decided: Decided, place: int) -> Iterator[str]:
        """Yield the ascent on p, and its restriction, with their numbers."""
        if decided.weights is None:
            return
        i = place_in(decided.state.client, decided, place)
        loss, before = decided.responses.loss[place], decided.state.mixing[i]
        moved = before + self.step_size * loss
        yield (
            f"p_k + gamma F_k = {digits(before)} + {self.step_size:g} x {digits(loss)} = "
            f"{digits(moved)}, projected onto the simplex of the clients heard: "
            f"p_k = {digits(decided.following.mixing[i])}"
        )
        yield from explain_restricted(
            decided.state.client, decided.following.mixing, decided, place
        )
