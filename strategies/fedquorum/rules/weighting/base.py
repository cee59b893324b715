"""Define the interface of a weighting rule."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import singledispatch
from typing import Any, Generic

from ...errors import ParameterError
from ..decisions import DecisionTrace
from ..rule import Rule, get_rule_name
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

LATE_LOSS = "a loss of an older model decides nothing about this one"
"""The reason why late updates do not count for rules that weight by losses."""

LATE_UNDECLARED = "the rule does not declare that updates of older models may count"
"""The reason for a rule that does not choose."""

WEIGHTS_UNKNOWN = "the rule declares no weights that are known before training"
"""The reason why the sum of the updates is not enough for a rule that does not choose."""


@dataclass(frozen=True)
class WeightingTraits:
    """What a weighting needs of a round, and what other rules can rely on.

    The defaults are those of a rule that weights the admitted clients by their losses.

    Parameters
    ----------
    numerator : str
        The formula to which c_k is proportional, in the paper's symbols.
    denominator : str
        The denominator of c_k, in words; ``{whom}`` stands for the clients in a sum.
    has_fixed_denominator : bool
        Whether the denominator sums over all clients that the selection covers, even if absent.
        Otherwise it sums over the clients whose updates were admitted in the round.
    needs_losses : bool
        Whether the rule needs each client's loss of the model that it received.
    needs_updates : bool
        Whether the rule needs the inner products of the updates, which no record holds.
    weights_by_data : bool
        Whether a client counts by its amount of data, or by its draws if clients are sampled with
        replacement.
    reports_objective : bool
        Whether F(w_t) is evaluated in every round, as for FedAvg's baselines.
    requires_full_participation : bool
        Whether all clients must be selected in every round.
    requires_fixed_population : bool
        Whether K, the number of clients, must not change after round 1.
    tolerance : float
        The relative accuracy with which a replay must reproduce the weights.
    dp_unsupported_reason : str
        The reason why an update's weight has no bound; empty if it has one.
    late_unsupported_reason : str
        The reason why updates of older models must not count; empty if they may.
    sum_unsupported_reason : str
        The reason why the server needs more than the weighted sum of the updates; empty if
        ``compute_known_weights`` returns weights.
    uncorrectable_reason : str
        The reason why no correction for participation fits, if ``with_fixed_denominator`` is not
        overridden.
    """

    numerator: str
    denominator: str = "the sum of the same over {whom}"
    has_fixed_denominator: bool = False
    needs_losses: bool = True
    needs_updates: bool = False
    weights_by_data: bool = False
    reports_objective: bool = False
    requires_full_participation: bool = False
    requires_fixed_population: bool = False
    tolerance: float = 1e-9
    dp_unsupported_reason: str = "the rule declares no largest weight"
    late_unsupported_reason: str = LATE_UNDECLARED
    sum_unsupported_reason: str = WEIGHTS_UNKNOWN
    uncorrectable_reason: str = "it weights by the updates of a round, and absent clients send none"


class Weighting(Rule, ABC, Generic[StateT]):
    """Decide the weights c_k of x_{t+1} = server_step(x_t, sum_k c_k Delta_k).

    A weighting is pure: it takes the state and returns the next one. A subclass declares its
    ``traits``, and implements ``init`` and ``weigh``.
    """

    @property
    def traits(self) -> WeightingTraits:
        """What the rule needs; by default what a rule by losses needs."""
        return WeightingTraits(type(self).__name__)

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

    def with_fixed_denominator(self) -> "Weighting[Any]":
        """Return the same weights divided by a fixed population; see ``WeightingTraits``.

        A correction for participation multiplies these weights. It could not correct weights whose
        denominator depends on the available clients.

        Raises
        ------
        ParameterError
            If there are no such weights, with the reason.
        """
        name, reason = get_rule_name(self), self.traits.uncorrectable_reason
        allowed = f"none with the weighting {name}"
        raise ParameterError("participation", allowed, "a correction", reason)

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
        """Return the largest weight of one update, before the server's learning rate.

        Only a rule without a ``dp_unsupported_reason`` has one.
        """
        raise NotImplementedError(f"{get_rule_name(self)} declares no largest weight")

    def explain(self, trace: DecisionTrace, index: int) -> Iterator[str]:
        """Yield the formula of one weight with its numbers."""
        if trace.weights is not None:
            yield f"c_k = {trace.weights.weight[index]:.6g} by {self!r}"


@singledispatch
def find_contradictions(
    weighting: object,  # noqa: ARG001
    trace: DecisionTrace,  # noqa: ARG001
) -> Iterator[tuple[int | None, str]]:
    """Yield each contradiction between a rule and recorded weights that no replay can check.

    A contradiction is a client, or None for all, and a text. A rule with ``unreplayable`` in its
    description registers its check here.
    """
    yield from ()
