"""The interface of a selection rule."""

from typing import Protocol

import numpy as np

from strategies.types import Admission, Call, GlobalMeasure, Population, Responses


class Selection(Protocol):
    """Decides who is asked in a round and whose update is admitted. Pure: no I/O, no memory."""

    def call(self, t: int, population: Population) -> Call:
        """Return who is asked in round t (from 0) and the terms that go with the model."""

    def admit(self, call: Call, measure: GlobalMeasure, responses: Responses) -> Admission:
        """Return whose update counts, given F(w_t) and what came back."""


def admit_all(responses: Responses) -> Admission:
    """Admit every update, for rules without a gate."""
    n = len(responses.client)
    return Admission(np.ones(n, dtype=np.bool_), (None,) * n)
