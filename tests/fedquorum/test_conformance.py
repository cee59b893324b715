"""Properties of all rules: each of them has a row in ``tests/fedquorum/rows.py``.

The tests compare the rows with the tables in the code. The tests of a rule's formula are in its
package, such as ``tests/fedquorum/rules/weighting``.
"""

import io
import math
import pickle
from collections.abc import Mapping
from dataclasses import FrozenInstanceError, fields, is_dataclass, replace
from typing import Any

import numpy as np
import pytest
from fedquorum.errors import ParameterError
from fedquorum.registry import ALL_SELECTIONS, ALL_WEIGHTINGS
from fedquorum.rules.description import Goal
from fedquorum.rules.participation import PARTICIPATIONS, Participation
from fedquorum.rules.regret import compute_regret_bound
from fedquorum.rules.rule import Rule, RunContext, get_parameters
from fedquorum.rules.selection import Selection
from fedquorum.rules.server_optimizer import SERVER_OPTIMIZERS, ServerOptimizer
from fedquorum.rules.state_arrays import expand_state, from_arrays, to_arrays
from fedquorum.rules.types import (
    AggregationWeights,
    ClientReports,
    ClientUpdates,
    FloatArray,
    IntArray,
    Objective,
    Population,
    RoundPlan,
)
from fedquorum.rules.weighting import (
    AAggFFDWeighting,
    AFLWeighting,
    AverageAll,
    AverageParticipating,
    DataFraction,
    Weighting,
)
from fedquorum.rules.weighting.base import find_contradictions

from tests.builders import (
    assert_on_the_simplex,
    decide_first_round,
    make_client_updates,
    weigh_rounds,
)
from tests.fedquorum.rows import (
    DATA,
    NUM_REPORTING,
    RATES,
    ROWS,
    SIZE,
    Row,
    expect_one,
    select_rows,
)

TABLES = (ALL_SELECTIONS, ALL_WEIGHTINGS, PARTICIPATIONS, SERVER_OPTIMIZERS)


def test_every_rule_has_one_row() -> None:
    """In the order of the tables of the code."""
    assert [row.rule for row in ROWS] == [rule for table in TABLES for rule in table.values()]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.rule.__name__)
def test_a_parameter_is_refused_outside_its_range(row: Row) -> None:
    """Each has an allowed default; the error has its name, the allowed values and the value."""
    declared = get_parameters(row.rule)
    assert {item.name for item in declared} == row.refused.keys()
    for item in declared:
        allowed, value = item.metadata["allowed"], row.refused[item.name]
        assert item.default is None or allowed.contains(item.default)
        with pytest.raises(ParameterError) as caught:
            row.rule(**{**row.supplied, item.name: value})
        error = caught.value
        assert (error.parameter, error.allowed, error.got) == (item.name, allowed.describe(), value)
        assert str(error) == f"{item.name} must be {allowed.describe()}, got {value!r}"


MADE = [(row, rule) for row in ROWS for rule in row.made]
made = pytest.mark.parametrize("rule", [rule for _, rule in MADE], ids=repr)


@made
def test_a_rule_is_a_frozen_value(rule: Rule) -> None:
    """It is compared, hashed and pickled by its fields, and never changes."""
    assert is_dataclass(rule)
    assert replace(rule) == rule
    assert hash(replace(rule)) == hash(rule)
    assert pickle.loads(pickle.dumps(rule)) == rule  # noqa: S301
    for item in fields(rule):
        with pytest.raises(FrozenInstanceError):
            setattr(rule, item.name, getattr(rule, item.name))


@made
def test_a_rule_describes_itself(rule: Rule) -> None:
    """Its summary is one line with a full stop; its key is a word that settings accept."""
    assert rule.description.summary.endswith(".")
    assert "\n" not in rule.description.summary
    assert rule.description.key.replace("_", "").isalpha()
    assert rule.description.key.islower()


MAX_MEMBERS = 12


@made
def test_a_rule_can_be_learned_in_one_sitting(rule: Any) -> None:
    """Beside its parameters it has few public members, inherited ones counted."""
    assert is_dataclass(rule)
    parameters = {item.name for item in fields(rule)}
    members = {name for name in dir(rule) if not name.startswith("_")} - parameters
    assert len(members) <= MAX_MEMBERS, sorted(members)


