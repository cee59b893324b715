"""Weight updates by the amount of training data: FedAvg, and FedALIGN's p_k / (1 + A)."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..description import RuleDescription
from ..report import Decided
from ..rule import Question
from ..types import Call, Draws, FloatArray, Population, Proportions, Responses, Weights
from ..words import digits
from .base import Weighting
from .known_data import KnownData


@dataclass(frozen=True)
class DataFraction(Weighting[None]):
    """Weight client k by c_k = s_k D_k / sum_i s_i D_i, with s_k the admitted share.

    s_k is 1 or 0 without priority weights. This is FedAvg on the admitted clients. It is FedALIGN
    as well: with p_k = D_k / sum_{i in P} D_i and A = sum of p_k over the admitted non-priority
    clients, p_k / (1 + A) is the same fraction. A closed gate is therefore exactly FedAvg on the
    priority clients, and an open gate FedAvg on all. If a uniform fraction was sampled, P is the
    set of sampled priority clients. With priority weights lambda_k, p_k is D_k / sum_i lambda_i D_i
    and s_k = lambda_k + (1 - lambda_k) [k inside the gate].

    If priority clients were drawn with replacement, each draw counts 1 / |S| instead of p_k: a
    client drawn n_k times has c_k = n_k / |S| / (1 + A). |S| is the number of draws of clients that
    answered. p_k and A of the other clients use the data of all priority clients.

    If no update is admitted, all weights are 0 and the model stays the same.

    References
    ----------
    Ravi and Shomorony, "Prioritized Federated Learning", Algorithm 1 and, for draws, the
    supplement's partial participation; McMahan et al. 2017.
    """

    key = "data_fraction"
    summary = "By the clients' amounts of data."
    description = RuleDescription(
        weight="p_k / (sum of p), by data",
        source="McMahan et al. 2017",
        trusts="`num-examples`",
        gain="weight, by the data that it claims",
        limit="`robustness.max_weight`; otherwise only the range of `num-examples`",
        secure_sum="possible: clients send D_k x_k and D_k, and the server divides the sums",
    )
    question = Question.AVERAGE
    needs_losses = False
    by_data = True
    reports_objective = True
    strategy = False  # it is FedAvg, FedALIGN and others, which have names of their own
    factor = "D_k"
    divisor = "the training data of {whom}"
    drawn_whom = "all priority clients, drawn or not, and the others admitted in the round"
    late = "It did not take part."
    unbounded = "an update counts by its client's data, so one update can be nearly the whole step"

    def over_known(self) -> KnownData:
        """Return the fractions of the data of all known clients that can count."""
        return KnownData()

    def init(self, population: Population) -> None:
        """Return the empty state."""

    def proportions(self, state: None, call: Call) -> Proportions | None:
        """Return D_k; None if priority clients were drawn, which do not count by their data."""
        return Proportions(by_data=True) if call.draws is None else None

    def weigh(
        self, state: None, call: Call, responses: Responses, share: FloatArray
    ) -> tuple[None, Weights]:
        """Return the fractions of the admitted data and A."""
        data = share * responses.num_examples
        objective_data = responses.priority_weight * responses.num_examples
        if call.draws is not None:
            drawn = _drawn_data(call.draws, responses)
            data = np.where(responses.priority, drawn, data)
            objective_data = np.where(responses.priority, drawn, 0.0)
        total, base = float(data.sum()), float(objective_data.sum())
        if total == 0.0:
            return None, Weights(np.zeros_like(data))
        mass = (total - base) / base if base > 0 else None
        return None, Weights(data, total, inclusion_mass=mass)

    def explain(self, decided: Decided, place: int) -> Iterator[str]:
        """Yield the fraction of the data, and the same in FedALIGN's terms."""
        responses, share, weights = decided.responses, decided.share, decided.weights
        if weights is None:
            return
        if decided.call.draws is not None:
            yield from _explain_drawn(decided, weights, decided.call.draws, place)
            return
        examples, c = responses.num_examples[place], weights.weight[place]
        total = float((share * responses.num_examples).sum())
        yield (
            f"c_k = s_k D_k / sum of s_i D_i; s_k D_k = {digits(share[place])} x "
            f"{digits(examples)}, the sum is {digits(total)}: c_k = {digits(c)}"
        )
        if weights.inclusion_mass is None:
            return
        base = float((responses.priority_weight * responses.num_examples).sum())
        weighted = ((responses.priority_weight > 0) & (responses.priority_weight < 1)).any()
        yield (
            "the same as s_k p_k / (1 + A), with p_k = D_k / sum of "
            f"{'lambda_i D_i' if weighted else 'D_i'} over P = {digits(examples)} / "
            f"{digits(base)} = {digits(examples / base)} and A = {digits(weights.inclusion_mass)}"
        )


def _explain_drawn(decided: Decided, weights: Weights, draws: Draws, place: int) -> Iterator[str]:
    responses = decided.responses
    c, mass = digits(weights.weight[place]), digits(weights.inclusion_mass)
    if responses.priority[place]:
        drawn = sum(draws.count.get(k, 0) for k in responses.client.tolist())
        count = draws.count.get(int(responses.client[place]), 0)
        yield f"c_k = n_k / |S| / (1 + A) = {count} / {drawn} / (1 + {mass}) = {c}"
        return
    examples, data = responses.num_examples[place], draws.priority_data
    p = digits(examples / data)
    yield f"p_k = D_k / sum of D_i over P = {digits(examples)} / {digits(data)} = {p}"
    yield f"c_k = p_k / (1 + A) = {p} / (1 + {mass}) = {c}"


def _drawn_data(draws: Draws, responses: Responses) -> FloatArray:
    """Return n_k / |S| of all priority data for the drawn clients, 0 for others."""
    count = np.array([draws.count.get(int(k), 0) for k in responses.client], dtype=np.float64)
    total = count.sum()
    drawn: FloatArray = count * (draws.priority_data / total) if total > 0 else count
    return drawn
