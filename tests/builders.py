"""Build clients' outcomes and drive rounds, for the tests of the rules.

Everything here is a named builder or driver; test files never import each other. Shapes: n clients
that sent an update, N clients in all, T rounds, d parameters.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from fedquorum.rules.composition import RuleSet
from fedquorum.rules.decisions import DecisionTrace
from fedquorum.rules.participation import PARTICIPATIONS, correct_weighting
from fedquorum.rules.round import (
    ClientOutcome,
    RoundDecision,
    RoundOutcomes,
    RoundState,
    decide_round,
)
from fedquorum.rules.rule import RunContext
from fedquorum.rules.selection import AllClients, EpsilonGate, Selection
from fedquorum.rules.types import (
    AggregationWeights,
    ClientUpdates,
    FloatArray,
    Objective,
    Population,
    RoundPlan,
)
from fedquorum.rules.weighting import Weighting
from numpy.typing import ArrayLike

OBJECTIVE = Objective(loss=1.0, accuracy=0.5)
"""The default F(w_t) and its accuracy."""


# --- outcomes of clients ------------------------------------------------------------------------


NEEDED_WORDS: Mapping[str, tuple[str, ...]] = {"maxfl": ("strategy.requirement=1",)}
"""The required overrides of strategies with a parameter without default."""


def make_client_updates(
    loss: ArrayLike,
    *,
    client: Sequence[int] | None = None,
    priority: ArrayLike = 1.0,
    data: ArrayLike = 10.0,
    accuracy: ArrayLike = 0.5,
    known: int | Sequence[int] | None = None,
    updates: FloatArray | None = None,
    **others: Any,
) -> ClientUpdates:
    """Return n clients' updates in a round.

    Parameters
    ----------
    loss : array_like
        F_k, shape (n,).
    client : sequence of int, optional
        Their ids, ascending; by default 0 to n - 1.
    priority, data, accuracy : array_like
        lambda_k, D_k and the accuracies, shape (n,), or one number for all.
    known : int or sequence of int, optional
        The registered clients, or how many from 0; by default those with an update.
    updates : FloatArray, optional
        Delta_k, shape (n, d); sets the inner products.
    **others : Any
        Other fields of ``ClientUpdates``.
    """
    losses = np.array(loss, dtype=np.float64)
    n = len(losses)

    def broadcast(values: ArrayLike) -> FloatArray:
        return np.broadcast_to(np.array(values, dtype=np.float64), n).copy()

    clients = np.array(range(n) if client is None else client, dtype=np.int64)
    registered = clients if known is None else np.arange(known) if isinstance(known, int) else known
    return ClientUpdates(
        client=clients,
        priority_weight=broadcast(priority),
        num_examples=broadcast(data),
        loss=losses,
        accuracy=broadcast(accuracy),
        registered=np.array(registered, dtype=np.int64),
        gram=None if updates is None else lambda: updates @ updates.T,
        **others,
    )


def make_participants(clients: Sequence[int], known: int) -> ClientUpdates:
    """Return clients that trained without metrics; the first ``known`` clients are registered."""
    nothing = np.full(len(clients), math.nan)
    return make_client_updates(nothing, client=clients, accuracy=math.nan, known=known)


def make_updates_from_losses(losses: Mapping[int, float]) -> ClientUpdates:
    """Return the updates of clients with these losses, by client id ascending."""
    return make_client_updates(list(losses.values()), client=list(losses), known=len(losses))


def draw_losses(size: int, rounds: int, sample: int, seed: int = 0) -> list[dict[int, float]]:
    """Return the falling losses of samples of clients, some of which are always higher."""
    rng = np.random.default_rng([seed, size, sample])
    level = rng.lognormal(0.0, 1.0, size)
    return [
        {
            int(k): float(level[k] * np.exp(0.3 * rng.normal() - 0.01 * t))
            for k in np.sort(rng.choice(size, sample, replace=False))
        }
        for t in range(rounds)
    ]


def make_trained_outcome(
    client: int, *, data: float = 10.0, loss: float | None = None
) -> ClientOutcome:
    """Return the outcome of a client that trained."""
    accuracy = None if loss is None else 0.5
    return ClientOutcome(client, "trained", num_examples=data, loss=loss, accuracy=accuracy)


def make_declined_outcome(client: int) -> ClientOutcome:
    """Return the outcome of a client that declined."""
    return ClientOutcome(client, "declined")


def make_unavailable_outcome(client: int) -> ClientOutcome:
    """Return the outcome of a selected client that did not reply."""
    return ClientOutcome(client, "unavailable", "no reply")


def make_round_outcomes(
    *each: ClientOutcome,
    known: int | Sequence[int] | None = None,
    updates: FloatArray | None = None,
) -> RoundOutcomes:
    """Return the outcomes of a round, ascending by client.

    ``known`` and ``updates`` are as in ``make_client_updates``; only clients that trained have
    updates.
    """
    ordered = tuple(sorted(each, key=lambda outcome: outcome.client))
    clients = [outcome.client for outcome in ordered]
    registered = clients if known is None else range(known) if isinstance(known, int) else known
    gram = None if updates is None else lambda: updates @ updates.T
    return RoundOutcomes(ordered, np.array(registered, dtype=np.int64), gram)


# --- single weightings --------------------------------------------------------------------------


def weigh(
    rule: Weighting[Any], given: ClientUpdates, size: int | None = None, share: ArrayLike = 1.0
) -> AggregationWeights:
    """Return a rule's weights in the first round; ``size`` is N, by default n."""
    n = len(given.client)
    state = rule.init(Population.from_size(n if size is None else size))
    admitted = np.broadcast_to(np.array(share, dtype=np.float64), n).copy()
    return rule.weigh(state, RoundPlan(tuple(given.client.tolist())), given, admitted)[1]


