"""What the rules exchange: plain frozen records of NumPy arrays, float64, sorted by client id.

Shapes: n is the number of clients whose usable updates arrived in this round.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self, TypeVar

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Admission",
    "BoolArray",
    "ByClient",
    "Call",
    "Draws",
    "FloatArray",
    "IntArray",
    "Objective",
    "PastStarts",
    "Population",
    "Proportions",
    "Responses",
    "Starts",
    "StateT",
    "Told",
    "Weights",
]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

StateT = TypeVar("StateT")


@dataclass(frozen=True, eq=False)
class ByClient(Mapping[int, float]):
    """A number of each client, as a mapping by client id without an object for each.

    Parameters
    ----------
    clients : IntArray
        The clients' ids, ascending, shape (m,).
    numbers : FloatArray
        Theirs, shape (m,).
    """

    clients: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    numbers: FloatArray = field(default_factory=lambda: np.zeros(0))

    @classmethod
    def of(cls, numbers: Mapping[int, float]) -> "ByClient":
        """Return the numbers of any mapping."""
        return numbers if isinstance(numbers, ByClient) else ByClient().updated(numbers)

    def at(self, clients: IntArray, default: float) -> FloatArray:
        """Return the numbers of these clients, ``default`` where there is none, shape (n,)."""
        if np.array_equal(clients, self.clients):
            return self.numbers
        if not len(self.clients):
            return np.full(len(clients), default)
        places = np.searchsorted(self.clients, clients).clip(max=len(self.clients) - 1)
        return np.where(self.clients[places] == clients, self.numbers[places], default)

    def updated(self, numbers: Mapping[int, float]) -> "ByClient":
        """Return the mapping with other numbers of some clients, who may be new."""
        if not numbers:
            return self
        given = sorted(numbers.items())
        clients = np.array([k for k, _ in given], dtype=np.int64)
        values = np.array([value for _, value in given], dtype=np.float64)
        new = ~np.isin(clients, self.clients)
        where = np.searchsorted(self.clients, clients[new])
        everyone = np.insert(self.clients, where, clients[new]) if new.any() else self.clients
        inserted = np.insert(self.numbers, where, 0.0) if new.any() else self.numbers.copy()
        inserted[np.searchsorted(everyone, clients)] = values
        return ByClient(everyone, inserted)

    def __getitem__(self, client: int) -> float:
        place = int(np.searchsorted(self.clients, client))
        if place == len(self.clients) or self.clients[place] != client:
            raise KeyError(client)
        return float(self.numbers[place])

    def __iter__(self) -> Iterator[int]:
        return iter(self.clients.tolist())

    def __len__(self) -> int:
        return len(self.clients)


@dataclass(frozen=True)
class Population:
    """All clients that the server knows, and how much each counts in the objective.

    ``priority`` are the clients with a priority weight lambda_k > 0, ``weights`` holds lambda_k
    where it is not 1. The objective is F = sum_k lambda_k p_k F_k with
    p_k = D_k / sum_i lambda_i D_i. Priority is the server's knowledge: nothing a client says
    changes it. Where clients may join (``joins``), those in ``awaited`` have priority, all if None.
    ``unseen`` are hosted by nodes like the others and evaluated with them, but never asked to
    train: no rule knows of them, and they are not counted in N.

    Raises
    ------
    ValueError
        If priority clients are unknown or none, a weight is outside (0, 1] or not theirs, or an
        unseen client is among the clients.
    """

    clients: tuple[int, ...]
    priority: frozenset[int]
    weights: Mapping[int, float] = field(default_factory=dict)
    joins: bool = field(default=False, kw_only=True)
    awaited: frozenset[int] | None = field(default=None, kw_only=True)
    unseen: tuple[int, ...] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        if both := sorted(set(self.unseen).intersection(self.clients)):
            raise ValueError(f"unseen clients {both} are among the clients")
        if self.joins:
            return
        unknown = sorted(self.priority - set(self.clients))
        if unknown:
            raise ValueError(f"priority clients {unknown} are not among the clients")
        if not self.priority:
            raise ValueError("there must be at least one priority client")
        for client, weight in self.weights.items():
            if client not in self.priority or not 0 < weight <= 1:
                raise ValueError(
                    f"priority weights must be in (0, 1] and of priority clients, got {weight} "
                    f"for client {client}"
                )

    @classmethod
    def of_joiners(cls, priority: Iterable[int] | None = None) -> Self:
        """Return a population of nobody yet, whose clients are those that join.

        ``priority`` names the clients that have priority once they join; all of them by default.
        """
        awaited = None if priority is None else frozenset(priority)
        return cls((), frozenset(), joins=True, awaited=awaited)

    @classmethod
    def of(cls, num_clients: int, priority: Iterable[int] | None = None) -> Self:
        """Return clients 0 to ``num_clients`` - 1, with the priority clients named, or all."""
        clients = tuple(range(num_clients))
        return cls(clients, frozenset(clients if priority is None else priority))

    def joined_by(self, known: Iterable[int]) -> "Population":
        """Return the population with the clients that joined; itself if there are none.

        A client that joins has priority where all clients have, or where it is named. The clients
        are ascending, in whichever order they joined.
        """
        new = sorted(set(known) - set(self.clients))
        if not new:
            return self
        everyone = self.awaited is None
        awaited = self.awaited or frozenset()
        priority = self.priority | (frozenset(new) if everyone else awaited.intersection(new))
        return replace(self, clients=tuple(sorted((*self.clients, *new))), priority=priority)

    @cached_property
    def hosted(self) -> tuple[int, ...]:
        """The clients that nodes host, those that are unseen among them."""
        return tuple(sorted((*self.clients, *self.unseen))) if self.unseen else self.clients

    @cached_property
    def ascending(self) -> IntArray:
        """All client ids, ascending, shape (N,): the order of the rules' arrays."""
        return np.sort(np.array(self.clients, dtype=np.int64))

    @cached_property
    def priority_weights(self) -> FloatArray:
        """lambda_k of all clients, ascending by id, shape (N,)."""
        clients = np.fromiter(self.priority, dtype=np.int64, count=len(self.priority))
        weights = np.isin(self.ascending, clients).astype(np.float64)
        for client, weight in self.weights.items():
            weights[np.searchsorted(self.ascending, client)] = weight
        return weights

    @cached_property
    def priority_clients(self) -> tuple[int, ...]:
        """The priority clients, ascending."""
        return tuple(sorted(self.priority))

    @cached_property
    def others(self) -> tuple[int, ...]:
        """The clients without priority, in the order of ``clients``."""
        return tuple(k for k in self.clients if k not in self.priority)

    def priority_weight(self, client: int) -> float:
        """Return lambda_k in [0, 1]."""
        return self.weights.get(client, 1.0) if client in self.priority else 0.0


