"""FedALIGN's gate: non-priority updates count only while their loss is close to the global one."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from ...errors import ParameterError
from ..decisions import DecisionTrace
from ..description import RuleDescription
from ..parameters import (
    CRITERION,
    EPSILON,
    EPSILON_SCHEDULE,
    FRACTION,
    NON_NEGATIVE,
    NON_NEGATIVE_INT,
    OBJECTIVE,
    POSITIVE_INT,
    FloatRange,
)
from ..rule import RunContext, injected_value, parameter
from ..schedules import compute_epsilon_factor
from ..types import (
    Admission,
    BoolArray,
    ClientReports,
    ClientUpdates,
    Objective,
    PerClient,
    Population,
    RoundPlan,
)
from .base import SelectionTraits, samples_objective, select_objective_clients
from .sampling import Sampling
from .warmup import WarmUpSelection

NO_LOSS = "it reported no loss"


@dataclass(frozen=True)
class EpsilonGate(WarmUpSelection):
    """Admit non-priority client k in round t if |F_k(w_t) - F(w_t)| <= eps_t.

    The client and the server each decide one half of the inequality. The client trains if
    F_k <= F + eps_t (``fedquorum.client.gate``). The server admits its update if
    F_k >= F - eps_t. With the accuracy criterion, the papers' proxy, the client trains if
    acc_k >= acc - eps_t, and the server admits its update if acc_k <= acc + eps_t.

    eps_t = 0 closes the gate, even for equal losses; eps_t = inf opens it for all clients.

    If clients cannot decide (``RoundPlan.clients_apply_gate`` is False), the server decides both
    halves.

    Parameters
    ----------
    num_rounds : int
        T, the number of rounds; the schedules and the warm-up refer to it.
    epsilon : float
        eps_0 >= 0, in units of the loss or of the accuracy (0 to 1); inf is allowed.
    epsilon_schedule : {"constant", "step", "linear", "cosine", "exponential", "sqrt"}
        Schedule of eps_t (``fedquorum.rules.schedules.compute_epsilon_factor``).
    epsilon_step_fraction : float
        Fraction of the rounds after which the step schedule falls to 0.
    epsilon_rate : float
        Rate of the exponential schedule, >= 0.
    warmup_fraction : float
        Length of the warm-up, with only priority clients, as a fraction of all rounds.
    warmup_rounds : int, optional
        Length of the warm-up in rounds, >= 0; overrides the fraction.
    criterion : {"loss", "accuracy"}
        The quantity that the gate compares.
    objective_clients : {"priority", "sampled"}
        The clients over which F is taken under partial participation. ``priority``: all priority
        clients (eq. 5; eq. 55 of the version with proofs: updates are sampled, F is not).
        ``sampled``: the selected priority clients; F is noisier, but the others need not evaluate
        the model.
    objective_client : int, optional
        The priority client whose F_k, or accuracy, the gate takes for F; by default F is over all.
        Every priority client still trains and evaluates (section 5 with proofs: "align with
        specific priority clients' objective"; that only the gate changes is ours).
    sampling : Sampling
        Partial participation; by default all clients take part.

    Raises
    ------
    ParameterError
        If a value is outside its range.

    References
    ----------
    Ravi and Shomorony, "Prioritized Federated Learning", Algorithm 1 and section 4 (warm-up,
    accuracy as proxy, eps reduced to 0).
    """

    description = RuleDescription(
        key="epsilon_gate",
        summary="All priority clients, and clients whose loss is within epsilon of theirs.",
        clients=(
            "priority clients, and clients whose loss is within epsilon of the priority "
            "clients' loss"
        ),
        source="[Ravi and Shomorony](https://openreview.net/forum?id=FR8dvo6q8i), Algorithm 1",
        trusts="F_k of clients without priority, F of clients with priority",
        gain=(
            "a client without priority that reports F_k = F is admitted whatever its model "
            "is; a client with priority moves F, and with it the gate for all"
        ),
        limit="not the gate: it gets F_k from the client itself",
        required_options={
            "priority": (
                "the ids of the priority clients, such as [0, 1]",
                "the gate compares the others with them",
            ),
            "num_rounds": (POSITIVE_INT.describe(), "the schedule and the warm-up refer to it"),
        },
        population="the priority clients and the others last known to be aligned",
    )
    traits = SelectionTraits(
        has_gate=True,
        dp_unsupported_reason=(
            "the clients' losses and data decide which clients take part and how much they count"
        ),
        late_unsupported_reason="a loss of an older model decides nothing about this one",
        sum_unsupported_reason="the gate admits each update by its client's loss",
    )

    num_rounds: int = injected_value(POSITIVE_INT)
    epsilon: float = parameter(0.2, EPSILON, FloatRange(0.01, 2.0))
    epsilon_schedule: str = parameter("constant", EPSILON_SCHEDULE)
    epsilon_step_fraction: float = parameter(0.5, FRACTION)
    epsilon_rate: float = parameter(5.0, NON_NEGATIVE)
    warmup_fraction: float = parameter(0.1, FRACTION)
    warmup_rounds: int | None = parameter(None, NON_NEGATIVE_INT)
    criterion: str = parameter("loss", CRITERION)
    objective_clients: str = parameter("priority", OBJECTIVE)
    objective_client: int | None = parameter(None, NON_NEGATIVE_INT)
    sampling: Sampling = field(default_factory=Sampling)

    @classmethod
    def from_options(cls, options: Mapping[str, Any], context: RunContext) -> Self:
        """Return the gate of a run of ``context.num_rounds`` rounds."""
        if context.num_rounds is None:
            allowed, why = cls.description.required_options["num_rounds"]
            raise ParameterError("num_rounds", allowed, None, why)
        return cls(num_rounds=context.num_rounds, **options)

    def check_population(self, population: Population) -> None:
        """Refuse a population in which ``objective_client`` has no priority."""
        client = self.objective_client
        if client is not None and client not in population.priority:
            allowed = "the id of a priority client, or none"
            raise ParameterError("objective_client", allowed, client)

    def plan(self, t: int, population: Population, reports: ClientReports) -> RoundPlan:
        """Return a plan with priority clients during the warm-up, and with all clients after it."""
        sample = self.sampling.sample(t, population, reports)
        is_warmup = t < self.num_warmup_rounds
        return RoundPlan(
            sample.priority if is_warmup else sample.clients,
            epsilon=0.0 if is_warmup else compute_threshold(self, t),
            criterion=self.criterion,
            replacement_sample=sample.draws,
            eligible=population.priority if is_warmup else None,
        )

    def compute_probabilities(
        self, population: Population, reports: ClientReports
    ) -> PerClient | None:
        """Return the probability that the sample has each client."""
        return self.sampling.compute_probabilities(population, reports)

    def admit(self, plan: RoundPlan, objective: Objective, updates: ClientUpdates) -> Admission:
        """Admit the fraction lambda_k of every update, and all of an update inside the gate.

        The fraction is lambda_k + (1 - lambda_k) [k inside the gate]: 1 for priority clients, 1 or
        0 for the others, and between 0 and 1 for a priority weight between 0 and 1.
        """
        epsilon = 0.0 if plan.epsilon is None else plan.epsilon
        n = len(updates.client)
        inside = compute_gate_mask(
            plan.criterion, epsilon, objective, updates, clients_decide=plan.clients_apply_gate
        )
        weight = updates.priority_weight
        return Admission(
            np.where(inside, 1.0, weight),
            tuple(
                None
                if weight[i] == 1.0 or inside[i]
                else _explain_rejection(
                    plan.criterion, epsilon, objective, updates.loss[i], updates.accuracy[i]
                )
                for i in range(n)
            ),
        )

    def explain_admission(self, trace: DecisionTrace, index: int) -> str:
        """Return the halves of the inequality that admitted an update, or those that failed."""
        plan, updates = trace.plan, trace.updates
        fraction = float(trace.admitted_fraction[index])
        priority = float(updates.priority_weight[index])
        if priority == 1.0:
            return "whole; the client has priority"
        accuracy = plan.criterion == "accuracy"
        value = float((updates.accuracy if accuracy else updates.loss)[index])
        overall = trace.objective.accuracy if accuracy else trace.objective.loss
        epsilon, reason = plan.epsilon or 0.0, trace.admission_reasons[index]
        if reason is not None and (math.isnan(value) or math.isnan(overall)):
            inside = reason
        elif epsilon == 0.0:
            inside = "the gate is closed (eps_t = 0)"
        else:
            symbol = "acc" if accuracy else "F"
            shift = epsilon if accuracy else -epsilon
            halves = [_check_half(symbol, value, overall, shift)]
            if priority > 0.0 or not plan.clients_apply_gate:  # the server decides both halves
                halves.append(_check_half(symbol, value, overall, -shift))
            failing = [text for holds, text in halves if not holds]
            inside = " and ".join(failing or (text for _, text in halves))
        if priority > 0.0:
            return (
                f"share lambda_k + (1 - lambda_k) [inside] = {fraction:.6g}, lambda_k = "
                f"{priority:g}; {inside}"
            )
        return f"{'whole' if fraction > 0 else 'no'}; {inside}"


def compute_threshold(gate: EpsilonGate, t: int) -> float:
    """Return eps_t; 0 if the schedule's factor is 0, even for an infinite eps_0."""
    if gate.epsilon_schedule == "constant":
        return gate.epsilon
    factor = compute_epsilon_factor(
        gate.epsilon_schedule, t, gate.num_rounds, gate.epsilon_step_fraction, gate.epsilon_rate
    )
    return gate.epsilon * factor if factor > 0.0 else 0.0


@samples_objective.register
def _(selection: EpsilonGate) -> bool:
    """Say whether F covers only the selected priority clients."""
    return selection.objective_clients == "sampled"


@select_objective_clients.register
def _(selection: EpsilonGate, clients: frozenset[int]) -> frozenset[int]:
    """Return ``objective_client``, or by default all clients that evaluate F_k(w_t)."""
    client = selection.objective_client
    return clients if client is None else clients & {client}


def _check_half(symbol: str, value: float, overall: float, shift: float) -> tuple[bool, str]:
    """Return whether value <= overall + eps, or value >= overall - eps, and the text of it."""
    bound = overall + shift
    holds = value <= bound if shift > 0 else value >= bound
    sign = ("<=" if holds else ">") if shift > 0 else (">=" if holds else "<")
    return holds, (
        f"{symbol}_k = {value:.6g} {sign} {symbol} {'+' if shift > 0 else '-'} eps_t = "
        f"{overall:.6g} {'+' if shift > 0 else '-'} {abs(shift):g} = {bound:.6g}"
    )


def compute_gate_mask(
    criterion: str,
    epsilon: float,
    objective: Objective,
    updates: ClientUpdates,
    *,
    clients_decide: bool = True,
) -> BoolArray:
    """Say for each client that trained whether it is inside the gate, shape (n,).

    A loss of NaN is outside. For a non-priority client the server decides one half of the
    inequality, as the client has decided the other half by training. The server decides both
    halves for clients with a priority weight, and for all clients if they do not decide.
    """
    if epsilon == 0.0:
        return np.zeros(len(updates.client), dtype=np.bool_)
    if criterion == "accuracy":
        server_half = updates.accuracy <= objective.accuracy + epsilon
        client_half = updates.accuracy >= objective.accuracy - epsilon
    else:
        server_half = updates.loss >= objective.loss - epsilon
        client_half = updates.loss <= objective.loss + epsilon
    decided = ~updates.priority & clients_decide
    inside: BoolArray = server_half & (client_half | decided)
    return inside


def _explain_rejection(
    criterion: str, epsilon: float, objective: Objective, loss: float, accuracy: float
) -> str:
    if epsilon == 0.0:
        return "epsilon is 0: the gate is closed"
    reported, overall = (
        (accuracy, objective.accuracy) if criterion == "accuracy" else (loss, objective.loss)
    )
    if math.isnan(reported):
        return NO_LOSS if criterion == "loss" else "it reported no accuracy"
    if math.isnan(overall):
        return f"the priority clients' {criterion} is unknown: the gate is closed"
    side, sign = (">", "+") if reported > overall else ("<", "-")
    return f"{criterion} {reported:.6g} {side} global {overall:.6g} {sign} epsilon {epsilon:g}"
