"""Weights corrected by participation rates that somebody knows."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Self

from ..errors import ParameterError
from ..parameters import PROBABILITY, Range
from ..report import Decided
from ..rule import RunFacts, parameter
from ..types import ByClient, Call, FloatArray, Population, Proportions, Responses, Weights
from ..words import digits
from .base import Participation


@dataclass(frozen=True)
class Rates(Range):
    """A rate p_n for each client."""

    def describe(self) -> str:
        """Return the allowed values in words."""
        return "a list of p_n for each client, or a mapping of client ids to p_n, each in (0, 1]"

    def contains(self, value: object) -> bool:
        """Say whether ``value`` has rates, and only rates."""
        if isinstance(value, Mapping):
            return all(map(PROBABILITY.contains, value.values()))
        if isinstance(value, str) or not isinstance(value, Sequence):
            return False
        return all(map(PROBABILITY.contains, value))


RATES = Rates()


@dataclass(frozen=True)
class KnownRates(Participation[Any]):
    """c_n = omega_n b_n / B for the clients that took part, omega_n = 1 / p_n given.

    b_n / B is the weight by the base over a fixed population (``Weighting.over_known``), by default
    1 / N: the known-statistics baseline. Unbiased: in the mean client n counts b_n / B.

    Parameters
    ----------
    probabilities : sequence or mapping of int to float
        p_n by client id; a client without one has omega 1. In settings, null takes those of the
        simulated availability.
    base : Weighting
        How much the clients are to count.

    Raises
    ------
    ParameterError
        For a rate outside (0, 1], or a base that has no weights over a fixed population.

    References
    ----------
    Wang and Ji 2024, section 6, "known participation statistics". Other bases are ours.
    """

    key = "known_statistics"
    summary = "Updates weighted by the true 1 / (participation rate)."
    symbol = "(1 / p_k)"
    given_rates = True
    needed: ClassVar[Mapping[str, tuple[str, str]]] = {
        "probabilities": (RATES.describe(), "nobody else knows them")
    }
    late = "It did not take part; its rate is that of being in time."

    probabilities: Any = parameter(None, RATES)

    @classmethod
    def of(cls, options: Mapping[str, Any], facts: RunFacts) -> Self:
        """Return the rule with the rates given, or those that the simulation knows."""
        given = options.get("probabilities")
        rule = cls(**{**options, "probabilities": facts.rates if given is None else given})
        if not facts.clients:
            return rule
        if rule.probabilities is None:
            raise ParameterError(
                "probabilities",
                RATES.describe(),
                None,
                "nobody knows the rates otherwise: the availability does not tell them",
            )
        inverse_rates(facts.clients, rule.rates)
        return rule

    @cached_property
    def rates(self) -> Mapping[int, float]:
        """p_n by client id."""
        given = self.probabilities
        if given is None:
            return {}
        return given if isinstance(given, Mapping) else dict(enumerate(given))

    @cached_property
    def omega(self) -> Mapping[int, float]:
        """1 / p_n by client id."""
        return {client: 1.0 / rate for client, rate in self.rates.items()}

    @cached_property
    def _omegas(self) -> ByClient:
        return ByClient.of(self.omega)

    def omega_of(self, state: Any, client: int) -> float:
        """Return 1 / p_n, 1 for a client without a rate."""
        return self.omega.get(client, 1.0)

    def refuses(self, client: int) -> str:
        """Return that a client has no rate, by which its updates would be corrected."""
        return "" if client in self.rates else "as probabilities has no rate for it"

    def largest_share(self, num_clients: int) -> float:
        """Return the largest 1 / p_n times the base's."""
        return max(self.omega.values(), default=1.0) * self.base.largest_share(num_clients)

    def init(self, population: Population) -> Any:
        """Return the base's state before the first round."""
        return self.base.init(population)

    def proportions(self, state: Any, call: Call) -> Proportions | None:
        """Return omega_n and what the base is proportional to."""
        omega = {k: self.omega[k] for k in call.clients if k in self.omega}
        return self._corrected(omega, state, call)

    def weigh(
        self, state: Any, call: Call, responses: Responses, share: FloatArray
    ) -> tuple[Any, Weights]:
        """Return omega_n b_n / B."""
        following, weights = self.base.weigh(state, call, responses, share)
        factor = self._omegas.at(responses.client, 1.0)
        omega = ByClient(responses.known, self._omegas.at(responses.known, 1.0))
        return following, replace(weights, factor=factor * weights.factor, omega=omega)

    def explain(self, decided: Decided, place: int) -> Iterator[str]:
        """Yield omega, and how it multiplies the base's weight."""
        client = int(decided.responses.client[place])
        known = "1 / p_n" if client in self.omega else "1"
        yield f"omega_n = {known} = {digits(self.omega_of(decided.state, client))}"
        yield from super().explain(decided, place)


def inverse_rates(clients: Collection[int], probabilities: Mapping[int, float]) -> dict[int, float]:
    """Return 1 / p_n of every client.

    Raises
    ------
    ParameterError
        If a client has no p_n, or one outside (0, 1].
    """
    for client in clients:
        PROBABILITY.check(f"probabilities[{client}]", probabilities.get(client))
    return {client: 1.0 / probabilities[client] for client in clients}