@dataclass(frozen=True)
class Objective:
    """F(w_t) and the accuracy of w_t on the priority clients' training data.

    NaN where no priority client answered; comparisons with NaN are false, so no gate opens.
    ``stale`` are the clients that missed the measuring: what counts is what they last measured, of
    an earlier model.
    """

    loss: float
    accuracy: float
    stale: tuple[int, ...] = ()


@dataclass(frozen=True)
class Draws:
    """Priority clients drawn with replacement: how often each, and sum of D_i over all of P."""

    count: Mapping[int, int]
    priority_data: float


@dataclass(frozen=True)
class Call:
    """Who is asked in a round, and the terms that travel with the model.

    ``epsilon`` None means that the rule has no gate: every client asked trains. ``draws`` is
    set where the priority clients were drawn with replacement. With ``keeps_model`` every client
    trains and evaluates a model of its own, which starts as the one broadcast and stays with it.
    Without ``measures_loss`` the clients train without measuring what they received. Without
    ``clients_decide`` the clients do not know the terms and all train: the server decides alone.
    ``pool`` are those among whom the clients were chosen, None for all. ``t`` is the round, from 0.
    ``candidates`` is set where losses chose the clients: by candidate, in the order of drawing, the
    loss that counted, NaN if there was none.
    """

    clients: tuple[int, ...]
    epsilon: float | None = None
    criterion: str = "loss"
    draws: Draws | None = None
    keeps_model: bool = False
    measures_loss: bool = True
    clients_decide: bool = True
    pool: frozenset[int] | None = None
    t: int = 0
    candidates: Mapping[int, float] | None = None

    @property
    def settled(self) -> bool:
        """Whether it stays as it is, whatever clients tell before the round."""
        return self.draws is None and self.candidates is None


@dataclass(frozen=True)
class Proportions:
    """What a round's weights are proportional to, where that is known before anybody trains.

    c_k = s a_k for all clients whose update arrives, with one s that only the replies tell and
    a_k = ``of_client[k]`` (1 where not given), times D_k with ``by_data``.
    """

    of_client: Mapping[int, float] = field(default_factory=dict)
    by_data: bool = False

    def of(self, client: int) -> float:
        """Return the client's proportion, before its data."""
        return float(self.of_client.get(client, 1.0))

    def factor(self, client: int, num_examples: float) -> float:
        """Return a_k: nodes multiply updates with it, and the server divides by their sum."""
        return self.of(client) * (num_examples if self.by_data else 1.0)