@made
def test_a_rule_is_made_of_its_parameters_and_the_run(rule: Any) -> None:
    """``from_options`` is the only way from settings to rules."""
    options = {item.name: getattr(rule, item.name) for item in get_parameters(type(rule))}
    context = RunContext(num_rounds=10, rates=dict(enumerate(RATES)), clients=tuple(range(SIZE)))
    again = type(rule).from_options(options, context)
    for name, value in options.items():
        given = getattr(again, name)
        assert given == value or (value is None and given == context.rates)


# --- weightings, and corrections of them --------------------------------------------------------


def list_corrections() -> list[tuple[Row, Weighting[Any]]]:
    """Return every correction of every weighting that has a form over a fixed population."""
    return [
        (row, replace(rule, base=base.with_fixed_denominator()))
        for row in ROWS
        if row.rule in PARTICIPATIONS.values()
        for rule in row.made[-1:]
        for base in (DataFraction(), AFLWeighting(0.05), AAggFFDWeighting())
    ]


WEIGHINGS = [(row, rule) for row in select_rows(Weighting) for rule in row.made]
FULL = [*WEIGHINGS, *list_corrections()]
ALL = [(row, rule, SIZE) for row, rule in FULL] + [
    (row, rule, NUM_REPORTING) for row, rule in FULL if not rule.traits.requires_full_participation
]
weighting_cases = pytest.mark.parametrize(
    ("row", "rule", "num_reporting"),
    ALL,
    ids=[f"{rule!r}-{num_reporting}" for _, rule, num_reporting in ALL],
)


def draw_rounds(
    count: int, num_reporting: int, *, seed: int = 0, spread: float = 1.0
) -> list[ClientUpdates]:
    """Return the updates of samples of clients: losses, constant data, updates in R^12."""
    rng = np.random.default_rng(seed)
    level, data = rng.normal(size=SIZE), rng.integers(1, 100, SIZE)
    history = []
    for _ in range(count):
        client = np.sort(rng.choice(SIZE, num_reporting, replace=False))
        history.append(
            make_client_updates(
                np.exp(spread * (level[client] + 0.2 * rng.normal(size=num_reporting))),
                client=client.tolist(),
                data=data[client],
                known=SIZE,
                updates=rng.normal(size=(num_reporting, 12)) + 0.3,
                reported_examples=dict(enumerate(data.tolist())),
            )
        )
    return history


def weigh_history(
    rule: Weighting[Any], history: list[ClientUpdates], state: Any = None
) -> tuple[Any, list[AggregationWeights]]:
    return weigh_rounds(rule, history, SIZE, state=state)


def restrict_to_reporting(weights: AggregationWeights, given: ClientUpdates) -> FloatArray:
    """Return p of the reporting clients, or the weights of a rule without p."""
    if weights.mixing is None or weights.mixing[given.client].sum() == 0:
        return weights.weight
    mixing = weights.mixing[given.client]
    return np.asarray(mixing / mixing.sum())


@weighting_cases
def test_weights_are_on_the_simplex_or_sum_to_the_declared_total(
    row: Row, rule: Weighting[Any], num_reporting: int
) -> None:
    """p sums to 1 over all and over the reporting clients; other weights to the row's total."""
    history = draw_rounds(30, num_reporting)
    for weights, given in zip(weigh_history(rule, history)[1], history, strict=True):
        assert np.isfinite(weights.weight).all()
        assert weights.weight.min() >= 0
        if weights.mixing is not None:
            assert weights.mixing.shape == (SIZE,)
            assert_on_the_simplex(weights.mixing)
        if row.total is expect_one:
            assert_on_the_simplex(restrict_to_reporting(weights, given))
            if weights.update_norm is None:
                np.testing.assert_allclose(
                    weights.weight, restrict_to_reporting(weights, given), atol=1e-12
                )
        elif getattr(rule, "base", None) in (None, AverageAll()):
            np.testing.assert_allclose(weights.weight.sum(), row.total(weights, given), rtol=1e-12)


