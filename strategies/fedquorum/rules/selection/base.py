"""Define the interface of a selection rule."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import singledispatch
from typing import ClassVar

import numpy as np

from ..decisions import DecisionTrace
from ..rule import Rule
from ..types import (
    Admission,
    ClientReports,
    ClientUpdates,
    Objective,
    PerClient,
    Population,
    RoundPlan,
)
from .sampling import Sampling

LATE_UNDECLARED = "the selection does not declare that updates of older models may count"
"""The reason for a selection that does not choose."""

SUM_UNDECLARED = "the selection does not declare that it needs no loss of a single client"
"""The reason why the sum of the updates is not enough for such a selection."""


@dataclass(frozen=True)
class SelectionTraits:
    """What a selection needs of a round, and what other rules can rely on.

    Parameters
    ----------
    has_gate : bool
        Whether the losses decide which clients take part.
    selects_all : bool
        Whether it selects clients with and without priority and admits all their updates.
    needs_objective : bool
        Whether every round needs F(w_t).
    requests_losses : bool
        Whether clients evaluate the model that they receive, with any weighting.
    dp_unsupported_reason : str
        The reason why differential privacy cannot protect a client; empty if it can.
    late_unsupported_reason : str
        The reason why updates of older models must not count; empty if they may.
    sum_unsupported_reason : str
        The reason why the server needs a loss or an update of a single client; empty if not.
    """

    has_gate: bool = False
    selects_all: bool = False
    needs_objective: bool = True
    requests_losses: bool = True
    dp_unsupported_reason: str = (
        "the influence of one update has no known bound with this selection"
    )
    late_unsupported_reason: str = LATE_UNDECLARED
    sum_unsupported_reason: str = SUM_UNDECLARED


class Selection(Rule, ABC):
    """Decide which clients are selected in a round, and which updates are admitted.

    A selection is pure: it does no I/O and keeps no state. A subclass has a field ``sampling``,
    declares its ``traits``, and implements ``plan`` and, if it can, ``compute_probabilities``.
    """

    traits: ClassVar[SelectionTraits] = SelectionTraits()
    sampling: Sampling

    def check_population(self, population: Population) -> None:
        """Refuse a population from which the selection cannot choose; by default none.

        Raises
        ------
        ParameterError
            If it refuses, with the allowed populations and the reason.
        """

    @abstractmethod
    def plan(self, t: int, population: Population, reports: ClientReports) -> RoundPlan:
        """Return the selected clients of round t (from 0), and the terms sent with the model.

        ``reports`` has the clients' reports of earlier rounds. The same arguments give the same
        plan; a caller may ask for it before the round, unless ``hooks`` has a ``before_round``.
        """

    def compute_probabilities(
        self, population: Population, reports: ClientReports
    ) -> PerClient | None:
        """Return the probability that a round selects a client, for each eligible client.

        The probability holds for every round after any warm-up, independently of other rounds.
        None, the default, means that it is unknown: then ``known_statistics`` refuses the
        selection.
        """
        return None

    def admit(self, plan: RoundPlan, objective: Objective, updates: ClientUpdates) -> Admission:
        """Return the admitted fraction of each update, given F(w_t); by default 1."""
        n = len(updates.client)
        return Admission(np.ones(n), (None,) * n)

    def explain_selection(
        self, t: int, population: Population, plan: RoundPlan, client: int
    ) -> str:
        """Return why a client was selected in round t, or why not."""
        if self.traits.selects_all or client in population.priority:
            groups = self._describe_groups(t, population)
            return self.sampling.explain(t, plan, client, groups, population)
        return f"no; {self._describe_groups(t, population)}"

    def explain_admission(self, trace: DecisionTrace, index: int) -> str:
        """Return the admitted fraction of an update, and the reason."""
        fraction = float(trace.admitted_fraction[index])
        admitted = "whole" if fraction == 1.0 else f"a share of {fraction:.6g} of the update"
        return f"{admitted}; there is no gate"

    def _describe_groups(self, t: int, population: Population) -> str:
        """Return the eligible groups of clients in round t, in words."""
        if self.traits.selects_all or not population.non_priority_clients:
            return self._describe_all(population)
        return "only priority clients are eligible"

    def _describe_all(self, population: Population) -> str:
        """Say that all are eligible; priority is a word only where the two groups differ."""
        is_sampled = self.sampling.fraction != 1.0 or self.sampling.priority_samples is not None
        if is_sampled and population.non_priority_clients:
            return "clients with and without priority are eligible"
        return "all clients are eligible"


@singledispatch
def samples_objective(selection: object) -> bool:  # noqa: ARG001
    """Say whether F(w_t) covers only the selected priority clients of round t; by default yes."""
    return True


@singledispatch
def select_objective_clients(
    selection: object,  # noqa: ARG001
    clients: frozenset[int],
) -> frozenset[int]:
    """Return the clients whose F_k(w_t) make up F(w_t): by default all that evaluate it."""
    return clients


def admits_all(selection: Selection) -> bool:
    """Say whether every update counts in full, so that ``admit`` has no effect."""
    return type(selection).admit is Selection.admit


def declares_probabilities(selection: Selection) -> bool:
    """Say whether ``compute_probabilities`` belongs to this ``plan``, not to an overridden one."""
    for kind in type(selection).__mro__:
        if "compute_probabilities" in vars(kind):
            return kind is not Selection
        if "plan" in vars(kind):
            return False
    return False


def get_known_probabilities(selection: Selection, population: Population) -> PerClient | None:
    """Return ``compute_probabilities`` before the run; None if they are unknown."""
    if not declares_probabilities(selection):
        return None
    return selection.compute_probabilities(population, ClientReports())
