"""Define the data that rules exchange: frozen records of NumPy arrays, sorted by client id.

Shapes: n is the number of clients whose usable updates arrived in this round.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from .equality import nan_equals_nan

__all__ = [
    "Admission",
    "AggregationWeights",
    "BoolArray",
    "ClientReports",
    "ClientUpdates",
    "ClientsUnderWay",
    "FloatArray",
    "IntArray",
    "KnownWeights",
    "Objective",
    "PerClient",
    "Population",
    "ReplacementSample",
    "RoundPlan",
    "StateT",
]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

StateT = TypeVar("StateT")


@dataclass(frozen=True, eq=False)
class PerClient(Mapping[int, float]):
    """A mapping from client ids to numbers that stores two arrays.

    Parameters
    ----------
    clients : IntArray
        Client ids, ascending, shape (m,).
    numbers : FloatArray
        The clients' numbers, shape (m,).
    """

    clients: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    numbers: FloatArray = field(default_factory=lambda: np.zeros(0))

    @classmethod
    def from_mapping(cls, numbers: Mapping[int, float]) -> "PerClient":
        """Return a mapping as ``PerClient``."""
        return numbers if isinstance(numbers, PerClient) else PerClient().merge(numbers)

    def get_array(self, clients: IntArray, default: float) -> FloatArray:
        """Return the numbers of these clients, ``default`` for a missing one, shape (n,)."""
        if np.array_equal(clients, self.clients):
            return self.numbers
        if not len(self.clients):
            return np.full(len(clients), default)
        indices = np.searchsorted(self.clients, clients).clip(max=len(self.clients) - 1)
        return np.where(self.clients[indices] == clients, self.numbers[indices], default)

    def select(self, clients: Iterable[int]) -> "PerClient":
        """Return the mapping restricted to these clients."""
        is_selected = np.isin(self.clients, np.fromiter(clients, dtype=np.int64))
        return PerClient(self.clients[is_selected], self.numbers[is_selected])

    def merge(self, numbers: Mapping[int, float]) -> "PerClient":
        """Return the mapping with these numbers for the given clients, which may be new."""
        if not numbers:
            return self
        items = sorted(numbers.items())
        clients = np.array([k for k, _ in items], dtype=np.int64)
        values = np.array([value for _, value in items], dtype=np.float64)
        at = np.searchsorted(self.clients, clients)
        known = at < len(self.clients)
        known[known] = self.clients[at[known]] == clients[known]
        merged = self.numbers.copy()
        merged[at[known]] = values[known]
        if known.all():
            return PerClient(self.clients, merged)
        new = ~known
        return PerClient(
            np.insert(self.clients, at[new], clients[new]), np.insert(merged, at[new], values[new])
        )

    def __getitem__(self, client: int) -> float:
        index = int(np.searchsorted(self.clients, client))
        if index == len(self.clients) or self.clients[index] != client:
            raise KeyError(client)
        return float(self.numbers[index])

    def __iter__(self) -> Iterator[int]:
        return iter(self.clients.tolist())

    def __len__(self) -> int:
        return len(self.clients)


@dataclass(frozen=True)
class Population:
    """All registered clients, and their priority weights in the objective.

    ``priority`` has the clients with a priority weight lambda_k > 0; ``weights`` has each lambda_k
    that is not 1. The objective is F = sum_k lambda_k p_k F_k with p_k = D_k / sum_i lambda_i D_i.
    Only the server decides on priority: no reply changes it.

    If clients may join (``is_open``), those in ``required`` get priority, or all if it is None.
    ``held_out`` clients are hosted and evaluated like the others, but never train: they are not
    passed to any rule, and N does not count them.

    Raises
    ------
    ValueError
        If there is no priority client, a priority client is not among the clients, a weight is
        outside (0, 1] or belongs to a client without priority, or a held-out client is among the
        clients.
    """

    clients: tuple[int, ...]
    priority: frozenset[int]
    weights: Mapping[int, float] = field(default_factory=dict)
    is_open: bool = field(default=False, kw_only=True)
    required: frozenset[int] | None = field(default=None, kw_only=True)
    held_out: tuple[int, ...] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        if overlap := sorted(set(self.held_out).intersection(self.clients)):
            raise ValueError(f"held-out clients {overlap} are among the clients")
        if self.is_open:
            return
        missing = sorted(self.priority - set(self.clients))
        if missing:
            raise ValueError(f"priority clients {missing} are not among the clients")
        if not self.priority:
            raise ValueError("there must be at least one priority client")
        for client, weight in self.weights.items():
            if client not in self.priority or not 0 < weight <= 1:
                raise ValueError(
                    f"priority weights must be in (0, 1] and of priority clients, got {weight} "
                    f"for client {client}"
                )

    @classmethod
    def open(cls, priority: Iterable[int] | None = None) -> Self:
        """Return an empty population that clients may join.

        ``priority`` has the clients that get priority when they join; by default all.
        """
        required = None if priority is None else frozenset(priority)
        return cls((), frozenset(), is_open=True, required=required)

    @classmethod
    def from_size(cls, num_clients: int, priority: Iterable[int] | None = None) -> Self:
        """Return the clients 0 to ``num_clients`` - 1, with priority for all or for those given."""
        clients = tuple(range(num_clients))
        return cls(clients, frozenset(clients if priority is None else priority))

    def with_clients(self, registered: Iterable[int]) -> "Population":
        """Return the population with the clients that joined; the same object if none did.

        A client that joins has priority if it is in ``required``, or if that is None. Clients are
        ascending by id, in whatever order they joined.
        """
        new = sorted(set(registered) - set(self.clients))
        if not new:
            return self
        all_required = self.required is None
        required = self.required or frozenset()
        priority = self.priority | (frozenset(new) if all_required else required.intersection(new))
        return replace(self, clients=tuple(sorted((*self.clients, *new))), priority=priority)

    @cached_property
    def hosted_clients(self) -> tuple[int, ...]:
        """The clients that nodes host, including the held-out ones."""
        return tuple(sorted((*self.clients, *self.held_out))) if self.held_out else self.clients

    @cached_property
    def sorted_clients(self) -> IntArray:
        """All client ids, ascending, shape (N,): the order of the rules' arrays."""
        return np.sort(np.array(self.clients, dtype=np.int64))

    @cached_property
    def priority_weights(self) -> FloatArray:
        """lambda_k of all clients, ascending by id, shape (N,)."""
        clients = np.fromiter(self.priority, dtype=np.int64, count=len(self.priority))
        weights = np.isin(self.sorted_clients, clients).astype(np.float64)
        for client, weight in self.weights.items():
            weights[np.searchsorted(self.sorted_clients, client)] = weight
        return weights

    @cached_property
    def priority_clients(self) -> tuple[int, ...]:
        """The priority clients, ascending."""
        return tuple(sorted(self.priority))

    @cached_property
    def non_priority_clients(self) -> tuple[int, ...]:
        """The clients without priority, in the order of ``clients``."""
        return tuple(k for k in self.clients if k not in self.priority)

    def get_priority_weight(self, client: int) -> float:
        """Return lambda_k in [0, 1]."""
        return self.weights.get(client, 1.0) if client in self.priority else 0.0


