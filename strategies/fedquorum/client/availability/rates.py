"""Return how often each client is available, which a simulation knows and a server does not."""

from dataclasses import dataclass

from ...types import FloatArray
from .periodic import Pattern


@dataclass(frozen=True, eq=False)
class SimulatedRates:
    """The rates p_n(t) of the clients 0 to N - 1.

    Parameters
    ----------
    p : FloatArray
        p_n, shape (N,): the share of rounds, before ``pattern`` changes it.
    pattern : Pattern, optional
        The change of the rates with time; None if they are constant.
    """

    p: FloatArray
    pattern: Pattern | None = None

    @property
    def by_client(self) -> dict[int, float]:
        """p_n by client id."""
        return dict(enumerate(self.p.tolist()))

    def at(self, t: int) -> FloatArray:
        """Return p_n(t) in round t, from 0, shape (N,)."""
        return self.p if self.pattern is None else self.pattern.at(self.p, t)

    @property
    def mean(self) -> FloatArray:
        """The long-run share of rounds in which each client is available, shape (N,)."""
        return self.p if self.pattern is None else self.pattern.mean(self.p)
