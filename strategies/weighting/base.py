"""The interface of a weighting rule."""

from typing import Any, Protocol, runtime_checkable

from strategies.types import (
    Call,
    FloatArray,
    Population,
    Proportions,
    Responses,
    StateT,
    Weights,
)


class Weighting(Protocol[StateT]):
    """Decides the coefficients c_k of x_{t+1} = server_step(x_t, sum_k c_k Delta_k).

    Pure: the state goes in and comes out, a value like any other.
    """

    def init(self, population: Population) -> StateT:
        """Return the state before the first round."""

    def weigh(
        self, state: StateT, call: Call, responses: Responses, share: FloatArray
    ) -> tuple[StateT, Weights]:
        """Return the next state and the weight of every response.

        ``share`` is how much of each update was admitted, in [0, 1], shape (n,).
        """


@runtime_checkable
class KnownBeforehand(Protocol):
    """A weighting whose weights are known before training, up to a common factor.

    A node of several clients can then return the weighted sum of their updates instead of every
    model. Everybody that arrives must be admitted, so this is for rounds without a gate.
    """

    def proportions(self, state: Any, call: Call) -> Proportions | None:
        """Return what ``weigh`` will be proportional to, None if that is open in this round."""