@weighting_cases
def test_finite_for_losses_of_any_size(row: Row, rule: Weighting[Any], num_reporting: int) -> None:
    """Losses from 1e-12 to 1e6 within a round, all tiny, all huge, and exact zeros."""
    rng = np.random.default_rng(1)
    rounds: list[list[float]] = [
        *(10.0 ** rng.uniform(-12, 6, (10, num_reporting))).tolist(),
        [1e-12] * num_reporting,
        [1e6] * num_reporting,
        [0.0] * num_reporting,
        [1e6, *[1e-12] * (num_reporting - 1)],
        [0.0, *[1e6] * (num_reporting - 1)],
        [1e-12, *[0.0] * (num_reporting - 1)],
    ]
    history = [
        make_client_updates(
            losses,
            known=SIZE,
            updates=rng.normal(size=(num_reporting, 4)) * scale,
            reported_examples=dict.fromkeys(range(SIZE), 10.0),
        )
        for losses in rounds
        for scale in (1e-8, 1e8)
    ]
    for weights, given in zip(weigh_history(rule, history)[1], history, strict=True):
        assert np.isfinite(weights.weight).all()
        assert weights.mixing is None or np.isfinite(weights.mixing).all()
        if row.total is expect_one:
            assert_on_the_simplex(restrict_to_reporting(weights, given))


def relabel_updates(given: ClientUpdates, name: IntArray) -> tuple[ClientUpdates, IntArray]:
    """Return updates with the id name[k] for client k, and the order of the old ones in them."""
    order = np.argsort(name[given.client])
    assert given.gram is not None
    gram = given.gram()[np.ix_(order, order)]
    return replace(
        given,
        client=name[given.client][order],
        priority_weight=given.priority_weight[order],
        num_examples=given.num_examples[order],
        loss=given.loss[order],
        accuracy=given.accuracy[order],
        gram=lambda: gram,
        reported_examples={int(name[k]): data for k, data in given.reported_examples.items()},
    ), order


def relabel_rule(rule: Any, name: IntArray) -> Weighting[Any]:
    """Return a rule with its parameters by client in the order of the new ids."""
    changes: dict[str, Any] = {}
    for item in get_parameters(type(rule)):
        value = getattr(rule, item.name)
        if isinstance(value, tuple) and len(value) == SIZE:
            changes[item.name] = tuple(value[k] for k in np.argsort(name).tolist())
    renamed: Weighting[Any] = replace(rule, **changes)
    return renamed


@weighting_cases
def test_known_weights_equal_the_numerators(
    row: Row, rule: Weighting[Any], num_reporting: int
) -> None:
    """The weights known before training equal the numerators to the bit; c_k = a_k / B.

    Nodes multiply their sums by the former, and the server multiplies single updates by the latter.
    """
    state = rule.init(Population.from_size(SIZE))
    for given in draw_rounds(6, num_reporting):
        clients = given.client.tolist()
        plan = RoundPlan(tuple(clients))
        proportions = rule.compute_known_weights(state, plan)
        state, weights = rule.weigh(state, plan, given, np.ones(len(clients)))
        if weights.denominator > 0:
            quotients = [factor / weights.denominator for factor in weights.numerator.tolist()]
            assert weights.weight.tolist() == quotients
        if proportions is not None:
            data = given.num_examples.tolist()
            numerators = [
                proportions.compute_numerator(*each) for each in zip(clients, data, strict=True)
            ]
            assert numerators == weights.numerator.tolist()
            assert min(numerators) > 0


def test_some_weights_are_computed_before_training() -> None:
    """Those that depend on participation and amounts of data alone, and not on losses.

    Otherwise the test above would compare nothing.
    """
    plan = RoundPlan(tuple(range(SIZE)))
    known = {
        type(rule).__name__
        for _, rule in FULL
        if rule.compute_known_weights(rule.init(Population.from_size(SIZE)), plan) is not None
    }
    assert known == {
        "DataFraction",
        "AverageParticipating",
        "AverageAll",
        "FedAUCorrection",
        "EmpiricalCorrection",
        "KnownRatesCorrection",
    }


