"""Ask only the priority clients in the first rounds of a run."""

from abc import ABC

from ..schedules import rounds_in
from ..types import Call, Population
from .base import Selection


class WarmUp(Selection, ABC):
    """A selection whose rounds t < ``warmup`` ask the priority clients alone.

    A subclass has the fields below; ``warmup_rounds``, if given, overrides the fraction.
    """

    num_rounds: int
    warmup_fraction: float
    warmup_rounds: int | None

    @property
    def warmup(self) -> int:
        """The number of warm-up rounds."""
        if self.warmup_rounds is not None:
            return self.warmup_rounds
        return rounds_in(self.warmup_fraction, self.num_rounds)

    def explain_call(self, t: int, population: Population, call: Call, client: int) -> str:
        """Return why a client was asked in round t, or why not."""
        groups = self._groups(t)
        if t < self.warmup and client not in population.priority:
            return f"no; {groups}"
        return self.sampling.explain(t, call, client, groups, population)

    def _groups(self, t: int) -> str:
        if t < self.warmup:
            return (
                f"rounds 1 to {self.warmup} are warm-up, in which only priority clients are asked"
            )
        return "clients with and without priority are asked"
