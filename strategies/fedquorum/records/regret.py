"""The regret of a run's mixing decisions, beside the bound of its method."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from ..regret import Bound, compute_regret
from ..types import FloatArray, IntArray

MAX_WORK = 10**10
MAX_TABLE_SIZE = 5 * 10**7
"""Of a table with a column for each client."""

MAX_PROBED_VALUES = 999

RegretBound = Callable[[int, int], Bound | None]
"""The bound on the regret after T decisions over K clients, None where the method has none."""


@dataclass(frozen=True)
class ResponseEstimate:
    """r_t of all K clients; if few were sampled, most have the same value.

    Parameters
    ----------
    num_clients : int
        K.
    default : float
        What the others have.
    indices : IntArray
        Who has another one, ascending, shape (m,).
    values : FloatArray
        Theirs, shape (m,).
    """

    num_clients: int
    default: float
    indices: IntArray
    values: FloatArray

    @classmethod
    def from_responses(cls, responses: FloatArray) -> Self:
        """Return the responses (K,) of a round; the common one is the most frequent of a few."""
        few = responses[:: max(1, len(responses) // MAX_PROBED_VALUES)]
        found, counts = np.unique(few, return_counts=True)
        common = float(found[np.argmax(counts)])
        places = np.flatnonzero(responses != common)
        return cls(len(responses), common, places, responses[places])

    def select_values(self, clients: IntArray) -> FloatArray:
        """Return the responses of these clients, ascending."""
        found = np.full(len(clients), self.default)
        found[np.searchsorted(clients, self.indices)] = self.values
        return found


def summarize_decisions(
    bound: RegretBound, losses: Sequence[float], responses: Sequence[ResponseEstimate]
) -> dict[str, Any] | None:
    """Return the sum of the decision losses, the regret and its bound; None without decisions.

    regret = sum_t l_t(p_t) - min over fixed p of sum_t l_t(p), l_t(p) = -log(1 + <p, r_t>), over
    the T rounds in which a decision was taken. Under sampling r_t are the doubly robust
    estimates that the rule used. Null where T K min(T, K) is beyond ``MAX_WORK``.
    ``regret_bound_proven`` is 1 where the bound is proven for the run, else 0.

    Parameters
    ----------
    bound : callable
        The method's bound, of T and K.
    losses : sequence of float
        l_t(p_t), shape (T,).
    responses : sequence of Estimate
        r_t of each round.
    """
    if not losses:
        return None
    rounds, clients = len(losses), responses[0].num_clients
    bounded = bound(rounds, clients)
    found: dict[str, Any] = {
        "decisions": rounds,
        "decision_loss_sum": float(np.sum(losses)),
        "regret": None,
        "regret_bound": None if bounded is None else bounded.value,
        "regret_bound_proven": None if bounded is None else int(bounded.is_proven),
    }
    table, alike = _build_table(responses, clients)
    columns = table.shape[1]
    if rounds * columns * min(rounds, columns) <= MAX_WORK:
        found["regret"], _ = compute_regret(np.array(losses), table, alike)
    return found


def _build_table(
    responses: Sequence[ResponseEstimate], clients: int
) -> tuple[FloatArray, IntArray | None]:
    """Return r_t (T, K), or in a large table one column for all clients that are alike.

    These were never sampled. How many clients each column then is comes with it, shape (K',).
    """
    everyone = np.arange(clients)
    if len(responses) * clients <= MAX_TABLE_SIZE:
        return np.array([each.select_values(everyone) for each in responses]), None
    sampled = np.unique(np.concatenate([each.indices for each in responses]))
    others = clients - len(sampled)
    table = np.array([each.select_values(sampled) for each in responses])
    if not others:
        return table, None
    common = np.array([[each.default] for each in responses])
    alike = np.ones(len(sampled) + 1, dtype=np.int64)
    alike[0] = others
    return np.concatenate([common, table], axis=1), alike
