"""The rules of one strategy together, and which of them go together.

The factors of an admitted client multiply: what the weighting gives it, times omega where a rule
corrects for how often it is there. The sum is divided by the same without omega, over all clients
that the selection covers, present or not. Where nothing is corrected, rules renormalise as in
their papers, over the clients admitted in the round. Any server optimizer moves the model by that
sum.
"""

from dataclasses import dataclass, field, is_dataclass, replace
from typing import Any

from .errors import ParameterError
from .parameters import Flag, FolderPath
from .regret import Bound
from .rule import Question, check_parameters, parameter, supplied
from .schedules import ServerRate
from .selection import Selection
from .server_optimizer import SGD, ServerOptimizer
from .types import Call, Population, Proportions, Told
from .weighting import Weighting


@dataclass(frozen=True)
class LastUpdates:
    """That the server keeps every client's last update, which corrects the combined one.

    See ``fedquorum.memory.UpdateMemory``.

    Parameters
    ----------
    memory_dir : str, optional
        The folder of its files; None keeps it in memory.
    moves_alone : bool
        Whether the model moves by the memory also in a round without any update.

    Raises
    ------
    ParameterError
        For a value outside its range.
    """

    memory_dir: str | None = parameter(None, FolderPath())
    moves_alone: bool = supplied(Flag(), default=False)

    def __post_init__(self) -> None:
        check_parameters(self)

    @property
    def unbounded(self) -> str:
        """Why differential privacy cannot protect an update that is kept."""
        return "an update counts again in every later round"


@dataclass(frozen=True)
class Rules:
    """The rules of one strategy: a selection, a weighting, a server optimizer, and a memory.

    Parameters
    ----------
    selection : Selection
        Who is asked, and whose update is admitted.
    weighting : Weighting
        How much an admitted update counts.
    server_optimizer : ServerOptimizer
        How the combined update moves the model.
    memory : LastUpdates, optional
        Whether the clients' last updates are kept.
    server_rate : ServerRate
        How the server optimizer's learning rate changes over the rounds.

    Raises
    ------
    ParameterError
        If the rules make no sense together, with the reason.
    """

    selection: Selection
    weighting: Weighting[Any]
    server_optimizer: ServerOptimizer[Any] = field(default_factory=SGD)
    memory: LastUpdates | None = None
    server_rate: ServerRate = field(default_factory=ServerRate)

    def __post_init__(self) -> None:
        _check_models(self.selection, self.weighting, self.server_optimizer)
        _check_rate(self.server_optimizer, self.server_rate)
        self.weighting.check_with(self.selection, self.server_optimizer)
        _check_draws(self.selection, self.weighting)
        _check_kept(self.weighting, self.memory)

    def call(self, t: int, population: Population, told: Told) -> Call:
        """Return whom the rules ask in round t (from 0), and the terms."""
        call = self.selection.call(t, population, told)
        return replace(call, measures_loss=self.asks_losses, t=t)

    def ahead(self, t: int, population: Population, told: Told) -> Call:
        """Return the call of round t as far as it is known before its model is measured."""
        call = self.selection.ahead(t, population, told)
        return replace(call, measures_loss=self.asks_losses, t=t)

    @property
    def measures_first(self) -> bool:
        """Whether clients measure the first model, before round 1."""
        return self.needs_objective or self.selection.by_losses

    @property
    def asks_losses(self) -> bool:
        """Whether clients measure the model that they receive."""
        weighting = self.weighting
        needed = weighting.needs_losses or weighting.reports_objective
        return self.selection.asks_losses or needed

    @property
    def needs_losses(self) -> bool:
        """Whether an update without its client's loss cannot be used."""
        return self.weighting.needs_losses or self.selection.needs_losses

    @property
    def needs_objective(self) -> bool:
        """Whether every round needs F(w_t)."""
        return self.selection.needs_objective or self.weighting.reports_objective

    @property
    def keeps_models(self) -> bool:
        """Whether every client trains a model of its own."""
        return self.selection.keeps_models

    @property
    def divisor(self) -> str:
        """What the weights are divided by, in words."""
        selection, weighting = self.selection, self.weighting
        whom = "the clients admitted in the round"
        if weighting.fixed_divisor:
            whom = selection.covers
        elif selection.sampling.priority_draws is not None:
            whom = weighting.drawn_whom or whom
        return weighting.divisor.format(whom=whom)

    @property
    def unbounded(self) -> str:
        """Why differential privacy cannot protect a client, empty where it can."""
        memory = "" if self.memory is None else self.memory.unbounded
        told = self.weighting.needs_losses or self.weighting.by_data
        weights = self.weighting.unbounded or (_TOLD if told else "")
        optimizer = "" if self.server_optimizer.follows_update else _NOT_ALONG
        return self.selection.unbounded or memory or weights or optimizer

    @property
    def question(self) -> Question:
        """What the rules answer: about priority where the selection tells clients apart by it."""
        selection = self.selection
        if not selection.asks_all and not selection.keeps_models:
            return Question.PRIORITY
        return self.weighting.question

    def optimizer_in(self, t: int) -> ServerOptimizer[Any]:
        """Return the server optimizer with the learning rate of round t (from 0)."""
        optimizer, factor = self.server_optimizer, self.server_rate.factor(t)
        if factor == 1.0:
            return optimizer
        changed = {"learning_rate": optimizer.learning_rate * factor}
        return replace(optimizer, **changed)  # type: ignore[type-var]

    def largest_share(self, num_clients: int, t: int = 0) -> float:
        """Return c, the most that one client's update can count in round t (from 0).

        Raises
        ------
        ParameterError
            Where there is no such bound.
        """
        return self.optimizer_in(t).learning_rate * self.largest_weight(num_clients)

    def largest_weight(self, num_clients: int) -> float:
        """Return the most that c_k can be, before the server's learning rate.

        Raises
        ------
        ParameterError
            Where there is no such bound.
        """
        if self.unbounded:
            raise ParameterError("privacy", "none", "differential privacy", self.unbounded)
        return self.weighting.largest_share(num_clients)

    def regret_bound(self, rounds: int, clients: int) -> Bound | None:
        """Return the bound on the regret of the decisions of T rounds, None where there is none."""
        fraction = self.selection.sampling.fraction
        return self.weighting.regret_bound(rounds, clients, fraction)

    def proportions(self, state: Any, call: Call) -> Proportions | None:
        """Return what updates may be added up by before all are there, None if they may not be."""
        if self.memory is not None or call.keeps_model or not self.selection.admits_all:
            return None
        return self.weighting.proportions(state, call)