@weighting_cases
def test_permutation_equivariant(row: Row, rule: Weighting[Any], num_reporting: int) -> None:
    """Other ids for the same clients give the same weights under those ids."""
    history = draw_rounds(15, num_reporting, seed=2)
    name = np.random.default_rng(3).permutation(SIZE)
    others = [relabel_updates(given, name) for given in history]
    decided = weigh_history(rule, history)[1]
    decided_others = weigh_history(relabel_rule(rule, name), [other for other, _ in others])[1]
    for weights, other, (_, order) in zip(decided, decided_others, others, strict=True):
        np.testing.assert_allclose(other.weight, weights.weight[order], atol=1e-8)
        if weights.mixing is not None:
            assert other.mixing is not None
            np.testing.assert_allclose(other.mixing[name], weights.mixing, atol=1e-8)


def save_and_restore(rule: Weighting[Any], state: Any) -> Any:
    """Return a state after a round trip through a file of plain arrays."""
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **to_arrays(state, "w"))
    buffer.seek(0)
    read = dict(np.load(buffer, allow_pickle=False).items())
    return from_arrays(rule.init(Population.from_size(SIZE)), "w", read)


@weighting_cases
def test_a_restored_state_gives_the_same_decisions(
    row: Row, rule: Weighting[Any], num_reporting: int
) -> None:
    """A state is plain arrays: restored from a file it gives the same decisions, to the bit."""
    history = draw_rounds(12, num_reporting, seed=4)
    state, _ = weigh_history(rule, history[:7])
    expected = weigh_history(rule, history[7:], state)[1]
    got = weigh_history(rule, history[7:], save_and_restore(rule, state))[1]
    for first, other in zip(expected, got, strict=True):
        assert first.weight.tolist() == other.weight.tolist()


@weighting_cases
def test_no_look_into_the_future(row: Row, rule: Weighting[Any], num_reporting: int) -> None:
    """Decisions do not depend on later rounds, and l_t uses a p decided before round t."""
    history, other = draw_rounds(12, num_reporting, seed=5), draw_rounds(12, num_reporting, seed=6)
    decided = weigh_history(rule, history)[1]
    for cut in (1, 6, 11):
        changed = weigh_history(rule, [*history[:cut], *other[cut:]])[1]
        for first, same in zip(decided[:cut], changed[:cut], strict=True):
            assert first.weight.tolist() == same.weight.tolist()
            assert first.decision_loss == same.decision_loss
        if rule.traits.weights_by_data or rule.traits.needs_losses:
            assert decided[cut].weight.tolist() != changed[cut].weight.tolist()


@weighting_cases
def test_the_state_passed_in_is_not_changed(
    row: Row, rule: Weighting[Any], num_reporting: int
) -> None:
    """A rule is a function: the same state twice gives the same decision twice."""
    history = draw_rounds(6, num_reporting, seed=7)
    state, _ = weigh_history(rule, history[:5])
    before = {name: array.copy() for name, array in to_arrays(state, "w").items()}
    first, second = (weigh_history(rule, history[5:], state)[1][0] for _ in range(2))
    assert first.weight.tolist() == second.weight.tolist()
    for name, array in to_arrays(state, "w").items():
        np.testing.assert_array_equal(array, before[name])


@weighting_cases
def test_a_round_without_updates(row: Row, rule: Weighting[Any], num_reporting: int) -> None:
    """A round without replies has no weights; it does not affect a rule without omega."""
    history = draw_rounds(4, num_reporting, seed=8)
    state, _ = weigh_history(rule, history[:3])
    plan = RoundPlan(tuple(range(num_reporting)))
    no_updates = make_client_updates(
        [], known=SIZE, updates=np.zeros((0, 12)), reported_examples=history[0].reported_examples
    )
    after, weights = rule.weigh(state, plan, no_updates, np.zeros(0))
    assert weights.weight.shape == (0,)
    rejected, weights = rule.weigh(after, plan, history[3], np.zeros(num_reporting))
    assert weights.weight.tolist() == [0.0] * num_reporting
    if rule.description.goal is not Goal.PARTICIPATION:
        expected, got = (weigh_history(rule, history[3:], s)[1][0] for s in (state, rejected))
        assert expected.weight.tolist() == got.weight.tolist()


