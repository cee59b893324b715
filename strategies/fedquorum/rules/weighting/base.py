"""Define the interface of a weighting rule."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar, Generic

from ...errors import ParameterError
from ..decisions import DecisionTrace
from ..regret import Bound
from ..rule import Goal, Rule
from ..selection.base import Selection
from ..server_optimizer.base import ServerOptimizer
from ..types import (
    AggregationWeights,
    ClientUpdates,
    FloatArray,
    KnownWeights,
    Population,
    RoundPlan,
    StateT,
)

WEIGHTS_DEPEND_ON_LOSSES = (
    "losses decide the weights: one update can be nearly the whole step, and reveals a loss"
)
"""The reason why differential privacy cannot protect a client whose loss decides its weight."""


class Weighting(Rule, ABC, Generic[StateT]):
    """Decide the weights c_k of x_{t+1} = server_step(x_t, sum_k c_k Delta_k).

    A weighting is pure: it takes the state and returns the next one. A subclass implements ``init``
    and ``weigh``. The attributes below default to those of a rule that weights the admitted clients
    by their losses.

    Attributes
    ----------
    goal : Goal
        The goal of the rule.
    needs_updates : bool
        Whether the rule needs the inner products of the updates, which no record holds.
    requires_full_participation : bool
        Whether all clients must be selected in every round.
    weights_by_data : bool
        Whether a client counts by its amount of data, or by its draws if clients are sampled with
        replacement.
    reports_objective : bool
        Whether F(w_t) is evaluated in every round, as for FedAvg's baselines.
    aggregates : bool
        Whether any update counts.
    is_strategy : bool
        Whether ``strategy=<key>`` is this rule on all clients or a sample of them.
    is_baseline : bool
        Whether the papers use the rule as a baseline.
    reference_for : tuple of Goal
        The goals for which this rule is a study's baseline.
    late_reply_effect : str
        The effect of an update that comes too late, in words.
    sampled_scope : str
        The clients in the sum if priority clients are sampled with replacement; empty if that makes
        no difference.
    default_form : str
        The default one of several published forms; empty if there is only one.
    authors_form : str
        The form behind the paper's tables, if it differs; otherwise empty.
    unreplayable : str
        The part of a decision that the records cannot replay, and why; empty if they can replay
        all of it.
    """

    goal: ClassVar[Goal] = Goal.FAIRNESS
    needs_updates: ClassVar[bool] = False
    requires_full_participation: ClassVar[bool] = False
    weights_by_data: ClassVar[bool] = False
    reports_objective: ClassVar[bool] = False
    aggregates: ClassVar[bool] = True
    is_strategy: ClassVar[bool] = True
    is_baseline: ClassVar[bool] = True
    reference_for: ClassVar[tuple[Goal, ...]] = ()
    late_reply_effect: ClassVar[str] = "Its loss and its update do not count."
    sampled_scope: ClassVar[str] = ""
    default_form: ClassVar[str] = ""
    authors_form: ClassVar[str] = ""
    unreplayable: ClassVar[str] = ""

    @property
    def needs_losses(self) -> bool:
        """Whether the rule needs each client's loss of the model that it received."""
        return True

    @property
    def needs_rates(self) -> bool:
        """Whether the rule needs the clients' participation rates, and they are not given."""
        return False

    @property
    def requires_fixed_population(self) -> bool:
        """Whether K, the number of clients, must not change after round 1."""
        return False

    @property
    def numerator(self) -> str:
        """The formula to which c_k is proportional, in the paper's symbols."""
        return type(self).__name__

    @property
    def denominator(self) -> str:
        """The denominator of c_k, in words; ``{whom}`` stands for the clients in a sum."""
        return "the sum of the same over {whom}"

    @property
    def has_fixed_denominator(self) -> bool:
        """Whether the denominator sums over all clients that the selection covers, even if absent.

        Otherwise it sums over the clients whose updates were admitted in the round.
        """
        return False

    @property
    def tolerance(self) -> float:
        """The relative accuracy with which a replay must reproduce the weights."""
        return 1e-9

    @property
    def dp_unsupported_reason(self) -> str:
        """The reason why an update's weight has no bound; empty if it has one."""
        return "the rule declares no largest weight"

    @abstractmethod
    def init(self, population: Population) -> StateT:
        """Return the state before the first round."""

    @abstractmethod
    def weigh(
        self, state: StateT, plan: RoundPlan, updates: ClientUpdates, admitted_fraction: FloatArray
    ) -> tuple[StateT, AggregationWeights]:
        """Return the next state and the weight of every update.

        ``admitted_fraction`` is the admitted fraction of each update, in [0, 1], shape (n,).
        """

    def find_rejection_reason(self, client: int) -> str:
        """Return the reason why a client cannot join the population; empty if it can."""
        return ""

    def with_fixed_denominator(self) -> "Weighting[Any]":
        """Return the same weights divided by a fixed population; see ``has_fixed_denominator``.

        A correction for participation multiplies these weights. It could not correct weights whose
        denominator depends on the available clients.

        Raises
        ------
        ParameterError
            If there are no such weights, with the reason.
        """
        raise self.build_correction_error(
            "it weights by the updates of a round, and absent clients send none"
        )

    def build_correction_error(self, reason: str) -> ParameterError:
        """Return the error that refuses a correction for participation."""
        name = self.key or type(self).__name__
        return ParameterError(
            "participation", f"none with the weighting {name}", "a correction", reason
        )

    def compute_known_weights(self, state: StateT, plan: RoundPlan) -> KnownWeights | None:
        """Return the proportional weights, if they are known before training.

        A node of several clients then returns the weighted sum of their updates instead of all
        models. The result is None if the weights depend on the replies.
        """
        return None

    def check_with(self, selection: Selection, server_optimizer: ServerOptimizer[Any]) -> None:
        """Refuse a selection or a server optimizer that makes no sense with this weighting.

        Raises
        ------
        ParameterError
            If the combination makes no sense, with the reason.
        """

    def compute_max_share(self, num_clients: int) -> float:
        """Return the largest weight of one update, before the server's learning rate."""
        raise ParameterError(
            "weighting", "one whose shares are bounded", self.key, self.dp_unsupported_reason
        )

    def compute_regret_bound(self, rounds: int, clients: int, fraction: float) -> Bound | None:
        """Return the paper's bound on the regret after T rounds; None without a bound."""
        return None

    def explain(self, trace: DecisionTrace, index: int) -> Iterator[str]:
        """Yield the formula of one weight with its numbers."""
        if trace.weights is not None:
            yield f"c_k = {trace.weights.weight[index]:.6g} by {self!r}"

    def check_unreplayable(self, trace: DecisionTrace) -> Iterator[tuple[int | None, str]]:
        """Yield each contradiction between the rule and recorded weights that no replay can check.

        A contradiction is a client, or None for all, and a text.
        """
        yield from ()
