"""Maximize the number of clients that the model satisfies (MaxFL), and compute it in any run.

Client k requires a loss below rho_k, such as the loss of the model that it trains alone. A run with
requirements reports appeal and preferred accuracy for any strategy, both after Cho et al.,
"Maximizing Global Model Appeal in Federated Learning", TMLR 2024.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np

from ..errors import ParameterError, SettingsError
from ..rules.decisions import DecisionTrace
from ..rules.description import Goal, RuleDescription
from ..rules.equality import is_same
from ..rules.formatting import format_number
from ..rules.hooks import Hooks, ReportedMetrics
from ..rules.parameters import NON_NEGATIVE, POSITIVE, REQUIREMENT
from ..rules.rule import RunContext, parameter
from ..rules.types import (
    AggregationWeights,
    ClientUpdates,
    FloatArray,
    IntArray,
    PerClient,
    Population,
    RoundPlan,
)
from ..rules.weighting.base import LATE_LOSS, WEIGHTS_DEPEND_ON_LOSSES, Weighting, WeightingTraits
from ..rules.weighting.responses import compute_reported_mask

REQUIREMENT_COLUMN, LOCAL_ACCURACY_COLUMN = "requirement", "local_accuracy"

CLIENT_COLUMNS = {REQUIREMENT_COLUMN: "it has none", LOCAL_ACCURACY_COLUMN: "not known"}
"""The columns of ``population.parquet`` for requirements, and the meaning of their nulls."""

APPEAL_METRICS = ReportedMetrics(
    key="appeal",
    labels={
        "appeal": "clients satisfied",
        "preferred_accuracy": "accuracy of preferred models",
    },
    title="For whom the model is worth it",
    note=(
        "A client is satisfied where the model's loss on its training part is below its "
        "requirement, such as the loss of the model it trained alone. Preferred accuracy is the "
        "mean over clients of the test accuracy of the model that each would keep: this one where "
        "it is satisfied, else the one that it trained alone."
    ),
)

NO_REQUIREMENT = "the client has no requirement, and maxfl weights by requirements"


@dataclass(frozen=True)
class MaxFLWeighting(Weighting[None]):
    """Weight client k by c_k = s_k q_k / (sum_j s_j q_j + e), q_k = sigma(z_k) (1 - sigma(z_k)).

    The sum is over the reporting clients, z_k = slope (F_k - rho_k),
    sigma(z) = 1 / (1 + exp(-z)), and s_k is the admitted fraction. A model satisfies client k if
    F_k < rho_k. The relaxed number of clients that are not satisfied is sum_k sigma(z_k); its
    gradient weights client k by q_k.

    This is not a fairness rule. q is largest at z = 0 (1/4) and falls on both sides. A client that
    the model satisfies by far counts little. A client that no similar model would satisfy also
    counts little: the rule gives it up.

    The class computes q = u / (1 + u)^2 with u = exp(-|z|), which never overflows. q is 0 for |z|
    above about 745. If q is 0 for all reporting clients, all weights are 0. A client with an
    infinite rho_k, or without one, has the weight 0.

    Parameters
    ----------
    requirement : float, sequence or mapping of int to float
        rho_k, for all clients or by client id, in the unit of the training loss. In settings also
        the folder of a run with ``evaluation.alone_epochs``: rho_k is then the training loss of
        the model that k trained alone. null takes ``evaluation.requirement``.
    slope : float
        > 0, per unit of the loss.
    offset : float
        e >= 0. With 0 the weights sum to 1.

    Raises
    ------
    ParameterError
        If a value is outside its range, or no client has a requirement.

    References
    ----------
    Cho, Jhunjhunwala, Li, Smith and Joshi, "Maximizing Global Model Appeal in Federated Learning",
    TMLR 2024. Objective and weights are those of LetsFed, an independent implementation that has
    e = 10 with a server learning rate of 0.01; neither was compared with the paper's text, which
    was not available. ``slope``, the default e = 0, and the weight 0 of a client
    without a requirement are ours.
    """

    description = RuleDescription(
        key="maxfl",
        summary="MaxFL: weights that are largest where a client is nearly satisfied.",
        use="as many clients as possible should want the global model",
        weight=(
            "by how close a client is to being satisfied, sigma'(F - rho): maximizes the "
            "number of clients that want the model, not fairness "
            "([docs/appeal.md](appeal.md))"
        ),
        source="Cho et al. 2024",
        trusts="the loss of the received model",
        gain=(
            "a loss at the client's requirement has the largest q, 1/4: if all other clients "
            "are far from their requirements, an update with such a loss is nearly the whole "
            "step"
        ),
        limit=(
            "none but `robustness.max_weight`; the server holds rho_k, which reveals what "
            "loss a client reaches alone"
        ),
        required_options={
            "requirement": (
                REQUIREMENT.describe(),
                "a client is satisfied if its loss is below its requirement",
            )
        },
        goal=Goal.APPEAL,
    )

    requirement: Any = parameter(None, REQUIREMENT)
    slope: float = parameter(1.0, POSITIVE)
    offset: float = parameter(0.0, NON_NEGATIVE)

    @classmethod
    def from_options(cls, options: Mapping[str, Any], context: RunContext) -> Self:
        """Return the rule, with the requirements of the run if it has any."""
        given = options.get("requirement")
        requirement = context.hooks.columns.get(REQUIREMENT_COLUMN, given)
        rule = cls(**{**options, "requirement": requirement})
        clients = np.array(context.clients, dtype=np.int64)
        if len(clients) and not np.isfinite(rule.get_requirements(clients)).any():
            reason = "no client has a requirement"
            raise ParameterError("requirement", REQUIREMENT.describe(), given, reason)
        return rule

    @property
    def traits(self) -> WeightingTraits:
        """Weights by losses, with ``offset`` in the denominator."""
        offset = f" + {self.offset:g}" if self.offset else ""
        return WeightingTraits(
            numerator="q_k",
            denominator=f"the sum of the same over {{whom}}{offset}",
            dp_unsupported_reason=WEIGHTS_DEPEND_ON_LOSSES,
            late_unsupported_reason=LATE_LOSS,
            uncorrectable_reason=(
                "it weights by the losses of a round, and absent clients report none"
            ),
        )

    @cached_property
    def _losses_by_client(self) -> PerClient:
        given = self.requirement
        if isinstance(given, Sequence) and not isinstance(given, str):
            given = dict(enumerate(given))
        return PerClient.from_mapping(given) if isinstance(given, Mapping) else PerClient()

    def get_requirements(self, clients: IntArray) -> FloatArray:
        """Return rho of these clients, NaN for a client without one, shape (n,)."""
        given = self.requirement
        if isinstance(given, int | float):
            return np.full(len(clients), float(given))
        return self._losses_by_client.get_array(clients, math.nan)

    def init(self, population: Population) -> None:
        """Return the empty state.

        Raises
        ------
        ParameterError
            If ``requirement`` is the directory of a run, which rules do not read.
        """
        if isinstance(self.requirement, str):
            allowed = "a number, a list or a mapping in Python"
            reason = "only the command line reads the directory of a run"
            raise ParameterError("requirement", allowed, self.requirement, reason)

    def weigh(
        self, state: None, plan: RoundPlan, updates: ClientUpdates, admitted_fraction: FloatArray
    ) -> tuple[None, AggregationWeights]:
        """Return c_k, and a reason for each client without a requirement.

        Raises
        ------
        ValueError
            If the clients did not evaluate the model that they received.
        """
        rho = self.get_requirements(updates.client)
        counts = compute_reported_mask(plan, updates, admitted_fraction)
        has_requirement = counts & np.isfinite(rho)
        with np.errstate(over="ignore"):  # an infinite z has the q of any large one, 0
            z = self.slope * np.where(has_requirement, updates.loss - rho, math.inf)
        numerator = admitted_fraction * compute_satisfaction_slope(z)
        total = float(numerator.sum())
        without = updates.client[counts & np.isnan(rho)].tolist()
        denominator = total + self.offset if total > 0.0 else 0.0
        return None, AggregationWeights(
            numerator, denominator, reason=dict.fromkeys(without, NO_REQUIREMENT)
        )

    def explain(self, trace: DecisionTrace, index: int) -> Iterator[str]:
        """Yield z, q and the weight with their numbers."""
        weights, updates = trace.weights, trace.updates
        if weights is None:
            return
        rho = float(self.get_requirements(updates.client)[index])
        if math.isnan(rho):
            yield f"c_k = 0; {NO_REQUIREMENT}"
            return
        loss = float(updates.loss[index])
        yield (
            f"z_k = slope (F_k - rho_k) = {self.slope:g} x "
            f"({format_number(loss)} - {format_number(rho)}) = "
            f"{format_number(self.slope * (loss - rho))}"
        )
        yield (
            f"c_k = s_k q_k / (sum of s_j q_j + {self.offset:g}), q_k = u / (1 + u)^2, "
            f"u = exp(-|z_k|): {format_number(weights.numerator[index])} / "
            f"{format_number(weights.denominator)} = {format_number(weights.weight[index])}"
        )


def compute_satisfaction_slope(z: FloatArray) -> FloatArray:
    """Return sigma(z) (1 - sigma(z)) = u / (1 + u)^2, u = exp(-|z|), in [0, 1/4], elementwise."""
    u = np.exp(-np.abs(z))
    slope: FloatArray = u / np.square(1.0 + u)
    return slope


def build_appeal_hooks(
    loss: Mapping[int, float], accuracy: Mapping[int, float] | None = None
) -> Hooks:
    """Return the hooks of a run with requirements: their columns, and the report of appeal.

    Parameters
    ----------
    loss : mapping of int to float
        rho_k by client id, in the unit of the training loss. A client that is missing or has NaN
        has no requirement.
    accuracy : mapping of int to float, optional
        The test accuracy of the model that each client trained alone, if it is known.
    """
    columns = {
        REQUIREMENT_COLUMN: PerClient.from_mapping(loss),
        LOCAL_ACCURACY_COLUMN: PerClient.from_mapping(accuracy or {}),
    }
    return Hooks(columns=columns, report=report_appeal)


def restore_appeal_hooks(population: Mapping[str, Sequence[Any]]) -> Hooks:
    """Return the hooks of a run from its table of clients, column by column."""

    def get_column(name: str) -> dict[int, float]:
        rows = zip(population["client"], population.get(name, ()), strict=False)
        return {client: value for client, value in rows if value is not None}

    losses = get_column(REQUIREMENT_COLUMN)
    return build_appeal_hooks(losses, get_column(LOCAL_ACCURACY_COLUMN)) if losses else Hooks()


def collect_requirements(nodes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the requirements in the settings of an evaluation and of rules, by dotted key."""
    values = {
        f"{setting}.requirement": getattr(node, "requirement", None)
        for setting, node in nodes.items()
    }
    return {key: value for key, value in values.items() if value is not None}