@nan_equals_nan
@dataclass(frozen=True)
class Objective:
    """F(w_t) and the accuracy of w_t on the priority clients' training data.

    Both are NaN if no priority client reported. Comparisons with NaN are false, so that a gate
    stays closed. ``stale_clients`` has the clients that missed the evaluation: the objective uses
    their last evaluation, of an earlier model. ``missing_clients`` has the priority clients that
    missed it without an earlier evaluation: the objective leaves them out.
    """

    loss: float
    accuracy: float
    stale_clients: tuple[int, ...] = ()
    missing_clients: tuple[int, ...] = ()


@dataclass(frozen=True)
class ReplacementSample:
    """Priority clients sampled with replacement: their counts, and sum of D_i over all of P."""

    counts: Mapping[int, int]
    priority_data: float


@nan_equals_nan
@dataclass(frozen=True)
class RoundPlan:
    """The selected clients of a round, and the terms sent with the model.

    Parameters
    ----------
    clients : tuple of int
        The selected clients.
    epsilon : float, optional
        The gate's threshold. None: the rule has no gate, and every selected client trains.
    criterion : str
        The quantity that the gate compares.
    replacement_sample : ReplacementSample, optional
        Set if the priority clients were sampled with replacement.
    requests_loss : bool
        Whether the clients evaluate the model that they receive.
    clients_apply_gate : bool
        Whether clients receive the terms and decide whether to train. Otherwise all train, and the
        server alone decides.
    eligible : frozenset of int, optional
        The clients from which ``clients`` were selected; None for all.
    t : int
        The round, from 0.
    """

    clients: tuple[int, ...]
    epsilon: float | None = None
    criterion: str = "loss"
    replacement_sample: ReplacementSample | None = None
    requests_loss: bool = True
    clients_apply_gate: bool = True
    eligible: frozenset[int] | None = None
    t: int = 0

    @property
    def is_final(self) -> bool:
        """Whether no message before the round can change the plan."""
        return self.replacement_sample is None


@dataclass(frozen=True)
class KnownWeights:
    """The proportional weights of a round, if they are known before training.

    c_k = s a_k for all clients whose updates arrive. The replies determine the common factor s;
    a_k is ``by_client[k]`` (by default 1), times D_k with ``by_data``.
    """

    by_client: Mapping[int, float] = field(default_factory=dict)
    by_data: bool = False

    def compute_numerator(self, client: int, num_examples: float = 1.0) -> float:
        """Return a_k: nodes multiply updates by it, and the server divides by the sum of a_k.

        Without ``num_examples`` it lacks the factor D_k.
        """
        return float(self.by_client.get(client, 1.0)) * (num_examples if self.by_data else 1.0)


