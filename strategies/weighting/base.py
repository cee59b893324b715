"""The interface of a weighting rule."""

from typing import Any, Protocol, runtime_checkable

from strategies.parameters import ParameterError
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

    Pure: the state goes in and comes out, a value like any other. c_k is ``factor`` over
    ``divisor``, which both are words, by the papers' symbols. A class that inherits needs ``init``
    and ``weigh``; the rest then says that it weighs by the losses of those admitted.
    """

    @property
    def needs_losses(self) -> bool:
        """Whether each client's loss of the model it received is needed."""
        return True

    @property
    def factor(self) -> str:
        """What c_k is proportional to."""
        return type(self).__name__

    @property
    def divisor(self) -> str:
        """What it is divided by; ``{whom}`` stands for whom the sum is over."""
        return "the sum of the same over {whom}"

    @property
    def fixed_divisor(self) -> bool:
        """Whether the sum is over all whom the selection covers, there or not.

        Else it is over the clients whose updates were admitted in the round.
        """
        return False

    def init(self, population: Population) -> StateT:
        """Return the state before the first round."""

    def weigh(
        self, state: StateT, call: Call, responses: Responses, share: FloatArray
    ) -> tuple[StateT, Weights]:
        """Return the next state and the weight of every response.

        ``share`` is how much of each update was admitted, in [0, 1], shape (n,).
        """

    def over_known(self) -> "Weighting[Any]":
        """Return the same weights divided by a fixed population; see ``fixed_divisor``.

        That is what a rule multiplies that corrects for how often clients are there: divided by
        the weights of whoever shows up, no factor could make the mean right.

        Raises
        ------
        ParameterError
            Where there is no such thing, with the reason.
        """
        raise ParameterError(
            f"participation must be none with {type(self).__name__} "
            "(it weighs by the updates of a round, and of who is away there is none to divide by)"
        )


@runtime_checkable
class KnownBeforehand(Protocol):
    """A weighting whose weights are known before training, up to a common factor.

    A node of several clients can then return the weighted sum of their updates instead of every
    model. Everybody that arrives must be admitted, so this is for rounds without a gate.
    """

    def proportions(self, state: Any, call: Call) -> Proportions | None:
        """Return what ``weigh`` will be proportional to, None if that is open in this round."""