def find_requirement(nodes: Mapping[str, Any]) -> tuple[str, Any]:
    """Return the setting with the clients' requirements, and its value; None if it is not set.

    Raises
    ------
    SettingsError
        If two settings contradict each other: each client has one requirement in a run.
    """
    first, *others = collect_requirements(nodes).items() or [("evaluation.requirement", None)]
    for key, other in others:
        if not is_same(other, first[1]):
            first_key, value = first
            raise SettingsError(f"{key} must be null or that of {first_key} ({value}), got {other}")
    return first


def report_appeal(numbers: Mapping[str, FloatArray]) -> Mapping[str, float]:
    """Return appeal and preferred accuracy of a group of clients; see ``hooks.GroupReport``."""
    loss, requirement = numbers["training_loss"], numbers[REQUIREMENT_COLUMN]
    accuracies = numbers["accuracy"], numbers[LOCAL_ACCURACY_COLUMN]
    return {
        "appeal": compute_appeal(loss, requirement),
        "preferred_accuracy": compute_preferred_accuracy(loss, requirement, *accuracies),
    }


def compute_appeal(loss: FloatArray, requirement: FloatArray) -> float:
    """Return GM-appeal, the fraction of the clients with F_k(w) < rho_k, in [0, 1].

    A tie does not satisfy (our choice). The fraction leaves out clients without a loss or a
    requirement (NaN); it is NaN if no client is left.

    Parameters
    ----------
    loss : FloatArray
        F_k(w) on the training splits, shape (n,).
    requirement : FloatArray
        rho_k, shape (n,).
    """
    is_known = ~(np.isnan(loss) | np.isnan(requirement))
    return float((loss[is_known] < requirement[is_known]).mean()) if is_known.any() else np.nan


def compute_preferred_accuracy(
    loss: FloatArray, requirement: FloatArray, accuracy: FloatArray, local_accuracy: FloatArray
) -> float:
    """Return the mean test accuracy of the model that each client prefers, in [0, 1].

    A client prefers w if F_k(w) < rho_k, and the model that it trained alone otherwise. It decides
    by training losses, since a choice by test numbers would always report the better of two. The
    mean leaves out clients with NaN in any of the four numbers; it is NaN if no client is left.

    Parameters
    ----------
    loss, requirement : FloatArray
        As for ``compute_appeal``, shape (n,).
    accuracy, local_accuracy : FloatArray
        The accuracy of w and of the model alone on the client's test split, shape (n,).
    """
    numbers = np.stack([loss, requirement, accuracy, local_accuracy])
    loss, requirement, accuracy, local_accuracy = numbers[:, ~np.isnan(numbers).any(axis=0)]
    chosen = np.where(loss < requirement, accuracy, local_accuracy)
    return float(chosen.mean()) if len(chosen) else np.nan
