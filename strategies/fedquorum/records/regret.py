"""Compute the regret of a run's mixing decisions, and the bound of its method."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from ..regret import Bound, compute_regret
from ..types import FloatArray, IntArray

MAX_WORK = 10**10  # T K min(T, K) at most
MAX_TABLE_SIZE = 5 * 10**7
"""The largest table with one column per client, in numbers."""

MAX_PROBED_VALUES = 999

RegretBound = Callable[[int, int], Bound | None]
"""The bound on the regret after T decisions over K clients; None if the method has none."""


@dataclass(frozen=True)
class ResponseEstimate:
    """r_t of all K clients; if few were sampled, most have the same value.

    Parameters
    ----------
    num_clients : int
        K.
    default : float
        The response of all other clients.
    indices : IntArray
        The clients with a response of another value, ascending, shape (m,).
    values : FloatArray
        Their responses, shape (m,).
    """

    num_clients: int
    default: float
    indices: IntArray
    values: FloatArray

    @classmethod
    def from_responses(cls, responses: FloatArray) -> Self:
        """Return the responses (K,) of a round; the default is the most frequent of a few."""
        few = responses[:: max(1, len(responses) // MAX_PROBED_VALUES)]
        found, counts = np.unique(few, return_counts=True)
        default = float(found[np.argmax(counts)])
        indices = np.flatnonzero(responses != default)
        return cls(len(responses), default, indices, responses[indices])

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
    the T rounds with a decision. Under sampling r_t are the doubly robust
    estimates that the rule used. The regret is None if T K min(T, K) exceeds ``MAX_WORK``.
    ``regret_bound_proven`` is 1 if the bound is proven for the run, else 0.

    Parameters
    ----------
    bound : callable
        The method's bound, a function of T and K.
    losses : sequence of float
        l_t(p_t), shape (T,).
    responses : sequence of ResponseEstimate
        r_t of each round.
    """
    if not losses:
        return None
    rounds, num_clients = len(losses), responses[0].num_clients
    bounded = bound(rounds, num_clients)
    summary: dict[str, Any] = {
        "decisions": rounds,
        "decision_loss_sum": float(np.sum(losses)),
        "regret": None,
        "regret_bound": None if bounded is None else bounded.value,
        "regret_bound_proven": None if bounded is None else int(bounded.is_proven),
    }
    table, multiplicity = _build_table(responses, num_clients)
    columns = table.shape[1]
    if rounds * columns * min(rounds, columns) <= MAX_WORK:
        summary["regret"], _ = compute_regret(np.array(losses), table, multiplicity)
    return summary


def _build_table(
    responses: Sequence[ResponseEstimate], clients: int
) -> tuple[FloatArray, IntArray | None]:
    """Return r_t, shape (T, K); a large table has one column for all clients never sampled.

    Such a table comes with the number of clients that each column stands for, shape (K',).
    """
    everyone = np.arange(clients)
    if len(responses) * clients <= MAX_TABLE_SIZE:
        return np.array([each.select_values(everyone) for each in responses]), None
    sampled = np.unique(np.concatenate([each.indices for each in responses]))
    others = clients - len(sampled)
    table = np.array([each.select_values(sampled) for each in responses])
    if not others:
        return table, None
    default_column = np.array([[each.default] for each in responses])
    multiplicity = np.ones(len(sampled) + 1, dtype=np.int64)
    multiplicity[0] = others
    return np.concatenate([default_column, table], axis=1), multiplicity
