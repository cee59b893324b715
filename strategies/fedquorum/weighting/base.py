"""Define the interface of a weighting rule."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar, Generic

from ..errors import ParameterError
from ..regret import Bound
from ..report import Decided
from ..rule import Question, Rule
from ..selection.base import Selection
from ..server_optimizer.base import ServerOptimizer
from ..types import (
    Call,
    FloatArray,
    Population,
    Proportions,
    Responses,
    StateT,
    Weights,
)

BY_LOSSES = "losses decide the weights: one update can be nearly the whole step, and reveals a loss"
"""The reason why differential privacy cannot protect a client whose loss decides its weight."""


class Weighting(Rule, ABC, Generic[StateT]):
    """Decide the weights c_k of x_{t+1} = server_step(x_t, sum_k c_k Delta_k).

    A weighting is pure: it takes the state and returns the next one. A subclass implements ``init``
    and ``weigh``. The attributes below default to those of a rule that weights the admitted clients
    by their losses.

    Attributes
    ----------
    question : Question
        The question that the rule answers.
    needs_updates : bool
        Whether the inner products of the updates are needed, which no record holds.
    needs_everyone : bool
        Whether all clients must be asked in every round.
    by_data : bool
        Whether a client counts by its amount of data, or by its draws if clients are drawn.
    reports_objective : bool
        Whether F(w_t) is measured in every round, as for FedAvg's baselines.
    aggregates : bool
        Whether updates count at all.
    strategy : bool
        Whether ``strategy=<key>`` is this rule on all clients or a sample of them.
    baseline : bool
        Whether the papers use the rule as a baseline.
    plain_for : tuple of Question
        The questions for which this is a study's baseline.
    late : str
        The effect of an update that comes too late, in words.
    drawn_whom : str
        The clients that the sum is over if priority clients are drawn with replacement; empty if
        that makes no difference.
    default_form : str
        The default one of several published forms; empty if there is only one.
    authors_form : str
        The form behind the paper's tables, if it differs; otherwise empty.
    not_recorded : str
        The part of a decision that the records cannot replay, and why; empty if they can replay
        all of it.
    """

    question: ClassVar[Question] = Question.FAIRNESS
    needs_updates: ClassVar[bool] = False
    needs_everyone: ClassVar[bool] = False
    by_data: ClassVar[bool] = False
    reports_objective: ClassVar[bool] = False
    aggregates: ClassVar[bool] = True
    strategy: ClassVar[bool] = True
    baseline: ClassVar[bool] = True
    plain_for: ClassVar[tuple[Question, ...]] = ()
    late: ClassVar[str] = "Its loss and its update do not count."
    drawn_whom: ClassVar[str] = ""
    default_form: ClassVar[str] = ""
    authors_form: ClassVar[str] = ""
    not_recorded: ClassVar[str] = ""

    @property
    def needs_losses(self) -> bool:
        """Whether the rule needs each client's loss of the model that it received."""
        return True

    @property
    def needs_rates(self) -> bool:
        """Whether it needs how often each client is counted, and nobody gave it."""
        return False

    @property
    def fixed_population(self) -> bool:
        """Whether K, the number of clients, must stay what it was in round 1."""
        return False

    @property
    def factor(self) -> str:
        """The formula to which c_k is proportional, in the paper's symbols."""
        return type(self).__name__

    @property
    def divisor(self) -> str:
        """The divisor of c_k, in words; ``{whom}`` stands for the clients that a sum is over."""
        return "the sum of the same over {whom}"

    @property
    def fixed_divisor(self) -> bool:
        """Whether the divisor sums over all clients that the selection covers, present or absent.

        Otherwise it sums over the clients whose updates were admitted in the round.
        """
        return False

    @property
    def tolerance(self) -> float:
        """The relative accuracy with which a replay must reproduce the weights."""
        return 1e-9

    @property
    def unbounded(self) -> str:
        """The reason why an update's share has no bound; empty if it has one."""
        return "the rule declares no largest weight"

    @abstractmethod
    def init(self, population: Population) -> StateT:
        """Return the state before the first round."""

    @abstractmethod
    def weigh(
        self, state: StateT, call: Call, responses: Responses, share: FloatArray
    ) -> tuple[StateT, Weights]:
        """Return the next state and the weight of every update.

        ``share`` is the admitted share of each update, in [0, 1], shape (n,).
        """

    def refuses(self, client: int) -> str:
        """Return the reason why a client cannot join the population; empty if it can."""
        return ""

    def over_known(self) -> "Weighting[Any]":
        """Return the same weights divided by a fixed population; see ``fixed_divisor``.

        A correction for participation multiplies these weights. It could not correct weights whose
        divisor depends on the clients that are present.

        Raises
        ------
        ParameterError
            If there are no such weights, with the reason.
        """
        raise self.uncorrectable(
            "it weights by the updates of a round, and absent clients send none"
        )

    def uncorrectable(self, reason: str) -> ParameterError:
        """Return the error that refuses a correction for participation."""
        name = self.key or type(self).__name__
        return ParameterError(
            "participation", f"none with the weighting {name}", "a correction", reason
        )

    def proportions(self, state: StateT, call: Call) -> Proportions | None:
        """Return the proportions of the weights, if they are known before training.

        A node of several clients then returns the weighted sum of their updates instead of all
        models. The result is None if the weights depend on the answers.
        """
        return None

    def check_with(self, selection: Selection, server_optimizer: ServerOptimizer[Any]) -> None:
        """Refuse a selection or a server optimizer that makes no sense with this weighting.

        Raises
        ------
        ParameterError
            If the combination makes no sense, with the reason.
        """

    def largest_share(self, num_clients: int) -> float:
        """Return the largest weight of one update, before the server's learning rate."""
        raise ParameterError("weighting", "one whose shares are bounded", self.key, self.unbounded)

    def regret_bound(self, rounds: int, clients: int, fraction: float) -> Bound | None:
        """Return the paper's bound on the regret after T rounds; None without a bound."""
        return None

    def explain(self, decided: Decided, place: int) -> Iterator[str]:
        """Yield the formula of one weight with its numbers."""
        if decided.weights is not None:
            yield f"c_k = {decided.weights.weight[place]:.6g} by {self!r}"

    def check_recorded(self, decided: Decided) -> Iterator[tuple[int | None, str]]:
        """Yield, by client, where recorded weights that no replay can check contradict the rule."""
        yield from ()
