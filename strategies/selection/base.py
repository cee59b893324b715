"""The interface of a selection rule."""

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from strategies.selection.sampling import Sampling
from strategies.types import Admission, Call, GlobalMeasure, Population, Responses


class Selection(Protocol):
    """Decides who is asked in a round and whose update is admitted. Pure: no I/O, no memory.

    ``measures``: whether F(w_t) is measured for every round. Where nothing depends on it the cost
    is spared; evaluations measure F(w) all the same. ``covers`` says in words whom a weighting
    divides by that divides by all whom the selection lets count, there or not.
    """

    @property
    def covers(self) -> str:
        """Whose updates can count."""

    @property
    def sampling(self) -> Sampling:
        """Who of them is asked in a round."""

    @property
    def measures(self) -> bool:
        """Whether every round needs F(w_t)."""

    def call(self, t: int, population: Population, examples: Mapping[int, float]) -> Call:
        """Return who is asked in round t (from 0) and the terms that go with the model.

        ``examples`` is D_k of the priority clients, as far as they were measured. The same
        arguments give the same call: it is also asked for ahead of its round.
        """

    def admit(self, call: Call, measure: GlobalMeasure, responses: Responses) -> Admission:
        """Return whose update counts, given F(w_t) and what came back."""


def admit_all(responses: Responses) -> Admission:
    """Admit every update, for rules without a gate."""
    n = len(responses.client)
    return Admission(np.ones(n), (None,) * n)
