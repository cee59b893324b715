"""Report a round: every decision with its inputs, for the audit trail."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from .equality import nan_equals_nan
from .types import (
    AggregationWeights,
    ClientReports,
    ClientUpdates,
    FloatArray,
    Objective,
    PerClient,
    RoundPlan,
)

STATUSES = ("trained", "declined", "unavailable", "rejected", "failed", "late", "busy")
"""The possible outcomes of a selected client."""


@nan_equals_nan
@dataclass(frozen=True)
class ClientDecision:
    """The decision about one selected client of a round.

    ``status`` is one of ``STATUSES``; ``reason`` says why a client was rejected, failed or was
    unavailable. ``loss`` and ``accuracy`` belong to the model received. ``num_draws`` is how often
    the client was sampled; None without sampling with replacement. ``weight`` is c_k of
    x_{t+1} = server_step(x_t, sum_k c_k Delta_k).

    The following are None for rules without them: ``response`` is r_k, ``mixing_coefficient`` is
    p_k after this round's decision, ``participation_correction`` is omega_k, the estimate of 1 /
    (participation rate) that the round used, and ``update_norm`` is |Delta_k|. ``reply_seconds`` is
    the time that the client's reply took; None if no decision depends on time.

    Where late updates count, ``start_round`` is the round whose model the client was sent,
    ``staleness`` the number of rounds since, and ``discount`` is d(s), a factor of ``weight``.
    """

    client: int
    priority: bool
    status: str
    reason: str | None = None
    num_examples: float | None = None
    loss: float | None = None
    accuracy: float | None = None
    num_draws: int | None = None
    response: float | None = None
    mixing_coefficient: float | None = None
    participation_correction: float | None = None
    update_norm: float | None = None
    weight: float = 0.0
    reply_seconds: float | None = None
    start_round: int | None = None
    staleness: int | None = None
    discount: float | None = None


@dataclass(frozen=True)
class LateReply:
    """A client's reply to an earlier round, which a quorum had closed.

    ``round`` is that round, and ``reply_seconds`` the time from the message to the reply.
    """

    round: int
    client: int
    reply_seconds: float


@dataclass(frozen=True)
class RoundReport:
    """All decisions of one round, ascending by client id.

    ``objective`` belongs to the model broadcast. ``inclusion_mass`` is A; None if the rule ignores
    priority. ``unregistered`` has the clients whose nodes have never registered with the server.
    ``late_replies`` has the replies to earlier rounds that came since the previous round.
    ``simulated_seconds`` is the virtual clock after the round; None without one.
    ``rejection_reason`` is why the server rejected the whole round, one of
    ``fedquorum.rules.round.REJECTION_REASONS``; None if it did not.

    Rules that mix by losses set four more fields: ``mixing`` is p after the decision and
    ``estimate`` is r (doubly robust under sampling), both for all clients ascending, shape (K,).
    ``decision_loss`` is l(p) = -log(1 + <p, r>) of the p before the decision. ``divergence`` is
    KL(p || w) = sum_k p_k log(p_k / w_k), w the fractions of the training data, if the server knows
    the data of all clients.

    ``update_norm`` is |sum_k c_k Delta_k|, for rules that compute the norm of each update; None if
    no update counted.

    ``omega`` is the round's estimate of 1 / (participation rate) for all registered clients,
    selected or not; empty for rules without one.
    """

    server_round: int
    plan: RoundPlan
    objective: Objective
    decisions: tuple[ClientDecision, ...]
    inclusion_mass: float | None
    mixing: FloatArray | None = None
    decision_loss: float | None = None
    estimate: FloatArray | None = None
    divergence: float | None = None
    omega: Mapping[int, float] = field(default_factory=dict)
    unregistered: tuple[int, ...] = ()
    late_replies: tuple[LateReply, ...] = ()
    simulated_seconds: float | None = None
    rejection_reason: str | None = None
    update_norm: float | None = None

    @property
    def is_empty(self) -> bool:
        """Whether no update counted, so that the model stayed the same."""
        return not any(decision.weight != 0.0 for decision in self.decisions)

    @property
    def theta(self) -> float | None:
        """1 / (1 + A), the round's term of theta_T (eq. 7)."""
        return None if self.inclusion_mass is None else 1.0 / (1.0 + self.inclusion_mass)

    def count(self, status: str) -> int:
        """Return how many of the selected clients have this status."""
        return sum(decision.status == status for decision in self.decisions)

    @property
    def num_admitted(self) -> int:
        """The number of updates with a weight other than 0."""
        return sum(decision.weight != 0.0 for decision in self.decisions)


