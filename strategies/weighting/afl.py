"""AFL: the mixing vector climbs the losses, projected onto the simplex."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from strategies.parameters import POSITIVE
from strategies.responses import heard, positions, told
from strategies.types import Call, FloatArray, IntArray, Population, Responses, Weights
from strategies.weighting.known_mixing import KnownMixing
from strategies.weighting.simplex import project, restricted


@dataclass(frozen=True)
class AFLState:
    """The clients ascending and p, shapes (K,)."""

    client: IntArray
    mixing: FloatArray


@dataclass(frozen=True)
class AFL:
    """c_i = p_i with p <- projection onto the simplex of p + gamma F: ascent for min_x max_p.

    p starts uniform; the losses of a round move p before it weighs the round's updates. Clients
    not heard keep their p; those heard are projected onto the mass that they held together, and
    weighed by p restricted to them, normalised. Where they hold no mass, which is common once p
    is concentrated, they keep none, and the one worst off has all the weight of the round: the
    limit of the projection as the mass goes to 0.

    Parameters
    ----------
    step_size : float
        gamma > 0, in units of 1 / loss.

    Raises
    ------
    ParameterError
        For a step size outside its range.

    References
    ----------
    Mohri, Sivek and Suresh, "Agnostic Federated Learning", ICML 2019 (Stochastic-AFL).
    That the step on p comes first, and partial participation, are ours.
    """

    needs_losses: ClassVar[bool] = True
    fixed_divisor: ClassVar[bool] = False
    factor: ClassVar[str] = "p_k"
    divisor: ClassVar[str] = "the sum of p over {whom}"
    step_size: float = 0.1

    def __post_init__(self) -> None:
        POSITIVE.check("step_size", self.step_size)

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
        """Return the moved p, and it on the clients heard.

        Raises
        ------
        ValueError
            If the clients did not measure the model they received.
        """
        counts = heard(call, responses, share)
        position = positions(state.client, responses)
        mixing = state.mixing.copy()
        if not counts.any():
            return state, Weights(np.zeros_like(share), mixing=mixing)
        own = mixing[position[counts]]
        response = self.step_size * responses.loss[counts]
        mass = float(own.sum())
        own = project(own + response, mass) if mass > 0 else 1.0 * (response == response.max())
        mixing[position[counts]] = own if mass > 0 else 0.0
        return AFLState(state.client, mixing), Weights(
            restricted(np.nan_to_num(told(own, counts)), share, counts),
            response=told(response, counts),
            mixing=mixing,
        )