_TOLD = "the weights of all clients follow from what each says of its data"
_NOT_ALONG = "of another server optimizer than sgd no bound is worked out of what one update counts"


def _check_models(
    selection: Selection, weighting: Weighting[Any], server_optimizer: ServerOptimizer[Any]
) -> None:
    if selection.keeps_models == weighting.aggregates:
        raise ParameterError(
            "selection",
            "alone where the weighting is no_weight, and only there",
            f"{selection.key} with {weighting.key}",
            "every client has a model of its own, nothing is aggregated",
        )
    if selection.keeps_models and not server_optimizer.follows_update:
        raise ParameterError(
            "server_optimizer",
            "sgd where every client has a model of its own",
            server_optimizer.key,
            "the server moves none",
        )


def _check_rate(server_optimizer: ServerOptimizer[Any], rate: ServerRate) -> None:
    if rate.schedule != "constant" and not is_dataclass(server_optimizer):
        raise ParameterError(
            "server_optimizer.lr_schedule",
            "constant where the server optimizer is no dataclass",
            rate.schedule,
            "each round's optimizer is a copy with another learning_rate",
        )


def _check_draws(selection: Selection, weighting: Weighting[Any]) -> None:
    draws = selection.sampling.priority_draws
    if draws is not None and (weighting.fixed_divisor or not weighting.by_data):
        raise ParameterError(
            "priority_draws",
            "None with a weighting that is not by data",
            draws,
            "a draw counts as its client's share of the data",
        )


def _check_kept(weighting: Weighting[Any], memory: LastUpdates | None) -> None:
    if memory is not None and weighting.past_starts is not None:
        raise ParameterError(
            "memory",
            f"None with {weighting.key}",
            memory,
            "updates from different models are no updates of one",
        )