@dataclass(frozen=True, eq=False)
class ClientsUnderWay:
    """The clients that were asked and have not replied yet, ascending, shape (m,).

    ``concurrency`` is M, the largest number of clients that may be under way; None for all.
    ``blocked`` has the other clients on nodes that train: a node handles one message at a time.
    """

    clients: IntArray
    concurrency: int | None = None
    blocked: tuple[int, ...] = ()

    def find_free(self, clients: IntArray) -> IntArray:
        """Return those of ``clients`` that can be asked, ascending."""
        free = np.setdiff1d(clients, self.clients, assume_unique=True)
        if not self.blocked:
            return free
        return np.setdiff1d(free, np.array(self.blocked, dtype=np.int64), assume_unique=True)


@nan_equals_nan
@dataclass(frozen=True)
class ClientReports:
    """The clients' reports in earlier rounds, by client id.

    ``num_examples`` is the last reported D_k. ``losses`` is F_k of the model that the client last
    received. ``evaluated_losses`` is F_k of the newest model, for the clients that evaluated it
    after the previous round. ``available`` has the connected clients if only these are sampled;
    None for all. ``under_way`` has the clients that a round cannot ask, where late updates count;
    otherwise it is None.
    """

    num_examples: Mapping[int, float] = field(default_factory=dict)
    losses: Mapping[int, float] = field(default_factory=dict)
    evaluated_losses: Mapping[int, float] = field(default_factory=dict)
    available: frozenset[int] | None = None
    under_way: ClientsUnderWay | None = None


@dataclass(frozen=True)
class ClientUpdates:
    """The clients that trained, ascending by id. All arrays have shape (n,).

    ``priority_weight`` is lambda_k. ``loss`` and ``accuracy`` belong to the model RECEIVED, on the
    client's training data; NaN if not evaluated. ``registered`` has the clients whose nodes have
    registered so far, whether or not they trained, shape (N,).

    ``gram`` computes the inner products <Delta_i, Delta_j> of the updates, float64, shape (n, n);
    None if they are not available.

    ``declined`` has the clients that replied but declined to train. ``reported_examples`` is the
    last reported D_k, by client id. ``admitted_fractions`` is the fraction last admitted of each
    registered client, available or not (``fedquorum.rules.round.update_admitted_fractions``), shape
    (N,); None if everything is admitted.
    """

    client: IntArray
    priority_weight: FloatArray
    num_examples: FloatArray
    loss: FloatArray
    accuracy: FloatArray
    registered: IntArray
    gram: Callable[[], FloatArray] | None = None
    declined: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    reported_examples: Mapping[int, float] = field(default_factory=dict)
    admitted_fractions: FloatArray | None = None

    @property
    def effective_fractions(self) -> FloatArray:
        """The admitted fraction of each client in ``registered``, shape (N,)."""
        return (
            np.ones(len(self.registered))
            if self.admitted_fractions is None
            else self.admitted_fractions
        )

    @property
    def priority(self) -> BoolArray:
        """Whether each client has priority, lambda_k > 0."""
        return self.priority_weight > 0


@dataclass(frozen=True)
class Admission:
    """The fraction of each update that counts, in [0, 1], shape (n,).

    ``reason`` says why a fraction is less than 1; None if it is 1.
    """

    fraction: FloatArray
    reason: tuple[str | None, ...]


@dataclass(frozen=True)
class AggregationWeights:
    """The weights c_k of x_{t+1} = server_step(x_t, sum_k c_k Delta_k), shape (n,).

    c_k = a_k / B with ``numerator`` a_k, which is 0 for an update that was not admitted, and
    ``denominator`` B. If B is 0, no update counts. ``inclusion_mass`` is A, the sum of p_k over the
    admitted non-priority clients; theta is 1 / (1 + A). ``omega`` is the estimate of
    1 / (participation rate), by client id, for all registered clients.

    Rules that mix by losses also set the following fields, which are None for other rules:

    - ``response``: r_i, shape (n,), NaN if a client's loss did not count.
    - ``mixing``: p after this decision, shape (K,), by the population's clients ascending. If the
      rule stores no p between rounds, clients that did not report have 0.
    - ``decision_loss``: l(p) = -log(1 + <p, r>) of the p BEFORE this decision.
    - ``estimate``: the r in the decision loss, for all clients, doubly robust under sampling,
      shape (K,).

    Rules that use the updates themselves set ``update_norm``, |Delta_i|, shape (n,), NaN if an
    update did not count. ``reason`` says by client id why an admitted update has no weight, if that
    does not follow from the formula.
    """

    numerator: FloatArray
    denominator: float = 1.0
    inclusion_mass: float | None = None
    omega: Mapping[int, float] = field(default_factory=dict)
    response: FloatArray | None = None
    mixing: FloatArray | None = None
    decision_loss: float | None = None
    estimate: FloatArray | None = None
    update_norm: FloatArray | None = None
    reason: Mapping[int, str] = field(default_factory=dict)

    @cached_property
    def weight(self) -> FloatArray:
        """c_k, shape (n,)."""
        weight: FloatArray = (
            self.numerator / self.denominator
            if self.denominator > 0
            else np.zeros_like(self.numerator)
        )
        return weight
