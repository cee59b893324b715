"""Define the interface of corrections that count each client's rounds."""

import math
from abc import abstractmethod
from dataclasses import replace
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np

from ..types import (
    AggregationWeights,
    BoolArray,
    ClientUpdates,
    FloatArray,
    IntArray,
    KnownWeights,
    PerClient,
    RoundPlan,
)
from ..weighting.base import WeightingTraits
from ..weighting.responses import find_client_indices
from .base import Participation


class CountingState(Protocol):
    """The state of a counting correction for all clients, with the base's state."""

    @property
    def client(self) -> IntArray:
        """The clients of the population, ascending, shape (N,)."""

    @property
    def base(self) -> Any:
        """The base's state."""


CountingT = TypeVar("CountingT", bound=CountingState)


class CountingCorrection(Participation[CountingT]):
    """Weight participants by c_n = omega_n b_n / B, with omega_n from the rounds BEFORE this one.

    A client takes part in a round if it is present. A client that declines or whose update a gate
    rejects took part, because omega corrects for absence only. A selected client without a usable
    reply did not take part. The count of a client starts in the round in which it registers, and
    continues after its node has left. It skips rounds in which the client was not eligible, such as
    a gate's warm-up.

    A subclass counts rounds in its state, a frozen dataclass, and has a parameter that limits
    omega.
    """

    _limit_parameter: ClassVar[str]
    """The name of that parameter."""

    @abstractmethod
    def _estimate_omega(self, state: CountingT) -> FloatArray:
        """Return omega_n of all clients from the counted rounds, shape (N,)."""

    @abstractmethod
    def _count_round(
        self, state: CountingT, counted: BoolArray, participated: BoolArray
    ) -> CountingT:
        """Return the state after a round.

        ``counted`` marks the clients whose rounds include this one, ``participated`` the clients
        that took part, both of shape (N,).
        """

    @property
    def traits(self) -> WeightingTraits:
        """Those of a correction; with an infinite limit an update's weight has no bound."""
        name, traits = self._limit_parameter, super().traits
        if math.isfinite(getattr(self, name)):
            return traits
        reason = f"with {name} inf an update may count for any share; give it a number"
        return replace(traits, dp_unsupported_reason=reason)

    def compute_max_share(self, num_clients: int) -> float:
        """Return the limit of omega times the base's largest weight."""
        max_omega: float = getattr(self, self._limit_parameter)
        return max_omega * self.base.compute_max_share(num_clients)

    def compute_known_weights(self, state: CountingT, plan: RoundPlan) -> KnownWeights | None:
        """Return omega_n, from earlier rounds, times the base's proportional weights."""
        clients = np.array(plan.clients, dtype=np.int64)
        omega = self._estimate_omega(state)[np.searchsorted(state.client, clients)]
        omega_by_client = dict(zip(plan.clients, omega.tolist(), strict=True))
        return self._compute_corrected_weights(omega_by_client, state.base, plan)

    def weigh(
        self,
        state: CountingT,
        plan: RoundPlan,
        updates: ClientUpdates,
        admitted_fraction: FloatArray,
    ) -> tuple[CountingT, AggregationWeights]:
        """Return the weights from earlier rounds, and the state after this one.

        Raises the base's errors.
        """
        registered = _build_mask(state.client, updates.registered)
        client_indices = find_client_indices(state.client, updates)
        base, weights = self.base.weigh(state.base, plan, updates, admitted_fraction)
        participated = _build_mask(state.client, updates.declined)
        participated[client_indices] = True
        all_registered, estimate = registered.all(), self._estimate_omega(state)
        omega = PerClient(
            state.client if all_registered else state.client[registered],
            estimate if all_registered else estimate[registered],
        )
        counted = (
            registered
            if plan.eligible is None
            else registered & np.isin(state.client, list(plan.eligible))
        )
        next_state: Any = self._count_round(state, counted, participated)
        return replace(next_state, base=base), replace(
            weights, numerator=estimate[client_indices] * weights.numerator, omega=omega
        )


def _build_mask(clients: IntArray, members: IntArray) -> BoolArray:
    """Return a membership mask, shape (N,), with fast paths for all and none."""
    if not len(members):
        return np.zeros(len(clients), dtype=np.bool_)
    if np.array_equal(clients, members):
        return np.ones(len(clients), dtype=np.bool_)
    return np.isin(clients, members)