@dataclass(frozen=True)
class PastStarts:
    """That clients train from models of earlier rounds, which the server keeps.

    ``longest_update`` is the largest norm of the combined update, over all trained arrays; a longer
    one is shortened to it. ``memory_dir`` is the folder of the models, None for memory.
    """

    longest_update: float = math.inf
    memory_dir: str | None = None


@dataclass(frozen=True)
class Starts:
    """From which model each client trains in a round: w_i with i = ``number``, ascending, (N,).

    w_0 is the first model of the run, and w_i with i = ``present`` the one of the round.
    """

    number: IntArray
    present: int


@dataclass(frozen=True)
class Told:
    """What the clients said of themselves in earlier rounds, by client id.

    ``examples`` is D_k as last told; ``losses`` is F_k, of the model that the client last received.
    ``measured`` is F_k of the newest model, of the clients that measured it after the round before.
    ``present`` are the clients that are connected, where only these are sampled; None for all.
    """

    examples: Mapping[int, float] = field(default_factory=dict)
    losses: Mapping[int, float] = field(default_factory=dict)
    measured: Mapping[int, float] = field(default_factory=dict)
    present: frozenset[int] | None = None


@dataclass(frozen=True)
class Responses:
    """The clients that trained, ascending by id. All arrays have shape (n,).

    ``priority_weight`` is lambda_k. ``loss`` and ``accuracy`` are of the model RECEIVED, on the
    client's training data, NaN where not measured. ``known`` are the clients whose nodes the
    server has met so far, whether or not they trained, shape (N,).

    ``gram`` returns the inner products <Delta_i, Delta_j> of the updates, float64, shape (n, n);
    it is computed when asked for. None where nobody provides it.

    ``silent`` are the clients that answered only that they stay silent. ``examples`` is D_k as last
    told, by client id. ``covered`` is what is admitted of each of ``known``, there or not, as far
    as it is known (``fedquorum.round.cover``), shape (N,), None for all of everyone.
    """

    client: IntArray
    priority_weight: FloatArray
    num_examples: FloatArray
    loss: FloatArray
    accuracy: FloatArray
    known: IntArray
    gram: Callable[[], FloatArray] | None = None
    silent: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    examples: Mapping[int, float] = field(default_factory=dict)
    covered: FloatArray | None = None

    @property
    def coverage(self) -> FloatArray:
        """What is admitted of each of ``known``, shape (N,)."""
        return np.ones(len(self.known)) if self.covered is None else self.covered

    @property
    def priority(self) -> BoolArray:
        """Whether each client has priority, lambda_k > 0."""
        return self.priority_weight > 0


@dataclass(frozen=True)
class Admission:
    """Which share of each update counts, in [0, 1], shape (n,): 1 all of it, 0 none.

    ``reason`` says why a share is less than 1 (None where it is 1).
    """

    share: FloatArray
    reason: tuple[str | None, ...]


@dataclass(frozen=True)
class Weights:
    """How much each update counts, shape (n,): x_{t+1} = server_step(x_t, sum_k c_k Delta_k).

    c_k = a_k / B with ``factor`` a_k, 0 where not admitted, and ``divisor`` B: the sum of
    a_k Delta_k is divided once. Where B is 0 nothing counts. ``inclusion_mass`` is A, what the
    gate adds to the priority clients' 1: the sum of p_k over the admitted non-priority clients.
    theta is 1 / (1 + A). ``omega`` is what a rule estimates of 1 / (participation rate), by
    client id, of all known clients.

    Rules that mix by losses also tell: ``response``, r_i, shape (n,), NaN where a client's loss
    did not count; ``mixing``, p after this decision, shape (K,), by the population's clients
    ascending, 0 for clients not heard where the rule remembers no p; ``decision_loss``,
    l(p) = -log(1 + <p, r>) of the p held BEFORE this decision; ``estimate``, the r in it, of all
    clients, doubly robust under sampling, shape (K,). All None elsewhere.

    Rules that look at the updates themselves tell ``update_norm``, |Delta_i|, shape (n,), NaN
    where an update did not count. ``reason`` says by client id why an admitted update has no
    weight, where that does not follow from the formula alone.
    """

    factor: FloatArray
    divisor: float = 1.0
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
            self.factor / self.divisor if self.divisor > 0 else np.zeros_like(self.factor)
        )
        return weight
