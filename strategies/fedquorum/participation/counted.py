"""Define the interface of corrections that count each client's rounds."""

import math
from abc import abstractmethod
from dataclasses import replace
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np

from ..responses import positions
from ..types import (
    BoolArray,
    ByClient,
    Call,
    FloatArray,
    IntArray,
    Proportions,
    Responses,
    Weights,
)
from .base import Participation


class CountingState(Protocol):
    """The state of such a correction for all clients, with the base's state."""

    @property
    def client(self) -> IntArray:
        """The clients of the population, ascending, shape (N,)."""

    @property
    def base(self) -> Any:
        """The base's state."""


CountingT = TypeVar("CountingT", bound=CountingState)


class Counted(Participation[CountingT]):
    """Weight participants by c_n = omega_n b_n / B, with omega_n from the rounds BEFORE this one.

    A client takes part in a round if it is present. A client that declines or that a gate
    refuses took part, because omega corrects for absence only. A client that was asked and sent no
    usable reply did not take part. The count of a client begins in the round in which the server
    first knows it, and continues after its node has left. It skips rounds in which the server could
    not ask the client, such as a gate's warm-up.

    A subclass counts rounds in its state, a frozen dataclass, and has a parameter that limits
    omega.

    Attributes
    ----------
    bound : str
        The name of that parameter.
    """

    late = "It did not take part in the round."
    bound: ClassVar[str]

    @abstractmethod
    def estimate(self, state: CountingT) -> FloatArray:
        """Return omega_n of all clients from the counted rounds, shape (N,)."""

    @abstractmethod
    def count(self, state: CountingT, counted: BoolArray, took_part: BoolArray) -> CountingT:
        """Return the state after a round.

        ``counted`` marks the clients whose rounds include this one, ``took_part`` the clients that
        took part, both of shape (N,).
        """

    @property
    def unbounded(self) -> str:
        """The reason why an update's share has no bound: omega can grow without limit."""
        if math.isinf(getattr(self, self.bound)):
            return f"with {self.bound} inf an update may count for any share; give it a number"
        return self.base.unbounded

    def largest_share(self, num_clients: int) -> float:
        """Return the limit of omega times the base's largest share."""
        most: float = getattr(self, self.bound)
        return most * self.base.largest_share(num_clients)

    def proportions(self, state: CountingT, call: Call) -> Proportions | None:
        """Return omega_n, which earlier rounds determine, times the base's proportions."""
        clients = np.array(call.clients, dtype=np.int64)
        omega = self.estimate(state)[np.searchsorted(state.client, clients)]
        of_asked = dict(zip(call.clients, omega.tolist(), strict=True))
        return self._corrected(of_asked, state.base, call)

    def weigh(
        self, state: CountingT, call: Call, responses: Responses, share: FloatArray
    ) -> tuple[CountingT, Weights]:
        """Return the weights from earlier rounds, and the state after this one.

        Raises the base's errors.
        """
        known = _among(state.client, responses.known)
        position = positions(state.client, responses)
        base, weights = self.base.weigh(state.base, call, responses, share)
        took_part = _among(state.client, responses.silent)
        took_part[position] = True
        whole, estimate = known.all(), self.estimate(state)
        omega = ByClient(
            state.client if whole else state.client[known], estimate if whole else estimate[known]
        )
        counted = known if call.pool is None else known & np.isin(state.client, list(call.pool))
        following: Any = self.count(state, counted, took_part)
        return replace(following, base=base), replace(
            weights, factor=estimate[position] * weights.factor, omega=omega
        )


def _among(clients: IntArray, chosen: IntArray) -> BoolArray:
    """Return which of the clients are among those chosen, shape (N,); mostly all, or nobody."""
    if not len(chosen):
        return np.zeros(len(clients), dtype=np.bool_)
    if np.array_equal(clients, chosen):
        return np.ones(len(clients), dtype=np.bool_)
    return np.isin(clients, chosen)
