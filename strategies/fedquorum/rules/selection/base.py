"""Define the interface of a selection rule."""

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np

from ...errors import ParameterError
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


class Selection(Rule, ABC):
    """Decide which clients are selected in a round, and which updates are admitted.

    A selection is pure: it does no I/O and keeps no state. A subclass has a field ``sampling``,
    sets ``population_text``, and implements ``plan`` and, if it can, ``compute_probabilities``.

    Attributes
    ----------
    population_text : str
        The clients whose updates can count, available or not: a fixed denominator sums over them.
    has_gate : bool
        Whether the losses decide which clients take part.
    selects_all : bool
        Whether it selects clients with and without priority and admits all their updates.
    trains_local_models : bool
        Whether every client trains a local model.
    needs_objective : bool
        Whether every round needs F(w_t).
    requests_losses : bool
        Whether clients evaluate the model that they receive, with any weighting.
    dp_unsupported_reason : str
        The reason why differential privacy cannot protect a client; empty if it can.
    """

    population_text: ClassVar[str] = "all registered clients"
    has_gate: ClassVar[bool] = False
    selects_all: ClassVar[bool] = False
    trains_local_models: ClassVar[bool] = False
    needs_objective: ClassVar[bool] = True
    requests_losses: ClassVar[bool] = True
    dp_unsupported_reason: ClassVar[str] = (
        "the influence of one update has no known bound with this selection"
    )
    sampling: Sampling

    @property
    def admits_all(self) -> bool:
        """Whether every update counts in full, so that ``admit`` has no effect."""
        return type(self).admit is Selection.admit

    @property
    def samples_objective(self) -> bool:
        """Whether F(w_t) covers only the selected priority clients of round t."""
        return True

    def select_objective_clients(self, clients: frozenset[int]) -> frozenset[int]:
        """Return the clients whose F_k(w_t) make up F(w_t): by default all that evaluate it."""
        return clients

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

    @property
    def declares_probabilities(self) -> bool:
        """Whether ``compute_probabilities`` belongs to this ``plan``, not to an overridden one."""
        for kind in type(self).__mro__:
            if "compute_probabilities" in vars(kind):
                return kind is not Selection
            if "plan" in vars(kind):
                return False
        return False

    def get_known_probabilities(self, population: Population) -> PerClient | None:
        """Return ``compute_probabilities`` before the run; None if they are unknown."""
        return (
            self.compute_probabilities(population, ClientReports())
            if self.declares_probabilities
            else None
        )

    def build_undeclared_error(self, participation: str) -> ParameterError:
        """Return the error that refuses a correction which needs the probabilities."""
        return ParameterError(
            "participation",
            f"none with the selection {self.key or type(self).__name__}",
            participation,
            "it does not declare the probability that it selects a client; its method "
            "compute_probabilities can",
        )

    @property
    def num_warmup_rounds(self) -> int:
        """The number of first rounds in which only priority clients are eligible."""
        return 0

    def admit(self, plan: RoundPlan, objective: Objective, updates: ClientUpdates) -> Admission:
        """Return the admitted fraction of each update, given F(w_t); by default 1."""
        n = len(updates.client)
        return Admission(np.ones(n), (None,) * n)

    def explain_selection(
        self, t: int, population: Population, plan: RoundPlan, client: int
    ) -> str:
        """Return why a client was selected in round t, or why not."""
        if self.selects_all or client in population.priority:
            return self.sampling.explain(t, plan, client, self._describe_groups(t), population)
        return f"no; {self._describe_groups(t)}"

    def explain_admission(self, trace: DecisionTrace, index: int) -> str:
        """Return the admitted fraction of an update, and the reason."""
        fraction = float(trace.admitted_fraction[index])
        admitted = "whole" if fraction == 1.0 else f"a share of {fraction:.6g} of the update"
        return f"{admitted}; there is no gate"

    def _describe_groups(self, t: int) -> str:
        """Return the eligible groups of clients in round t, in words."""
        both = "clients with and without priority are eligible"
        return both if self.selects_all else "only priority clients are eligible"