@weighting_cases
def test_a_client_that_is_not_admitted_does_not_count(
    row: Row, rule: Weighting[Any], num_reporting: int
) -> None:
    """A fraction of 0 has weight 0, and the other weights still sum to 1."""
    (given,) = draw_rounds(1, num_reporting, seed=9)
    fraction = np.ones(num_reporting)
    fraction[1] = 0.0
    plan = RoundPlan(tuple(given.client.tolist()))
    _, weights = rule.weigh(rule.init(Population.from_size(SIZE)), plan, given, fraction)
    assert weights.weight[1] == 0
    if row.total is expect_one and weights.update_norm is None:
        assert_on_the_simplex(weights.weight)


EXPANDABLE = [rule for _, rule in FULL if not rule.traits.requires_fixed_population]


@pytest.mark.parametrize("rule", EXPANDABLE, ids=repr)
def test_a_joining_client_changes_nothing_for_the_others(rule: Weighting[Any]) -> None:
    """The state expands with the population, unless K is fixed; newcomers get an initial state."""
    before = Population((1, 2, 4, 5, 7, 8), frozenset({1}))
    after, clients = before.with_clients([0, 3, 6]), before.sorted_clients.tolist()
    rng = np.random.default_rng(11)

    def weigh_once(
        state: Any, client: list[int], known: list[int]
    ) -> tuple[Any, AggregationWeights]:
        given = make_client_updates(
            rng.lognormal(size=len(client)),
            client=client,
            data=DATA[client],
            known=known,
            updates=rng.normal(size=(len(client), 12)),
            reported_examples=dict(enumerate(DATA.tolist())),
        )
        return rule.weigh(state, RoundPlan(tuple(known)), given, np.ones(len(client)))

    state = rule.init(before)
    for turn in range(4):
        state, _ = weigh_once(state, [k for k in clients if (k + turn) % 3], clients)
    indices = np.searchsorted(after.sorted_clients, before.sorted_clients)
    larger = expand_state(state, rule.init(after), len(clients), indices)
    rng_state = rng.bit_generator.state
    _, expected = weigh_once(state, clients[:4], clients)
    rng.bit_generator.state = rng_state
    _, got = weigh_once(larger, clients[:4], clients)
    assert got.weight.tolist() == expected.weight.tolist()
    fresh, joined = to_arrays(rule.init(after), "w"), to_arrays(larger, "w")
    for name, array in fresh.items():
        if array.ndim:  # a scalar belongs to all clients
            np.testing.assert_array_equal(joined[name][[0, 3, 6]], array[[0, 3, 6]])
    all_clients = list(after.clients)
    _, weights = weigh_once(larger, sorted(all_clients), sorted(all_clients))
    assert np.isfinite(weights.weight).all()


@pytest.mark.parametrize("rule", [rule for _, rule in FULL], ids=repr)
def test_a_weighting_has_all_descriptions(rule: Weighting[Any]) -> None:
    """Goal, numerator, denominator, and the largest weight or why it has none."""
    traits = rule.traits
    assert isinstance(rule.description.goal, Goal)
    assert traits.numerator
    assert traits.denominator.format(whom="the clients")
    assert 0 < traits.tolerance <= 1e-6
    assert traits.uncorrectable_reason
    if not traits.dp_unsupported_reason:
        assert 0 < rule.compute_max_share(10) < math.inf
    bound = compute_regret_bound(rule, 10, SIZE, 1.0)
    assert bound is None or 0 < bound.value < math.inf


@pytest.mark.parametrize("rule", [rule for _, rule in FULL], ids=repr)
def test_a_weight_is_explained_with_its_number(rule: Weighting[Any]) -> None:
    """For every client; one of the lines ends with its weight."""
    (given,) = draw_rounds(1, SIZE, seed=12)
    trace = decide_first_round(rule, given, SIZE)
    assert trace.weights is not None
    for index in range(SIZE):
        lines = list(rule.explain(trace, index))
        assert lines
        assert all("\n" not in line for line in lines)
        weight, recorded = trace.weights.weight[index], trace.recorded_decisions[index]
        if rule.description.unreplayable and recorded.mixing_coefficient is not None:
            assert lines[-1].endswith(
                f"{recorded.mixing_coefficient:.6g} / {recorded.update_norm:.6g}"
            )
        else:
            assert lines[-1].endswith(f"= {weight:.6g}") or f"= {weight:.6g}" in lines[0]
    assert list(find_contradictions(rule, trace)) == []


