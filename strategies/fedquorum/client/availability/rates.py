"""Compute how often each client takes part, which a simulation knows and a server does not."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from ...rules.types import FloatArray, PerClient
from .periodic import AvailabilityPattern


@dataclass(frozen=True, eq=False)
class ParticipationRates:
    """The rates of the clients 0 to N - 1.

    Parameters
    ----------
    p : FloatArray
        p_n of being available, shape (N,): the fraction of rounds, before ``pattern`` changes it.
    pattern : AvailabilityPattern, optional
        The change of the rates with time; None if they are constant.
    counted : FloatArray, optional
        The probability that a round counts an available client, shape (N,): that the round selects
        it and, if time decides, its reply is in time. NaN for a client that the selection leaves
        out, or if unknown. None if every round counts all available clients.
    """

    p: FloatArray
    pattern: AvailabilityPattern | None = None
    counted: FloatArray | None = None

    @property
    def by_client(self) -> dict[int, float]:
        """p_n of being available, by client id."""
        return dict(enumerate(self.p.tolist()))

    def get_rates(self, t: int) -> FloatArray:
        """Return the probability that round t, from 0, counts each client, shape (N,)."""
        return self._scale_by_counted(
            self.p if self.pattern is None else self.pattern.compute_probabilities(self.p, t)
        )

    @property
    def mean_rates(self) -> FloatArray:
        """The long-run fraction of rounds that count each client, shape (N,)."""
        return self._scale_by_counted(self.availability)

    @property
    def availability(self) -> FloatArray:
        """The long-run fraction of rounds in which each client is available, shape (N,)."""
        return self.p if self.pattern is None else self.pattern.compute_mean_probabilities(self.p)

    def with_counted(self, counted: Mapping[int, float] | None) -> "ParticipationRates":
        """Return the rates with these probabilities by client id; None if they are unknown."""
        if counted is None:
            return replace(self, counted=np.full(len(self.p), np.nan))
        clients = np.arange(len(self.p))
        return replace(self, counted=PerClient.from_mapping(counted).get_array(clients, np.nan))

    @property
    def counted_by_client(self) -> PerClient | None:
        """``counted`` by client id, for the clients with a known value; None without any."""
        if self.counted is None:
            return None
        clients = np.flatnonzero(~np.isnan(self.counted))
        return PerClient(clients, self.counted[clients]) if len(clients) else None

    def _scale_by_counted(self, available: FloatArray) -> FloatArray:
        return available if self.counted is None else available * self.counted