@dataclass(frozen=True)
class DecisionTrace:
    """The inputs and the result of one round's weighting, for explanations and checks.

    Parameters
    ----------
    plan : RoundPlan
    objective : Objective
        F(w_t) and its accuracy, as broadcast.
    updates : ClientUpdates
        The input of the weighting: n clients.
    admitted_fraction : FloatArray
        The admitted fraction of each update, shape (n,).
    admission_reasons : tuple of str or None
        Why a fraction is less than 1.
    state, next_state : Any
        The weighting's state before and after; ``next_state`` is None if ``weights`` is.
    weights : AggregationWeights or None
        None if the records lack the inputs of the weights.
    denominator : str
        The denominator of the weights, in words.
    recorded_decisions : tuple of ClientDecision
        The recorded decisions about the n clients.
    weight_cap : float or None
        The largest weight that ``Robustness`` allows a single client.
    discount : FloatArray or None
        d(s) of each update, shape (n,); None if late updates do not count.
    """

    plan: RoundPlan
    objective: Objective
    updates: ClientUpdates
    admitted_fraction: FloatArray
    admission_reasons: tuple[str | None, ...]
    state: Any
    next_state: Any
    weights: AggregationWeights | None
    denominator: str
    recorded_decisions: tuple[ClientDecision, ...] = ()
    weight_cap: float | None = None
    discount: FloatArray | None = None


FINETUNED, ALONE = "finetuned", "alone"

PERSONAL_MODELS = (FINETUNED, ALONE)
"""The personal models: the last common model, and the first, after training on a client's rows."""

EPOCH_SETTINGS = {FINETUNED: "evaluation.finetune_epochs", ALONE: "evaluation.alone_epochs"}
"""The settings of the epochs for which clients train these models."""


@nan_equals_nan
@dataclass(frozen=True, slots=True)
class PersonalEvaluation:
    """One client's evaluation of a personal model; NaN where it is not defined.

    ``model`` is one of ``PERSONAL_MODELS``, and ``epochs`` the number of epochs that the client
    trained it. The others are as in ``ClientEvaluation``.
    """

    model: str
    epochs: int
    loss: float
    test_loss: float
    test_accuracy: float
    test_metric: float = math.nan
    test_r2: float = math.nan
    test_average_precision: float = math.nan
    test_calibration: bytes = b""
    validation_loss: float = math.nan
    validation_accuracy: float = math.nan
    validation_metric: float = math.nan
    validation_r2: float = math.nan
    validation_average_precision: float = math.nan
    validation_calibration: bytes = b""


_, _, *_names = (item.name for item in fields(PersonalEvaluation))
PERSONAL_METRICS = tuple(_names)
"""The names of the metrics of a ``PersonalEvaluation``."""


