"""Combine the rules of one strategy, and refuse combinations that make no sense.

The weight of an admitted client is a product: the weighting's numerator, times omega if a rule
corrects for participation. With such a correction the denominator is the sum of the weighting's
numerators over all clients that the selection covers, available or not. Without one, rules
normalize as in their papers, over the clients admitted in the round. Any server optimizer steps the
model by the weighted sum of updates.
"""

from dataclasses import dataclass, field, is_dataclass, replace
from functools import cached_property
from typing import Any

from ..errors import ParameterError
from .description import Goal
from .hooks import NO_HOOKS, Hooks
from .parameters import DirectoryPath, Flag
from .regret import Bound, compute_regret_bound
from .rule import check_parameters, injected_value, parameter
from .schedules import ServerLRSchedule
from .selection.base import Selection, admits_all
from .server_optimizer import SGD, ServerOptimizer
from .types import ClientReports, KnownWeights, Population, RoundPlan
from .weighting import Weighting


@dataclass(frozen=True)
class UpdateMemoryConfig:
    """The server's store of every client's last update, which corrects the combined update.

    See ``fedquorum.server.update_memory.UpdateMemory``.

    Parameters
    ----------
    memory_dir : str, optional
        The directory of the store's files; None stores the updates in memory.
    steps_without_updates : bool
        Whether the model steps by the stored updates even in a round without any update.

    Raises
    ------
    ParameterError
        If a value is outside its range.
    """

    memory_dir: str | None = parameter(None, DirectoryPath())
    steps_without_updates: bool = injected_value(Flag(), default=False)

    def __post_init__(self) -> None:
        check_parameters(self)

    @property
    def dp_unsupported_reason(self) -> str:
        """The reason why differential privacy cannot protect a stored update."""
        return "an update counts again in every later round"


