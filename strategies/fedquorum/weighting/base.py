"""The interface of a weighting rule."""

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
    PastStarts,
    Population,
    Proportions,
    Responses,
    Starts,
    StateT,
    Weights,
)

BY_LOSSES = "losses decide the weights: one update can be nearly the whole step, and reveals a loss"
"""Why differential privacy cannot protect a client whose loss decides its weight."""


class Weighting(Rule, ABC, Generic[StateT]):
    """Decides the coefficients c_k of x_{t+1} = server_step(x_t, sum_k c_k Delta_k).

    Pure: the state goes in and comes out, a value like any other. A subclass needs ``init`` and
    ``weigh``; the declarations below are those of a rule that weighs by the losses of the clients
    admitted in the round.

    Attributes
    ----------
    question : Question
        What the rule answers.
    needs_updates : bool
        Whether the inner products of the updates are needed, which no record holds.
    needs_everyone : bool
        Whether all clients must be asked in every round.
    by_data : bool
        Whether a client counts by its amount of data, or by its draws where clients are drawn.
    reports_objective : bool
        Whether F(w_t) is measured for every round, as for FedAvg's baselines.
    aggregates : bool
        Whether updates count at all.
    strategy : bool
        Whether ``strategy=<key>`` is this rule on all clients or a sample of them.
    baseline : bool
        Whether it is a method that the papers' own are compared with.
    plain_for : tuple of Question
        The questions for which a study compares the others with it.
    late : str
        What a client is to the rule whose update comes too late.
    drawn_whom : str
        The clients that the sum is over where priority clients are drawn with replacement; empty
        if that makes no difference.
    variant : str
        Which of several published forms the rule has by default; empty where there is one form.
    authors_variant : str
        The form that made the paper's tables, where it is another; empty where it is not.
    not_recorded : str
        What of a decision cannot be replayed from the records, and why; empty where all can.
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
    variant: ClassVar[str] = ""
    authors_variant: ClassVar[str] = ""
    not_recorded: ClassVar[str] = ""

    @property
    def needs_losses(self) -> bool:
        """Whether each client's loss of the model it received is needed."""
        return True

    @property
    def fixed_population(self) -> bool:
        """Whether K, the number of clients, must stay what it was in round 1."""
        return False

    @property
    def factor(self) -> str:
        """What c_k is proportional to, in the paper's symbols."""
        return type(self).__name__

    @property
    def divisor(self) -> str:
        """What that is divided by; ``{whom}`` stands for the clients that a sum is over."""
        return "the sum of the same over {whom}"

    @property
    def fixed_divisor(self) -> bool:
        """Whether the sum is over all clients that the selection covers, present or not.

        Otherwise it is over the clients whose updates were admitted in the round.
        """
        return False

    @property
    def tolerance(self) -> float:
        """How closely a replay must reproduce the weights, relative."""
        return 1e-9

    @property
    def unbounded(self) -> str:
        """Why one update may count for any share; empty where the share has a bound."""
        return "the rule declares no largest weight"

    @abstractmethod
    def init(self, population: Population) -> StateT:
        """Return the state before the first round."""

    @abstractmethod
    def weigh(
        self, state: StateT, call: Call, responses: Responses, share: FloatArray
    ) -> tuple[StateT, Weights]:
        """Return the next state and the weight of every update.

        ``share`` is how much of each update was admitted, in [0, 1], shape (n,).
        """

    @property
    def past_starts(self) -> PastStarts | None:
        """How models of earlier rounds are kept, from which ``starts`` lets clients train.

        None where all clients train from the model of the round.
        """
        return None

    def starts(self, state: StateT) -> Starts:
        """Return from which model each client trains in the next round; with ``past_starts``."""
        raise NotImplementedError(f"with {type(self).__name__} all train from the same model")

    def refuses(self, client: int) -> str:
        """Return why a client cannot join the population; empty if it can."""
        return ""

    def over_known(self) -> "Weighting[Any]":
        """Return the same weights divided by a fixed population; see ``fixed_divisor``.

        A correction for participation multiplies these: divided by the weights of whoever shows
        up, no factor could make the mean right.

        Raises
        ------
        ParameterError
            Where there are no such weights, with the reason.
        """
        raise self.uncorrectable(
            "it weights by the updates of a round, and absent clients send none"
        )

    def uncorrectable(self, reason: str) -> ParameterError:
        """Return the refusal of a correction for participation."""
        name = self.key or type(self).__name__
        return ParameterError(
            "participation", f"none with the weighting {name}", "a correction", reason
        )

    def proportions(self, state: StateT, call: Call) -> Proportions | None:
        """Return what ``weigh`` will be proportional to, where that is known before training.

        A node of several clients then returns the weighted sum of their updates instead of every
        model. None where the weights depend on the answers.
        """
        return None

    def check_with(self, selection: Selection, server_optimizer: ServerOptimizer[Any]) -> None:
        """Refuse a selection or a server optimizer that makes no sense with this weighting.

        Raises
        ------
        ParameterError
            With what is allowed, and the reason.
        """

    def largest_share(self, num_clients: int) -> float:
        """Return the most that one update can count, before the server's learning rate."""
        raise ParameterError("weighting", "one whose shares are bounded", self.key, self.unbounded)

    def regret_bound(self, rounds: int, clients: int, fraction: float) -> Bound | None:
        """Return the paper's bound on the regret after T rounds; None where there is none."""
        return None

    def explain(self, decided: Decided, place: int) -> Iterator[str]:
        """Yield the formula of one weight, filled in with its numbers."""
        if decided.weights is not None:
            yield f"c_k = {decided.weights.weight[place]:.6g} by {self!r}"

    def check_recorded(self, decided: Decided) -> Iterator[tuple[int | None, str]]:
        """Yield what contradicts the rule in weights that cannot be replayed, by client."""
        yield from ()