UNDECIDED = [
    rule
    for _, rule in FULL
    if not rule.description.unreplayable and not isinstance(rule, AverageAll | AverageParticipating)
]
"""The rules whose explanations need the weights.

Averages need participation alone, and rules on updates explain the recorded weights.
"""


@pytest.mark.parametrize("rule", UNDECIDED, ids=repr)
def test_a_weight_that_could_not_be_decided_is_not_explained(rule: Weighting[Any]) -> None:
    """If records lack the inputs of the weights, no formula shows invented numbers.

    The lines of a correction for participation do not depend on the weights.
    """
    (given,) = draw_rounds(1, SIZE, seed=12)
    trace = replace(decide_first_round(rule, given, SIZE), weights=None, next_state=None)
    lines = [line for index in range(SIZE) for line in rule.explain(trace, index)]
    assert len(lines) == (SIZE if isinstance(rule, Participation) else 0)
    assert all(line.startswith("omega_n ") for line in lines)


# --- selections ---------------------------------------------------------------------------------

SELECTION_CASES = [rule for row in select_rows(Selection) for rule in row.made]
selection_cases = pytest.mark.parametrize("rule", SELECTION_CASES, ids=repr)
CLIENTS = Population.from_size(SIZE, [0, 2, 5])


def make_plan(rule: Selection, t: int) -> RoundPlan:
    return rule.plan(t, CLIENTS, ClientReports(dict(enumerate(DATA.tolist()))))


@selection_cases
def test_a_plan_is_a_function_of_the_round(rule: Selection) -> None:
    """The order of the rounds does not matter; the clients ascend, and are eligible."""
    plans = [make_plan(rule, t) for t in range(10)]
    assert [make_plan(rule, t) for t in reversed(range(10))] == plans[::-1]
    for plan in plans:
        assert [*plan.clients] == sorted(set(plan.clients))
        assert set(plan.clients) <= (
            set(CLIENTS.clients) if plan.eligible is None else plan.eligible
        )
        assert (plan.epsilon is not None) == rule.traits.has_gate


@selection_cases
@pytest.mark.parametrize("loss", [0.0, 1e-12, 1.0, 1e6, math.nan])
def test_a_fraction_is_one_or_has_a_reason(rule: Selection, loss: float) -> None:
    """Fractions are in [0, 1], and 1 for priority clients, for any losses."""
    plan = make_plan(rule, 9)
    weights = CLIENTS.priority_weights[list(plan.clients)]
    n = len(plan.clients)
    given = make_client_updates(np.full(n, loss), client=plan.clients, priority=weights)
    for objective in (Objective(1.0, 0.5), Objective(math.nan, math.nan)):
        admission = rule.admit(plan, objective, given)
        assert admission.fraction.shape == (n,)
        assert np.all((admission.fraction >= 0) & (admission.fraction <= 1))
        assert admission.fraction[weights == 1].tolist() == [1.0] * int((weights == 1).sum())
        assert [why is None for why in admission.reason] == (admission.fraction == 1).tolist()


@selection_cases
def test_a_selection_describes_its_clients(rule: Selection) -> None:
    """Its population, and why it selects a client or not."""
    assert rule.description.population
    for t in range(3):
        plan = make_plan(rule, t)
        for client in CLIENTS.clients:
            explanation = rule.explain_selection(t, CLIENTS, plan, client)
            assert explanation.startswith("yes; " if client in plan.clients else "no; ")


@selection_cases
def test_an_admission_is_explained_with_its_numbers(rule: Selection) -> None:
    """Each update is admitted whole or not at all."""
    (given,) = draw_rounds(1, SIZE, seed=13)
    trace = decide_first_round(DataFraction(), given, SIZE, rule)
    for index in range(SIZE):
        assert rule.explain_admission(trace, index).split(",")[0].split(";")[0] in ("whole", "no")


