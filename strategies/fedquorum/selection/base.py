"""The interface of a selection rule."""

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np

from ..report import Decided
from ..rule import Rule
from ..types import Admission, Call, Objective, Population, Responses, Told
from .sampling import Sampling


class Selection(Rule, ABC):
    """Decides who is asked in a round and whose update is admitted. Pure: no I/O, no memory.

    A subclass has a field ``sampling``, says what it ``covers``, and needs ``call``.

    Attributes
    ----------
    covers : str
        Whose updates can count, present or not: whom a fixed divisor sums over.
    gated : bool
        Whether the losses decide who takes part.
    asks_all : bool
        Whether it asks clients with and without priority alike, and admits them all.
    keeps_models : bool
        Whether every client trains a model of its own.
    needs_objective : bool
        Whether every round needs F(w_t).
    asks_losses : bool
        Whether clients measure the model they receive, whatever the weighting.
    by_losses : bool
        Whether the clients' losses decide which of them are asked.
    unbounded : str
        Why differential privacy cannot protect a client under this selection; empty if it can.
    """

    covers: ClassVar[str] = "all known clients"
    gated: ClassVar[bool] = False
    asks_all: ClassVar[bool] = False
    keeps_models: ClassVar[bool] = False
    needs_objective: ClassVar[bool] = True
    asks_losses: ClassVar[bool] = True
    by_losses: ClassVar[bool] = False
    unbounded: ClassVar[str] = (
        "no bound is worked out of what one update counts among those selected"
    )
    sampling: Sampling

    @property
    def admits_all(self) -> bool:
        """Whether every update that arrives counts in full: no rule that decides in ``admit``."""
        return type(self).admit is Selection.admit

    @property
    def samples_objective(self) -> bool:
        """Whether F(w_t) is taken over the priority clients that round t asks, not over all."""
        return True

    def compared(self, clients: frozenset[int]) -> frozenset[int]:
        """Return those of the clients asked for F_k(w_t) that make up F(w_t): all of them."""
        return clients

    @property
    def measures_ahead(self) -> bool:
        """Whether the candidates of a round measure its model before the call."""
        return False

    @property
    def needs_losses(self) -> bool:
        """Whether an update without its client's loss cannot be used."""
        return self.by_losses and not self.measures_ahead

    def check_population(self, population: Population) -> None:
        """Refuse a population among which the selection cannot choose.

        Raises
        ------
        ParameterError
            With what is allowed, and the reason.
        """
        self.sampling.check_population(population)

    @abstractmethod
    def call(self, t: int, population: Population, told: Told) -> Call:
        """Return who is asked in round t (from 0), and the terms that go with the model.

        ``told`` is what the clients said in earlier rounds. The same arguments give the same
        call, which is also asked for ahead of its round.
        """

    def ahead(self, t: int, population: Population, told: Told) -> Call:
        """Return the call of round t as far as it is known before its model is measured.

        By default all of it; where candidates measure the model first, a call to all of them.
        """
        return self.call(t, population, told)

    def admit(self, call: Call, objective: Objective, responses: Responses) -> Admission:
        """Return whose update counts, given F(w_t) and what came back; all of them by default."""
        n = len(responses.client)
        return Admission(np.ones(n), (None,) * n)

    def explain_call(self, t: int, population: Population, call: Call, client: int) -> str:
        """Return why a client was asked in round t, or why it was not."""
        if self.asks_all or client in population.priority:
            return self.sampling.explain(t, call, client, self._groups(t), population)
        return f"no; {self._groups(t)}"

    def explain_admission(self, decided: Decided, place: int) -> str:
        """Return how much of an update was admitted, and why."""
        share = float(decided.share[place])
        admitted = "whole" if share == 1.0 else f"a share of {share:.6g} of the update"
        return f"{admitted}; there is no gate"

    def _groups(self, t: int) -> str:
        """Return which groups of clients are asked in round t, in words."""
        both = "clients with and without priority are asked"
        return both if self.asks_all else "only priority clients are asked"
