"""Weight updates by the amount of training data: FedAvg, and FedALIGN's p_k / (1 + A)."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..decisions import DecisionTrace
from ..description import Goal, RuleDescription
from ..formatting import format_number
from ..types import (
    AggregationWeights,
    ClientUpdates,
    FloatArray,
    KnownWeights,
    Population,
    ReplacementSample,
    RoundPlan,
)
from .base import Weighting, WeightingTraits
from .population_data import PopulationDataFraction


@dataclass(frozen=True)
class DataFraction(Weighting[None]):
    """Weight client k by c_k = s_k D_k / sum_i s_i D_i, with s_k the admitted fraction.

    s_k is 1 or 0 without priority weights. This is FedAvg on the admitted clients. It is FedALIGN
    as well: with p_k = D_k / sum_{i in P} D_i and A = sum of p_k over the admitted non-priority
    clients, p_k / (1 + A) is the same fraction. A closed gate is therefore exactly FedAvg on the
    priority clients, and an open gate FedAvg on all. If a uniform fraction was sampled, P is the
    set of sampled priority clients. With priority weights lambda_k, p_k is D_k / sum_i lambda_i D_i
    and s_k = lambda_k + (1 - lambda_k) [k inside the gate].

    If priority clients were sampled with replacement, each draw counts 1 / |S| instead of p_k: a
    client drawn n_k times has c_k = n_k / |S| / (1 + A). |S| is the number of draws of reporting
    clients. p_k and A of the other clients use the data of all priority clients.

    If no update is admitted, all weights are 0 and the model stays the same.

    References
    ----------
    Ravi and Shomorony, "Prioritized Federated Learning", Algorithm 1 and, for draws, the
    supplement's partial participation; McMahan et al. 2017.
    """

    description = RuleDescription(
        key="data_fraction",
        summary="By the clients' amounts of data.",
        weight="p_k / (sum of p), by data",
        source="McMahan et al. 2017",
        trusts="`num-examples`",
        gain="weight, by the data that it claims",
        limit="`robustness.max_weight`; otherwise only the range of `num-examples`",
        goal=Goal.AVERAGE,
        is_strategy=False,  # FedAvg, FedALIGN and others use it under their names
        sampled_scope="all priority clients, drawn or not, and the others admitted in the round",
    )
    traits = WeightingTraits(
        numerator="D_k",
        denominator="the training data of {whom}",
        needs_losses=False,
        weights_by_data=True,
        reports_objective=True,
        dp_unsupported_reason=(
            "an update counts by its client's data, so one update can be nearly the whole step"
        ),
        late_unsupported_reason="",
        sum_unsupported_reason="",
    )

    def with_fixed_denominator(self) -> PopulationDataFraction:
        """Return the fractions of the data of all registered clients that can count."""
        return PopulationDataFraction()

    def init(self, population: Population) -> None:
        """Return the empty state."""

    def compute_known_weights(self, state: None, plan: RoundPlan) -> KnownWeights | None:
        """Return D_k; None if priority clients were sampled by data, and count by their draws."""
        return KnownWeights(by_data=True) if plan.replacement_sample is None else None

    def weigh(
        self, state: None, plan: RoundPlan, updates: ClientUpdates, admitted_fraction: FloatArray
    ) -> tuple[None, AggregationWeights]:
        """Return the fractions of the admitted data and A."""
        data = admitted_fraction * updates.num_examples
        objective_data = updates.priority_weight * updates.num_examples
        if plan.replacement_sample is not None:
            drawn_data = _compute_drawn_data(plan.replacement_sample, updates)
            data = np.where(updates.priority, drawn_data, data)
            objective_data = np.where(updates.priority, drawn_data, 0.0)
        total, base = float(data.sum()), float(objective_data.sum())
        if total == 0.0:
            return None, AggregationWeights(np.zeros_like(data))
        mass = (total - base) / base if base > 0 else None
        return None, AggregationWeights(data, total, inclusion_mass=mass)

    def explain(self, trace: DecisionTrace, index: int) -> Iterator[str]:
        """Yield the fraction of the data, and the same in FedALIGN's terms."""
        updates, fractions, weights = trace.updates, trace.admitted_fraction, trace.weights
        if weights is None:
            return
        if trace.plan.replacement_sample is not None:
            yield from _explain_drawn(trace, weights, trace.plan.replacement_sample, index)
            return
        examples, c = updates.num_examples[index], weights.weight[index]
        total = float((fractions * updates.num_examples).sum())
        yield (
            f"c_k = s_k D_k / sum of s_i D_i; s_k D_k = {format_number(fractions[index])} x "
            f"{format_number(examples)}, the sum is {format_number(total)}: "
            f"c_k = {format_number(c)}"
        )
        # Without other clients and a gate, priority is no word of the rule, and A is always 0.
        is_plain = trace.plan.epsilon is None and bool((updates.priority_weight == 1.0).all())
        if weights.inclusion_mass is None or is_plain:
            return
        base = float((updates.priority_weight * updates.num_examples).sum())
        is_weighted = ((updates.priority_weight > 0) & (updates.priority_weight < 1)).any()
        yield (
            "the same as s_k p_k / (1 + A), with p_k = D_k / sum of "
            f"{'lambda_i D_i' if is_weighted else 'D_i'} over P = {format_number(examples)} / "
            f"{format_number(base)} = {format_number(examples / base)} and "
            f"A = {format_number(weights.inclusion_mass)}"
        )


def _explain_drawn(
    trace: DecisionTrace, weights: AggregationWeights, sample: ReplacementSample, index: int
) -> Iterator[str]:
    updates = trace.updates
    c, mass = format_number(weights.weight[index]), format_number(weights.inclusion_mass)
    if updates.priority[index]:
        num_draws = sum(sample.counts.get(k, 0) for k in updates.client.tolist())
        count = sample.counts.get(int(updates.client[index]), 0)
        yield f"c_k = n_k / |S| / (1 + A) = {count} / {num_draws} / (1 + {mass}) = {c}"
        return
    examples, data = updates.num_examples[index], sample.priority_data
    p = format_number(examples / data)
    yield f"p_k = D_k / sum of D_i over P = {format_number(examples)} / {format_number(data)} = {p}"
    yield f"c_k = p_k / (1 + A) = {p} / (1 + {mass}) = {c}"


def _compute_drawn_data(sample: ReplacementSample, updates: ClientUpdates) -> FloatArray:
    """Return n_k / |S| of all priority data for the sampled clients, 0 for others, shape (n,)."""
    count = np.array([sample.counts.get(int(k), 0) for k in updates.client], dtype=np.float64)
    total = count.sum()
    data: FloatArray = count * (sample.priority_data / total) if total > 0 else count
    return data