@nan_equals_nan
@dataclass(frozen=True, slots=True)
class ClientEvaluation:
    """One client's evaluation of a model; NaN where it was not evaluated or is not defined.

    ``priority_weight`` is lambda_k: 1 for priority clients and 0 for others, unless weighted.
    ``num_examples``, ``loss`` and ``accuracy`` belong to the client's training split, the others to
    its test and validation splits. ``test_metric`` and ``validation_metric`` are the metric that
    ``evaluation.metric`` names, if it is neither loss nor accuracy; R2 is beside it where numbers
    are predicted, and average precision beside AUROC. ``test_calibration`` and
    ``validation_calibration`` are sums of bins of confidence (``fedquorum.metrics.calibration``),
    empty where there are none. ``held_out`` says whether the client never trains. ``personal`` has
    the evaluations of the client's personal models.
    """

    client: int
    priority_weight: float
    num_examples: float
    loss: float
    accuracy: float
    test_num_examples: float
    test_loss: float
    test_accuracy: float
    test_metric: float = math.nan
    test_r2: float = math.nan
    test_average_precision: float = math.nan
    test_calibration: bytes = b""
    validation_num_examples: float = math.nan
    validation_loss: float = math.nan
    validation_accuracy: float = math.nan
    validation_metric: float = math.nan
    validation_r2: float = math.nan
    validation_average_precision: float = math.nan
    validation_calibration: bytes = b""
    held_out: bool = False
    personal: tuple[PersonalEvaluation, ...] = ()

    def find_personal(self, model: str) -> PersonalEvaluation | None:
        """Return the evaluation of one of the client's personal models, or None."""
        return next((one for one in self.personal if one.model == model), None)

    def replace_by_personal(self, model: str) -> "ClientEvaluation | None":
        """Return the evaluation with the metrics of one of the client's personal models."""
        found = self.find_personal(model)
        if found is None:
            return None
        metrics = {name: getattr(found, name) for name in PERSONAL_METRICS}
        return replace(self, **metrics, personal=())

    @property
    def priority(self) -> bool:
        """Whether the client counts in the objective."""
        return self.priority_weight > 0

    @property
    def has_objective_loss(self) -> bool:
        """Whether the client evaluated its part of the objective."""
        return self.priority and not math.isnan(self.loss)

    @property
    def objective_data(self) -> float:
        """lambda_k D_k, proportional to the client's weight in the objective."""
        return self.priority_weight * self.num_examples


SUMMED_FIELDS = (
    *("loss", "accuracy", "test_loss", "test_accuracy", "test_metric"),
    *("validation_loss", "validation_accuracy", "validation_metric"),
)
"""The numbers of a ``ClientEvaluation`` that are added up over clients with masks."""


@dataclass(frozen=True)
class EvaluationSums:
    """The evaluation of a model by several clients, of which only sums are known.

    Parameters
    ----------
    evaluated : int
        The number of clients.
    means : mapping of str to float
        By ``SUMMED_FIELDS``, the mean over the clients; NaN if too few nodes have the number.
    counts : mapping of str to int
        The number of clients in each mean, 0 if too few nodes have the number. The others have no
        such number, or one that is not finite or too large.
    by_data : bool
        Whether the clients' training data weight the means; otherwise each client counts once.
    """

    evaluated: int
    means: Mapping[str, float]
    counts: Mapping[str, int]
    by_data: bool


def compute_priority_objective(
    evaluations: Sequence[ClientEvaluation], stale: Sequence[ClientEvaluation] = ()
) -> Objective:
    """Return F(w) = sum_k lambda_k p_k F_k(w), and the accuracy with the same weights.

    The sums are over the reporting priority clients, p_k = D_k / sum_i lambda_i D_i; NaN if there
    is none. ``stale`` has evaluations of an earlier model that replace missing ones.
    """
    reporting = {e.client for e in evaluations if e.has_objective_loss}
    substitutes = [e for e in stale if e.has_objective_loss and e.client not in reporting]
    counted = sorted(
        (e for e in (*evaluations, *substitutes) if e.has_objective_loss), key=lambda e: e.client
    )
    total = sum(e.objective_data for e in counted)
    if total == 0:
        return Objective(math.nan, math.nan)
    return Objective(
        loss=sum(e.objective_data / total * e.loss for e in counted),
        accuracy=sum(e.objective_data / total * e.accuracy for e in counted),
        stale_clients=tuple(sorted(e.client for e in substitutes)),
    )


def update_reports(
    reports: ClientReports, evaluations: Sequence[ClientEvaluation], *, all_clients: bool
) -> ClientReports:
    """Return the clients' reports, updated with D_k and F_k from evaluations of a new model.

    Only evaluations that rules use are stored: those of the objective's clients or, with
    ``all_clients``, of all clients that train. A loss that is not finite counts as missing.
    """
    counted = [e for e in evaluations if e.has_objective_loss or (all_clients and not e.held_out)]
    data = {e.client: e.num_examples for e in counted if not math.isnan(e.loss)}
    losses = {e.client: e.loss for e in counted if math.isfinite(e.loss)}
    examples = PerClient.from_mapping(reports.num_examples).merge(data)
    return replace(reports, num_examples=examples, evaluated_losses=PerClient.from_mapping(losses))