def weigh_rounds(
    rule: Weighting[Any],
    history: Sequence[ClientUpdates],
    size: int,
    *,
    asked: int | Sequence[int] | None = None,
    state: Any = None,
) -> tuple[Any, list[AggregationWeights]]:
    """Return a rule's last state and its weights in every round; all updates are admitted.

    Parameters
    ----------
    rule : Weighting
        The rule.
    history : sequence of ClientUpdates
        The updates of each round.
    size : int
        N.
    asked : int or sequence of int, optional
        The selected clients of every round, or how many from 0; by default those with an update.
    state : Any
        The state before the first round; by default the initial one.
    """
    state, all_weights = rule.init(Population.from_size(size)) if state is None else state, []
    for given in history:
        selected = given.client.tolist() if asked is None else asked
        plan = RoundPlan(tuple(range(selected) if isinstance(selected, int) else selected))
        state, weights = rule.weigh(state, plan, given, np.ones(len(given.client)))
        all_weights.append(weights)
    return state, all_weights


def compute_mixing_path(
    rule: Weighting[Any],
    history: Sequence[Mapping[int, float]],
    size: int,
    asked: int | None = None,
) -> tuple[FloatArray, list[AggregationWeights]]:
    """Return p after every round, shape (T, N), and the weights; ``history`` holds the losses.

    ``asked`` is how many clients a round selects, all by default.
    """
    given = [make_updates_from_losses(losses) for losses in history]
    _, all_weights = weigh_rounds(rule, given, size, asked=size if asked is None else asked)
    return np.array([weights.mixing for weights in all_weights]), all_weights


def assert_on_the_simplex(mixing: FloatArray) -> None:
    """Fail unless coefficients are finite, >= 0 and sum to 1."""
    assert np.isfinite(mixing).all()
    assert mixing.min() >= 0
    np.testing.assert_allclose(mixing.sum(), 1.0, rtol=0, atol=1e-12)


# --- combined rules -----------------------------------------------------------------------------


def build_corrected_weighting(
    base: Weighting[Any], participation: str = "none", **options: Any
) -> Weighting[Any]:
    """Return a weighting with a correction for participation, by its key."""
    if participation == "none":
        return base
    return correct_weighting(PARTICIPATIONS[participation], base, options, RunContext())


