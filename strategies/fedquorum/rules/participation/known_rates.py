"""Correct weights by given participation rates."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

import numpy as np

from ...errors import ParameterError
from ..decisions import DecisionTrace
from ..description import Goal, RuleDescription
from ..formatting import format_number
from ..parameters import PROBABILITY, Range
from ..rule import RatePattern, RunContext, get_rule_name, parameter
from ..selection.base import Selection, declares_probabilities
from ..server_optimizer.base import ServerOptimizer
from ..types import (
    AggregationWeights,
    ClientUpdates,
    FloatArray,
    KnownWeights,
    PerClient,
    Population,
    RoundPlan,
)
from ..weighting.base import Weighting, WeightingTraits
from .base import Participation


@dataclass(frozen=True)
class RateValues(Range):
    """A rate p_n for each client."""

    def describe(self) -> str:
        """Return the allowed values in words."""
        return "a list of p_n for each client, or a mapping of client ids to p_n, each in (0, 1]"

    def contains(self, value: object) -> bool:
        """Say whether ``value`` consists of rates."""
        if isinstance(value, Mapping):
            return all(map(PROBABILITY.contains, value.values()))
        if isinstance(value, str) or not isinstance(value, Sequence):
            return False
        return all(map(PROBABILITY.contains, value))


RATES = RateValues()


@dataclass(frozen=True)
class KnownRatesCorrection(Participation[Any]):
    """Weight participants by c_n = omega_n b_n / B with given omega_n = 1 / p_n.

    b_n / B is the base's weight over a fixed population (``Weighting.with_fixed_denominator``). The
    default 1 / N gives the known-statistics baseline. p_n is the probability that a round counts
    client n. The correction is unbiased: the expected weight of client n is b_n / B. If rates
    change over time, omega_n is 1 / p_n(t) in round t, and 0 if the client cannot take part then.

    Rates from the user are the probabilities of being counted. A simulation has the probabilities
    of being available instead: p_n is then that rate times ``counted``, the probability that an
    available client is counted.

    Parameters
    ----------
    probabilities : sequence or mapping of int to float
        p_n by client id; omega_n is 1 for a client without a rate. In settings, null takes the
        rates of the simulated availability.
    pattern : RatePattern, optional
        The change of these rates over time; it comes with the simulation's rates.
    counted : mapping of int to float, optional
        The probability that an available client is counted; it comes with the simulation's rates.
        None if every round counts all available clients.
    base : Weighting
        The weighting to correct.

    Raises
    ------
    ParameterError
        If a rate is outside (0, 1], a client never takes part, no round selects it, the probability
        of its selection is unknown, or the base has no weights over a fixed population.

    References
    ----------
    Wang and Ji 2024, section 6, "known participation statistics"; 1 / p_n(t): Xiang et al., NeurIPS
    2024 (arXiv 2409.17446), section 7. Other bases are ours.
    """

    description = RuleDescription(
        key="known_statistics",
        summary="Updates weighted by 1 / (true participation rate).",
        use="clients come and go, and you know how often each one takes part",
        weight=(
            "1 / (p_n N), p_n the probability that a round counts client n, given ([what it "
            "is](composition.md#known-rates))"
        ),
        trusts="that an update is there",
        limit="1 / (N min p_n)",
        update_bound="server_lr / (N min p_n)",
        bound_needs="with rates that do not change with time",
        required_options={"probabilities": (RATES.describe(), "the run does not know them")},
        goal=Goal.PARTICIPATION,
        is_strategy=False,
    )
    _symbol = "(1 / p_k)"

    probabilities: Any = parameter(None, RATES)
    pattern: RatePattern | None = field(default=None, kw_only=True)
    counted: PerClient | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_possible()

    @classmethod
    def from_options(cls, options: Mapping[str, Any], context: RunContext) -> Self:
        """Return the rule with the given rates, or else with the simulation's rates."""
        if options.get("probabilities") is None:
            counted = None if context.counted is None else PerClient.from_mapping(context.counted)
            if counted is not None and np.all(counted.numbers == 1.0):
                counted = None
            simulated = {"pattern": context.pattern, "counted": counted}
            options = {**options, "probabilities": context.rates, **simulated}
        rule = cls(**options)
        if not context.clients:
            return rule
        if rule.probabilities is None:
            raise ParameterError(
                "probabilities",
                RATES.describe(),
                None,
                "the simulated availability does not supply the rates",
            )
        for client in context.clients:
            PROBABILITY.check(f"probabilities[{client}]", rule.rates.get(client))
        return rule

    def check_with(self, selection: Selection, server_optimizer: ServerOptimizer[Any]) -> None:
        """Refuse a selection that does not declare the probability of selecting a client."""
        super().check_with(selection, server_optimizer)
        if not declares_probabilities(selection):
            raise build_undeclared_error(selection, type(self))

    @cached_property
    def rates(self) -> PerClient:
        """The rates by client id, as given: before ``pattern`` and ``counted``."""
        given = self.probabilities or {}
        return PerClient.from_mapping(
            given if isinstance(given, Mapping) else dict(enumerate(given))
        )

    def _compute_omega(self, t: int) -> PerClient:
        """Return 1 / p_n(t) in round t (from 0), by client id; 0 if p_n(t) is 0."""
        rates = self.rates.numbers
        if self.pattern is not None:
            rates = self.pattern.compute_probabilities(rates, t)
        if self.counted is not None:
            rates = rates * self.counted.get_array(self.rates.clients, 1.0)
        inverse = np.divide(1.0, rates, out=np.zeros(len(rates)), where=rates > 0)
        return PerClient(self.rates.clients, inverse)

    @property
    def traits(self) -> WeightingTraits:
        """Those of a correction; with rates that change an update's weight has no bound."""
        traits = super().traits
        if self.pattern is None:
            return traits
        reason = "the weights have no known bound if rates change over time"
        return replace(traits, dp_unsupported_reason=reason)

    def compute_max_share(self, num_clients: int) -> float:
        """Return the largest 1 / p_n times the base's largest weight."""
        return max(self._compute_omega(0).values(), default=1.0) * self.base.compute_max_share(
            num_clients
        )

    def init(self, population: Population) -> Any:
        """Return the base's state before the first round."""
        return self.base.init(population)

    def compute_known_weights(self, state: Any, plan: RoundPlan) -> KnownWeights | None:
        """Return omega_n times the base's proportional weights."""
        omega = self._compute_omega(plan.t).get_array(np.array(plan.clients, dtype=np.int64), 1.0)
        return self._compute_corrected_weights(
            dict(zip(plan.clients, omega.tolist(), strict=True)), state, plan
        )

    def weigh(
        self, state: Any, plan: RoundPlan, updates: ClientUpdates, admitted_fraction: FloatArray
    ) -> tuple[Any, AggregationWeights]:
        """Return omega_n b_n / B."""
        next_state, weights = self.base.weigh(state, plan, updates, admitted_fraction)
        omega = self._compute_omega(plan.t)
        factor = omega.get_array(updates.client, 1.0)
        registered_omega = PerClient(updates.registered, omega.get_array(updates.registered, 1.0))
        return next_state, replace(
            weights, numerator=factor * weights.numerator, omega=registered_omega
        )

    def explain(self, trace: DecisionTrace, index: int) -> Iterator[str]:
        """Yield omega, and how it multiplies the base's weight."""
        client, t = int(trace.updates.client[index]), trace.plan.t
        omega = self._compute_omega(t).get(client, 1.0)
        rate = "p_n" if self.pattern is None else f"p_n({t})"
        if omega == 0.0:
            yield f"{rate} = 0: the client cannot take part in this round, so omega_n = 0"
            return
        counted = None if self.counted is None else self.counted.get(client)
        if counted is not None:
            scale = f"{format_number(counted)}, the probability that it counts while available"
            rate = f"({rate} x {scale})"
        yield f"omega_n = {f'1 / {rate}' if client in self.rates else '1'} = {format_number(omega)}"
        yield from super().explain(trace, index)

    def _check_possible(self) -> None:
        """Raise ParameterError for the first client that never takes part."""
        if self.pattern is None:
            return
        never = self.rates.clients[
            self.pattern.compute_max_probabilities(self.rates.numbers) == 0.0
        ]
        for client in never.tolist():
            raise ParameterError(
                f"probabilities[{client}]",
                "a rate above 0 in some round",
                0.0,
                f"client {client}, with p_n = {self.rates[client]:g}, never takes part, and no "
                "weight makes up for that; a smaller cut or a larger p_n lets it take part",
            )


def needs_rates(weighting: Weighting[Any]) -> bool:
    """Say whether a weighting's participation rates must come from a simulation."""
    return isinstance(weighting, KnownRatesCorrection) and weighting.probabilities is None


def find_rejection_reason(weighting: Weighting[Any], client: int) -> str:
    """Return the reason to refuse a client without a known rate; empty for any other client."""
    if not isinstance(weighting, KnownRatesCorrection) or client in weighting.rates:
        return ""
    return "as probabilities has no rate for it"


def build_undeclared_error(
    selection: Selection, correction: type[Participation[Any]]
) -> ParameterError:
    """Return the error that refuses a selection without declared probabilities."""
    return ParameterError(
        "participation",
        f"none with the selection {get_rule_name(selection)}",
        correction.description.key,
        "it does not declare the probability that it selects a client; its method "
        "compute_probabilities can",
    )
