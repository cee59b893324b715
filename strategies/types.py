"""What the rules exchange: plain frozen records of NumPy arrays, float64, sorted by client id.

Shapes: n is the number of clients whose usable updates arrived in this round.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

StateT = TypeVar("StateT")


@dataclass(frozen=True)
class Population:
    """All clients the server knows of, and which of them have priority.

    Priority is the server's knowledge: nothing a client says changes it.
    """

    clients: tuple[int, ...]
    priority: frozenset[int]

    def __post_init__(self) -> None:
        unknown = sorted(self.priority - set(self.clients))
        if unknown:
            raise ValueError(f"priority clients {unknown} are not among the clients")
        if not self.priority:
            raise ValueError("there must be at least one priority client")

    @property
    def priority_clients(self) -> tuple[int, ...]:
        """The priority clients, ascending."""
        return tuple(sorted(self.priority))

    def is_priority(self, clients: Sequence[int] | IntArray) -> BoolArray:
        """Return for each of ``clients`` whether it has priority, shape (n,)."""
        return np.array([int(k) in self.priority for k in clients], dtype=np.bool_)


@dataclass(frozen=True)
class GlobalMeasure:
    """F(w_t) and the accuracy of w_t on the priority clients' training data.

    NaN where no priority client answered; comparisons with NaN are false, so no gate opens.
    """

    loss: float
    accuracy: float


@dataclass(frozen=True)
class Draws:
    """Priority clients drawn with replacement: how often each, and sum of D_i over all of P."""

    count: Mapping[int, int]
    priority_data: float


@dataclass(frozen=True)
class Call:
    """Who is asked in a round, and the terms that travel with the model.

    ``epsilon`` None means that the rule has no gate: every client asked trains. ``draws`` is
    set where the priority clients were drawn with replacement.
    """

    clients: tuple[int, ...]
    epsilon: float | None = None
    criterion: str = "loss"
    draws: Draws | None = None


@dataclass(frozen=True)
class Responses:
    """The clients that trained, ascending by id. All arrays have shape (n,).

    ``loss`` and ``accuracy`` are of the model RECEIVED, on the client's training data.
    """

    client: IntArray
    priority: BoolArray
    num_examples: FloatArray
    loss: FloatArray
    accuracy: FloatArray


@dataclass(frozen=True)
class Admission:
    """Which updates count (shape (n,)) and, for those that do not, why (None where they do)."""

    admitted: BoolArray
    reason: tuple[str | None, ...]


@dataclass(frozen=True)
class Weights:
    """How much each update counts, shape (n,): x_{t+1} = server_step(x_t, sum_k c_k Delta_k).

    ``weight`` is c_k, 0 where not admitted. ``inclusion_mass`` is A, the sum of p_k over the
    admitted non-priority clients, where the rule knows priority; theta is 1 / (1 + A).
    """

    weight: FloatArray
    inclusion_mass: float | None = None