# --- server optimizers --------------------------------------------------------------------------

OPTIMIZER_CASES = [rule for row in select_rows(ServerOptimizer) for rule in row.made]
optimizer_cases = pytest.mark.parametrize("rule", OPTIMIZER_CASES, ids=repr)
START = {"a.w": np.array([[0.5, -1.0], [2.0, 0.0]]), "b": np.array([3.0])}


def draw_updates(seed: int, count: int = 6) -> list[dict[str, FloatArray]]:
    rng = np.random.default_rng(seed)
    scales = 10.0 ** rng.integers(-6, 6, count)
    return [
        {name: scale * rng.normal(size=value.shape) for name, value in START.items()}
        for scale in scales
    ]


def run_steps(
    rule: ServerOptimizer[Any], updates: list[dict[str, FloatArray]], state: Any = None
) -> tuple[Any, list[dict[str, FloatArray]]]:
    """Return the last state and the parameters after every update."""
    parameters: Mapping[str, FloatArray] = START
    state, path = rule.init(parameters) if state is None else state, []
    for update in updates:
        state, parameters = rule.step(state, parameters, update)
        path.append(dict(parameters))
    return state, path


@optimizer_cases
def test_a_step_is_pure_and_finite(rule: ServerOptimizer[Any]) -> None:
    """The same arguments give the same step and none is changed, for updates of any length."""
    before = {name: value.copy() for name, value in START.items()}
    for one_path, same in zip(
        run_steps(rule, draw_updates(1))[1], run_steps(rule, draw_updates(1))[1], strict=True
    ):
        for name, value in one_path.items():
            np.testing.assert_array_equal(value, same[name])
            assert np.isfinite(value).all()
    for name, value in START.items():
        np.testing.assert_array_equal(value, before[name])


@optimizer_cases
def test_an_optimizer_resumes_from_its_state_as_arrays(rule: ServerOptimizer[Any]) -> None:
    """Restored from arrays, it takes the same next steps, to the bit."""
    updates = draw_updates(2)
    state, _ = run_steps(rule, updates[:3])
    again = from_arrays(rule.init(START), "optimizer", to_arrays(state, "optimizer"))
    for first, other in zip(
        run_steps(rule, updates[3:], state)[1], run_steps(rule, updates[3:], again)[1], strict=True
    ):
        for name, value in first.items():
            np.testing.assert_array_equal(value, other[name])


@optimizer_cases
def test_coordinates_and_names_do_not_matter(rule: ServerOptimizer[Any]) -> None:
    """Every coordinate steps by its updates alone."""
    updates = draw_updates(3)
    _, path = run_steps(rule, updates)
    state, parameters = rule.init({"x": START["a.w"][1]}), {"x": START["a.w"][1]}
    for update, whole in zip(updates, path, strict=True):
        state, stepped = rule.step(state, parameters, {"x": update["a.w"][1]})
        parameters = dict(stepped)
        np.testing.assert_array_equal(parameters["x"], whole["a.w"][1])


@optimizer_cases
def test_a_learning_rate_is_positive(rule: Any) -> None:
    """It comes from the strategy, and the error has its name in Python."""
    assert type(rule).from_options({"learning_rate": 0.25}, RunContext()).learning_rate == 0.25
    with pytest.raises(ParameterError, match=r"learning_rate must be a number > 0, got 0\.0"):
        replace(rule, learning_rate=0.0)


@pytest.mark.parametrize("rule", [row.made[0] for row in select_rows(ServerOptimizer)], ids=repr)
def test_only_linear_steps_are_declared_linear(rule: ServerOptimizer[Any]) -> None:
    """``is_linear``: the step is the learning rate times the update, in every round."""
    updates = draw_updates(4)
    _, path = run_steps(rule, updates)
    follows = [
        np.allclose(after["b"] - before["b"], rule.learning_rate * update["b"], rtol=1e-9)
        for before, after, update in zip([START, *path[:-1]], path, updates, strict=True)
    ]
    assert all(follows) == rule.is_linear