@dataclass(frozen=True)
class RuleSet:
    """The rules of one strategy: a selection, a weighting, a server optimizer, and a memory.

    Parameters
    ----------
    selection : Selection
        Decides which clients are selected and which updates are admitted.
    weighting : Weighting
        Decides the weight of each admitted update.
    server_optimizer : ServerOptimizer
        Steps the model by the combined update.
    memory : UpdateMemoryConfig, optional
        Set if the server stores the clients' last updates.
    server_lr_schedule : ServerLRSchedule
        The schedule of the server optimizer's learning rate.
    run_hooks : Hooks
        The run's additions to the hooks of the rules.

    Raises
    ------
    ParameterError
        If the rules make no sense together, with the reason.
    """

    selection: Selection
    weighting: Weighting[Any]
    server_optimizer: ServerOptimizer[Any] = field(default_factory=SGD)
    memory: UpdateMemoryConfig | None = None
    server_lr_schedule: ServerLRSchedule = field(default_factory=ServerLRSchedule)
    run_hooks: Hooks = NO_HOOKS

    def __post_init__(self) -> None:
        _check_rate(self.server_optimizer, self.server_lr_schedule)
        self.weighting.check_with(self.selection, self.server_optimizer)
        _check_draws(self.selection, self.weighting)
        _check_memory(self.weighting, self.memory)

    def plan_round(self, t: int, population: Population, reports: ClientReports) -> RoundPlan:
        """Return the selected clients of round t (from 0), and the terms."""
        plan = self.selection.plan(t, population, reports)
        return replace(plan, requests_loss=self.requests_losses, t=t)

    @cached_property
    def hooks(self) -> Hooks:
        """The hooks of the rules and the run."""
        return self.selection.hooks | self.weighting.hooks | self.run_hooks

    @property
    def needs_initial_evaluation(self) -> bool:
        """Whether clients evaluate the initial model, before round 1."""
        return self.needs_objective or self.hooks.before_round is not None

    @cached_property
    def requests_losses(self) -> bool:
        """Whether clients evaluate the model that they receive."""
        weighting = self.weighting.traits
        needed = weighting.needs_losses or weighting.reports_objective
        return self.selection.traits.requests_losses or needed

    @property
    def needs_losses(self) -> bool:
        """Whether an update is unusable without its client's loss."""
        before_round = self.hooks.before_round
        return self.weighting.traits.needs_losses or (
            before_round is not None and before_round.needs_reports
        )

    @property
    def needs_objective(self) -> bool:
        """Whether every round needs F(w_t)."""
        return self.selection.traits.needs_objective or self.weighting.traits.reports_objective

    @cached_property
    def denominator(self) -> str:
        """The denominator of the weights, in words."""
        traits, scope = self.weighting.traits, "the clients admitted in the round"
        if traits.has_fixed_denominator:
            scope = self.selection.description.population
        elif self.selection.sampling.priority_samples is not None:
            scope = self.weighting.description.sampled_scope or scope
        return traits.denominator.format(whom=scope)

    @property
    def dp_unsupported_reason(self) -> str:
        """The reason why differential privacy cannot protect a client; empty if it can."""
        memory = "" if self.memory is None else self.memory.dp_unsupported_reason
        traits = self.weighting.traits
        depends_on_reports = traits.needs_losses or traits.weights_by_data
        weights = traits.dp_unsupported_reason or (
            _WEIGHTS_DEPEND_ON_REPORTS if depends_on_reports else ""
        )
        optimizer = "" if self.server_optimizer.is_linear else _NONLINEAR_OPTIMIZER
        return self.selection.traits.dp_unsupported_reason or memory or weights or optimizer

    @property
    def late_unsupported_reason(self) -> str:
        """The reason why updates of older models must not count; empty if they may."""
        return (
            self.selection.traits.late_unsupported_reason
            or self.weighting.traits.late_unsupported_reason
        )

    @property
    def sum_unsupported_reason(self) -> str:
        """The reason why the server needs more than the weighted sum of the updates.

        It is empty if ``compute_known_weights`` returns weights in every round, and no rule needs
        the loss of a single client.
        """
        if self.memory is not None:
            return _STORES_UPDATES
        if self.selection.sampling.priority_samples is not None:
            return _COUNTS_DRAWS
        traits = self.weighting.traits
        weights = traits.sum_unsupported_reason
        if traits.needs_updates:
            weights = _WEIGHTS_FOLLOW_FROM_UPDATES
        elif traits.needs_losses:
            weights = _WEIGHTS_FOLLOW_FROM_LOSSES
        admission = "" if self._admits_all else _ADMITS_LATER
        return self.selection.traits.sum_unsupported_reason or admission or weights

    @property
    def goal(self) -> Goal:
        """The goal of the rules: priority if the selection depends on priority."""
        if not self.selection.traits.selects_all:
            return Goal.PRIORITY
        return self.weighting.description.goal

    def get_optimizer_at(self, t: int) -> ServerOptimizer[Any]:
        """Return the server optimizer with the learning rate of round t (from 0)."""
        optimizer, schedule = self.server_optimizer, self.server_lr_schedule
        if schedule.schedule == "constant":
            return optimizer
        changed = {"learning_rate": optimizer.learning_rate * schedule.compute_factor(t)}
        return replace(optimizer, **changed)  # type: ignore[type-var]

    def compute_max_share(self, num_clients: int, t: int = 0) -> float:
        """Return the largest factor of one client's update in the step of round t (from 0).

        Raises
        ------
        ParameterError
            If the factor has no bound.
        """
        return self.get_optimizer_at(t).learning_rate * self.compute_max_weight(num_clients)

    def compute_max_weight(self, num_clients: int) -> float:
        """Return the largest possible c_k, before the server's learning rate.

        Raises
        ------
        ParameterError
            If c_k has no bound.
        """
        if self.dp_unsupported_reason:
            raise ParameterError(
                "privacy", "none", "differential privacy", self.dp_unsupported_reason
            )
        return self.weighting.compute_max_share(num_clients)

    def compute_regret_bound(self, rounds: int, clients: int) -> Bound | None:
        """Return the bound on the regret of T rounds' decisions, None without a bound."""
        fraction = self.selection.sampling.fraction
        return compute_regret_bound(self.weighting, rounds, clients, fraction)

    @cached_property
    def _admits_all(self) -> bool:
        return admits_all(self.selection)

    def compute_known_weights(self, state: Any, plan: RoundPlan) -> KnownWeights | None:
        """Return the proportional weights of the updates if known before training, else None."""
        if self.memory is not None or not self._admits_all:
            return None
        return self.weighting.compute_known_weights(state, plan)


_WEIGHTS_DEPEND_ON_REPORTS = "weights depend on the number of examples each client reports"
_STORES_UPDATES = "the server stores the last update of every client"
_ADMITS_LATER = "the selection decides after training which updates it admits"
_COUNTS_DRAWS = "clients that are drawn with replacement count by their draws"
_WEIGHTS_FOLLOW_FROM_UPDATES = "the weights follow from the updates of single clients"
_WEIGHTS_FOLLOW_FROM_LOSSES = "the weights follow from the losses of single clients"
_NONLINEAR_OPTIMIZER = "the influence of one update is bounded only for server_optimizer=sgd"


def _check_rate(server_optimizer: ServerOptimizer[Any], rate: ServerLRSchedule) -> None:
    if rate.schedule != "constant" and not is_dataclass(server_optimizer):
        raise ParameterError(
            "server_optimizer.lr_schedule",
            "constant where the server optimizer is no dataclass",
            rate.schedule,
            "each round's optimizer is a copy with another learning_rate",
        )


def _check_draws(selection: Selection, weighting: Weighting[Any]) -> None:
    num_samples, traits = selection.sampling.priority_samples, weighting.traits
    if num_samples is not None and (traits.has_fixed_denominator or not traits.weights_by_data):
        raise ParameterError(
            "priority_samples",
            "None with a weighting that is not by data",
            num_samples,
            "a draw counts as its client's share of the data",
        )


def _check_memory(weighting: Weighting[Any], memory: UpdateMemoryConfig | None) -> None:
    if memory is not None and weighting.hooks.client_start is not None:
        raise ParameterError(
            "memory",
            f"None with {weighting.description.key}",
            memory,
            "updates from different models are no updates of one",
        )
