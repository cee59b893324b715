"""FedALIGN's gate: non-priority updates count only while their loss is close to the global one."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from strategies.parameters import (
    COUNT,
    CRITERION,
    EPSILON,
    EPSILON_SCHEDULE,
    FRACTION,
    NON_NEGATIVE,
    NON_NEGATIVE_COUNT,
)
from strategies.schedules import epsilon_factor, rounds_in
from strategies.selection.sampling import Sampling
from strategies.types import Admission, BoolArray, Call, GlobalMeasure, Population, Responses


@dataclass(frozen=True)
class EpsilonGate:
    """Admit non-priority client k in round t if |F_k(w_t) - F(w_t)| <= eps_t.

    The two halves of the inequality are decided in two places. The client decides alone
    whether to train: F_k <= F + eps_t (``client_app.decisions``). The server admits what came
    back: F_k >= F - eps_t. With the accuracy criterion, the papers' proxy:
    acc_k >= acc - eps_t on the client, acc_k <= acc + eps_t on the server.

    eps_t = 0 closes the gate, even at equal losses; eps_t = inf opens it for all.

    Where clients cannot decide (``Call.clients_decide`` False) the server decides both halves.

    Parameters
    ----------
    num_rounds : int
        T, the rounds of the run; the schedules and the warm-up refer to it.
    epsilon : float
        eps_0 >= 0, in units of the loss or of the accuracy (0 to 1); inf is allowed.
    epsilon_schedule : {"constant", "step", "linear", "cosine", "exponential", "sqrt"}
        How eps_t follows from eps_0 (``strategies.schedules.epsilon_factor``).
    epsilon_step_fraction : float
        Share of the rounds after which the step schedule drops to 0.
    epsilon_rate : float
        Rate of the exponential schedule, >= 0.
    warmup_fraction : float
        Share of the rounds, from the first, in which only priority clients are asked.
    warmup_rounds : int, optional
        The same as a number of rounds, >= 0; wins over the fraction.
    criterion : {"loss", "accuracy"}
        What is compared.
    sampling : Sampling
        Partial participation; by default everyone takes part.

    Raises
    ------
    ParameterError
        For a value outside its range.

    References
    ----------
    Ravi and Shomorony, "Prioritized Federated Learning", Algorithm 1 and section 4 (warm-up,
    accuracy as proxy, eps reduced to 0).
    """

    covers: ClassVar[str] = "the priority clients and the others last known to be aligned"
    num_rounds: int
    epsilon: float = 0.2
    epsilon_schedule: str = "constant"
    epsilon_step_fraction: float = 0.5
    epsilon_rate: float = 5.0
    warmup_fraction: float = 0.1
    warmup_rounds: int | None = None
    criterion: str = "loss"
    sampling: Sampling = field(default_factory=Sampling)
    measures: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        COUNT.check("num_rounds", self.num_rounds)
        EPSILON.check("epsilon", self.epsilon)
        EPSILON_SCHEDULE.check("epsilon_schedule", self.epsilon_schedule)
        FRACTION.check("epsilon_step_fraction", self.epsilon_step_fraction)
        NON_NEGATIVE.check("epsilon_rate", self.epsilon_rate)
        FRACTION.check("warmup_fraction", self.warmup_fraction)
        if self.warmup_rounds is not None:
            NON_NEGATIVE_COUNT.check("warmup_rounds", self.warmup_rounds)
        CRITERION.check("criterion", self.criterion)

    def call(self, t: int, population: Population, examples: Mapping[int, float]) -> Call:
        """Return a call to priority clients during warm-up, to both groups after it."""
        sample = self.sampling.sample(t, population, examples)
        warm = t < self.warmup
        return Call(
            sample.priority if warm else tuple(sorted(sample.priority + sample.others)),
            epsilon=0.0 if warm else self.threshold(t),
            criterion=self.criterion,
            draws=sample.draws,
            pool=population.priority if warm else None,
        )

    def threshold(self, t: int) -> float:
        """Return eps_t; 0 wherever the schedule's factor is 0, for an infinite eps_0 too."""
        factor = epsilon_factor(
            self.epsilon_schedule,
            t,
            self.num_rounds,
            self.epsilon_step_fraction,
            self.epsilon_rate,
        )
        return self.epsilon * factor if factor > 0.0 else 0.0

    @property
    def warmup(self) -> int:
        """The number of warm-up rounds."""
        if self.warmup_rounds is not None:
            return self.warmup_rounds
        return rounds_in(self.warmup_fraction, self.num_rounds)

    def admit(self, call: Call, measure: GlobalMeasure, responses: Responses) -> Admission:
        """Admit the share lambda_k of every client, and the rest of those inside the gate.

        The share is lambda_k + (1 - lambda_k) [k inside the gate]: 1 for priority clients, 1 or
        0 for the others, in between for a priority weight in between.
        """
        epsilon = 0.0 if call.epsilon is None else call.epsilon
        n = len(responses.client)
        inside = within_gate(
            call.criterion, epsilon, measure, responses, clients_decide=call.clients_decide
        )
        weight = responses.priority_weight
        return Admission(
            np.where(inside, 1.0, weight),
            tuple(
                None
                if weight[i] == 1.0 or inside[i]
                else _refusal(
                    call.criterion, epsilon, measure, responses.loss[i], responses.accuracy[i]
                )
                for i in range(n)
            ),
        )


def within_gate(
    criterion: str,
    epsilon: float,
    measure: GlobalMeasure,
    responses: Responses,
    *,
    clients_decide: bool = True,
) -> BoolArray:
    """Return for every response whether it is inside the gate, shape (n,); NaN is outside.

    Of non-priority clients the server decides its own half: the other half was theirs when they
    chose to train. Clients with a priority weight, and all where clients do not decide, always
    train, so for them it decides both.
    """
    if epsilon == 0.0:
        return np.zeros(len(responses.client), dtype=np.bool_)
    if criterion == "accuracy":
        server_half = responses.accuracy <= measure.accuracy + epsilon
        client_half = responses.accuracy >= measure.accuracy - epsilon
    else:
        server_half = responses.loss >= measure.loss - epsilon
        client_half = responses.loss <= measure.loss + epsilon
    decided = ~responses.priority & clients_decide
    inside: BoolArray = server_half & (client_half | decided)
    return inside


def _refusal(
    criterion: str, epsilon: float, measure: GlobalMeasure, loss: float, accuracy: float
) -> str:
    if epsilon == 0.0:
        return "epsilon is 0: the gate is closed"
    own, overall = (accuracy, measure.accuracy) if criterion == "accuracy" else (loss, measure.loss)
    if math.isnan(own):
        return f"it reported no {criterion}"
    if math.isnan(overall):
        return f"the priority clients' {criterion} is unknown: the gate is closed"
    side, sign = (">", "+") if own > overall else ("<", "-")
    return f"{criterion} {own:.6g} {side} global {overall:.6g} {sign} epsilon {epsilon:g}"
