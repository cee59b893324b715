"""Select only the priority clients in the first rounds of a run."""

from abc import ABC
from functools import cached_property

from ..schedules import count_rounds
from ..types import Population, RoundPlan
from .base import Selection


class WarmUpSelection(Selection, ABC):
    """A selection whose rounds t < ``num_warmup_rounds`` select the priority clients alone.

    A subclass has the fields below; ``warmup_rounds`` overrides the fraction if given.
    """

    num_rounds: int
    warmup_fraction: float
    warmup_rounds: int | None

    @cached_property
    def num_warmup_rounds(self) -> int:
        """The number of first rounds in which only priority clients are eligible."""
        if self.warmup_rounds is not None:
            return self.warmup_rounds
        return count_rounds(self.warmup_fraction, self.num_rounds)

    def explain_selection(
        self, t: int, population: Population, plan: RoundPlan, client: int
    ) -> str:
        """Return why a client was selected in round t, or why not."""
        groups = self._describe_groups(t, population)
        if t < self.num_warmup_rounds and client not in population.priority:
            return f"no; {groups}"
        return self.sampling.explain(t, plan, client, groups, population)

    def _describe_groups(self, t: int, population: Population) -> str:
        if t < self.num_warmup_rounds and population.non_priority_clients:
            warmup = f"rounds 1 to {self.num_warmup_rounds} are warm-up"
            return f"{warmup}, in which only priority clients are eligible"
        return self._describe_all(population)