@dataclass(frozen=True)
class World:
    """Clients whose outcomes depend on nothing but a gate.

    Parameters
    ----------
    population : Population
        The clients 0 to N - 1.
    data, loss : FloatArray
        D_k and F_k, shape (N,).
    objective : Objective
        F(w_t) of every round.
    updates : FloatArray or None
        Delta_k of every round, shape (N, d).
    """

    population: Population
    data: FloatArray
    loss: FloatArray
    objective: Objective = OBJECTIVE
    updates: FloatArray | None = None

    def make_outcome(self, client: int, plan: RoundPlan) -> ClientOutcome:
        """Return the outcome of an available client: an update, or declined by a gate."""
        limit = self.objective.loss + (math.inf if plan.epsilon is None else plan.epsilon)
        if client not in self.population.priority and self.loss[client] > limit:
            return make_declined_outcome(client)
        return make_trained_outcome(client, data=self.data[client], loss=self.loss[client])

    def make_outcomes(self, plan: RoundPlan, available: ArrayLike) -> RoundOutcomes:
        """Return a round's outcomes; ``available`` is a mask of the clients, shape (N,)."""
        is_available = np.array(available, dtype=np.bool_)
        outcomes = [
            self.make_outcome(k, plan) if is_available[k] else make_unavailable_outcome(k)
            for k in plan.clients
        ]
        usable = [outcome.client for outcome in outcomes if outcome.is_usable]
        updates = None if self.updates is None else self.updates[usable]
        return make_round_outcomes(*outcomes, known=len(self.data), updates=updates)


# Clients 0 and 1 have priority. Of the others, 2 and 3 are aligned at epsilon 0.5; 4 declines.
FIVE = World(
    Population.from_size(5, [0, 1]),
    data=np.array([30.0, 10.0, 20.0, 40.0, 100.0]),
    loss=np.array([1.0, 1.2, 0.9, 1.1, 9.0]),
)
GATE = EpsilonGate(num_rounds=10**6, epsilon=0.5, warmup_fraction=0.0)


def decide_rounds(
    rules: RuleSet, world: World, presence: ArrayLike, state: RoundState | None = None
) -> Iterator[RoundDecision]:
    """Drive rules through rounds with ``fedquorum.rules.round.decide_round``, and yield them.

    Parameters
    ----------
    rules : RuleSet
    world : World
        The clients; all have reported their amounts of data.
    presence : array_like
        A mask of the available clients, shape (T, N).
    state : RoundState, optional
        The state before the first round; by default the initial one.
    """
    if state is None:
        state = RoundState.initial(rules, world.population)
        reports = replace(state.reports, num_examples=dict(enumerate(world.data.tolist())))
        state = replace(state, reports=reports)
    for t, available in enumerate(np.atleast_2d(np.array(presence))):
        plan = rules.plan_round(t, world.population, state.reports)
        decision = decide_round(
            rules,
            world.population,
            state,
            server_round=t + 1,
            plan=plan,
            objective=world.objective,
            outcomes=world.make_outcomes(plan, available),
        )
        yield decision
        state = decision.next_state


def compute_round_weights(
    weighting: Weighting[Any],
    world: World,
    presence: ArrayLike,
    selection: Selection | None = None,
) -> tuple[FloatArray, FloatArray]:
    """Return every client's weight and p in each round, shapes (T, N)."""
    rules = RuleSet(selection or AllClients(), weighting)
    shape = np.shape(np.atleast_2d(presence))
    weight, mixing = np.zeros(shape), np.full(shape, math.nan)
    for t, decision in enumerate(decide_rounds(rules, world, presence)):
        weight[t, list(decision.clients)] = decision.weight
        if decision.report.mixing is not None:
            mixing[t] = decision.report.mixing
    return weight, mixing


def parse_presence(size: int, *rows: str) -> FloatArray:
    """Return availability by rounds, shape (T, ``size``), from digits: the available clients."""
    return np.array([[float(str(k) in row) for k in range(size)] for row in rows])


def decide_first_round(
    weighting: Weighting[Any], given: ClientUpdates, size: int, selection: Selection | None = None
) -> DecisionTrace:
    """Return the trace of a first round, for explanations."""
    population = Population.from_size(size)
    rules = RuleSet(selection or AllClients(), weighting)
    trained = [
        make_trained_outcome(k, data=d, loss=f)
        for k, d, f in zip(
            given.client.tolist(), given.num_examples.tolist(), given.loss.tolist(), strict=True
        )
    ]
    outcomes = replace(
        make_round_outcomes(*trained, known=given.registered.tolist()), gram=given.gram
    )
    state = RoundState.initial(rules, population)
    plan = replace(rules.plan_round(0, population, state.reports), clients=tuple(range(size)))
    return decide_round(
        rules, population, state, server_round=1, plan=plan, objective=OBJECTIVE, outcomes=outcomes
    ).trace
