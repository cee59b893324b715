"""What all rules promise: each of them has a row in ``tests/fedquorum/rows.py``.

The rows are compared with the tables in the code. What a rule computes is
tested beside it, in ``tests/fedquorum/weighting`` and so on.
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
from fedquorum.named import ALL_SELECTIONS, ALL_WEIGHTINGS
from fedquorum.participation import (
    PARTICIPATIONS,
    Participation,
)
from fedquorum.rule import Goal, Rule, RunContext, get_parameters
from fedquorum.selection import (
    AllClients,
    LocalModelSelection,
    Selection,
)
from fedquorum.server_optimizer import (
    SERVER_OPTIMIZERS,
    ServerOptimizer,
)
from fedquorum.state_arrays import expand_state, from_arrays, to_arrays
from fedquorum.types import (
    AggregationWeights,
    ClientReports,
    ClientUpdates,
    FloatArray,
    IntArray,
    Objective,
    Population,
    RoundPlan,
)
from fedquorum.weighting import (
    AAggFFDWeighting,
    AFLWeighting,
    AverageAll,
    AverageParticipating,
    DataFraction,
    Weighting,
)

from tests.builders import (
    assert_on_the_simplex,
    decide_first_round,
    make_client_updates,
    weigh_rounds,
)
from tests.fedquorum.rows import DATA, HEARD, RATES, ROWS, SIZE, Row, expect_one, select_rows

TABLES = (ALL_SELECTIONS, ALL_WEIGHTINGS, PARTICIPATIONS, SERVER_OPTIMIZERS)


def test_every_rule_has_one_row() -> None:
    """In the order of the tables of the code."""
    assert [row.rule for row in ROWS] == [rule for table in TABLES for rule in table.values()]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.rule.__name__)
def test_a_parameter_is_refused_outside_its_range(row: Row) -> None:
    """Each has an allowed default; the refusal names it, what is allowed and what was given."""
    declared = get_parameters(row.rule)
    assert {item.name for item in declared} == row.refused.keys()
    for item in declared:
        allowed, value = item.metadata["allowed"], row.refused[item.name]
        assert item.default is None or allowed.contains(item.default)
        with pytest.raises(ParameterError) as caught:
            row.rule(**{**row.supplied, item.name: value})
        told = caught.value
        assert (told.parameter, told.allowed, told.got) == (item.name, allowed.describe(), value)
        assert str(told) == f"{item.name} must be {allowed.describe()}, got {value!r}"


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
def test_a_rule_says_what_it_is(rule: Rule) -> None:
    """One line ends with a full stop; the key is a word that settings can have."""
    assert rule.summary.endswith(".")
    assert "\n" not in rule.summary
    assert rule.key.replace("_", "").isalpha()
    assert rule.key.islower()


@made
def test_a_rule_is_made_of_its_parameters_and_the_run(rule: Any) -> None:
    """``of`` is the one way by which settings become rules."""
    options = {item.name: getattr(rule, item.name) for item in get_parameters(type(rule))}
    facts = RunContext(num_rounds=10, rates=dict(enumerate(RATES)), clients=tuple(range(SIZE)))
    again = type(rule).of(options, facts)
    for name, value in options.items():
        given = getattr(again, name)
        assert given == value or (value is None and given == facts.rates)


# --- weightings, and corrections of them --------------------------------------------------------


def corrections() -> list[tuple[Row, Weighting[Any]]]:
    """Return every correction of every weighting that has a form over a fixed population."""
    return [
        (row, replace(rule, base=base.with_fixed_denominator()))
        for row in ROWS
        if row.rule in PARTICIPATIONS.values()
        for rule in row.made[-1:]
        for base in (DataFraction(), AFLWeighting(0.05), AAggFFDWeighting())
    ]


WEIGHINGS = [(row, rule) for row in select_rows(Weighting) for rule in row.made]
FULL = [*WEIGHINGS, *corrections()]
ALL = [(row, rule, SIZE) for row, rule in FULL] + [
    (row, rule, HEARD) for row, rule in FULL if not rule.needs_everyone
]
conforming = pytest.mark.parametrize(
    ("row", "rule", "heard"), ALL, ids=[f"{rule!r}-{heard}" for _, rule, heard in ALL]
)


def rounds_of(count: int, heard: int, *, seed: int = 0, spread: float = 1.0) -> list[ClientUpdates]:
    """Return what samples of clients answer: losses, data that stays, updates in R^12."""
    rng = np.random.default_rng(seed)
    level, data = rng.normal(size=SIZE), rng.integers(1, 100, SIZE)
    history = []
    for _ in range(count):
        client = np.sort(rng.choice(SIZE, heard, replace=False))
        history.append(
            make_client_updates(
                np.exp(spread * (level[client] + 0.2 * rng.normal(size=heard))),
                client=client.tolist(),
                data=data[client],
                known=SIZE,
                updates=rng.normal(size=(heard, 12)) + 0.3,
                examples=dict(enumerate(data.tolist())),
            )
        )
    return history


def play(
    rule: Weighting[Any], history: list[ClientUpdates], state: Any = None
) -> tuple[Any, list[AggregationWeights]]:
    return weigh_rounds(rule, history, SIZE, state=state)


def restrict_to_reporting(weights: AggregationWeights, given: ClientUpdates) -> FloatArray:
    """Return p of the clients heard: not all rules' weights are p, and some tell no p."""
    if weights.mixing is None or weights.mixing[given.client].sum() == 0:
        return weights.weight
    mixing = weights.mixing[given.client]
    return np.asarray(mixing / mixing.sum())


@conforming
def test_on_the_simplex_or_what_the_divisor_says(
    row: Row, rule: Weighting[Any], heard: int
) -> None:
    """p, over all clients and over those heard, sums to 1; other weights to what is stated."""
    history = rounds_of(30, heard)
    for weights, given in zip(play(rule, history)[1], history, strict=True):
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


@conforming
def test_finite_for_losses_of_any_size(row: Row, rule: Weighting[Any], heard: int) -> None:
    """Losses from 1e-12 to 1e6 within a round, all tiny, all huge, and exact zeros."""
    rng = np.random.default_rng(1)
    rounds: list[list[float]] = [
        *(10.0 ** rng.uniform(-12, 6, (10, heard))).tolist(),
        [1e-12] * heard,
        [1e6] * heard,
        [0.0] * heard,
        [1e6, *[1e-12] * (heard - 1)],
        [0.0, *[1e6] * (heard - 1)],
        [1e-12, *[0.0] * (heard - 1)],
    ]
    history = [
        make_client_updates(
            losses,
            known=SIZE,
            updates=rng.normal(size=(heard, 4)) * scale,
            examples=dict.fromkeys(range(SIZE), 10.0),
        )
        for losses in rounds
        for scale in (1e-8, 1e8)
    ]
    for weights, given in zip(play(rule, history)[1], history, strict=True):
        assert np.isfinite(weights.weight).all()
        assert weights.mixing is None or np.isfinite(weights.mixing).all()
        if row.total is expect_one:
            assert_on_the_simplex(restrict_to_reporting(weights, given))


def under_other_names(given: ClientUpdates, name: IntArray) -> tuple[ClientUpdates, IntArray]:
    """Return responses where client k is called name[k], and the order of the old in the new."""
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


def with_other_names(rule: Any, name: IntArray) -> Weighting[Any]:
    """Return a rule whose parameters by client are those of the clients' new names."""
    changes: dict[str, Any] = {}
    for item in get_parameters(type(rule)):
        value = getattr(rule, item.name)
        if isinstance(value, tuple) and len(value) == SIZE:
            changes[item.name] = tuple(value[k] for k in np.argsort(name).tolist())
    renamed: Weighting[Any] = replace(rule, **changes)
    return renamed


@conforming
def test_what_nodes_multiply_by_is_what_the_server_divides(
    row: Row, rule: Weighting[Any], heard: int
) -> None:
    """What is known before training is the factor to the bit, and factor / divisor the weight.

    Nodes add up what they multiplied by one and single updates are multiplied by the other.
    """
    state = rule.init(Population.from_size(SIZE))
    for given in rounds_of(6, heard):
        clients = given.client.tolist()
        call = RoundPlan(tuple(clients))
        proportions = rule.compute_known_weights(state, call)
        state, weights = rule.weigh(state, call, given, np.ones(len(clients)))
        if weights.denominator > 0:
            quotients = [factor / weights.denominator for factor in weights.numerator.tolist()]
            assert weights.weight.tolist() == quotients
        if proportions is not None:
            data = given.num_examples.tolist()
            known = [
                proportions.compute_numerator(*each) for each in zip(clients, data, strict=True)
            ]
            assert known == weights.numerator.tolist()
            assert min(known) > 0


def test_some_weights_are_computed_before_training() -> None:
    """Those that follow from who is asked and how much data there is; no rule that looks at losses.

    Otherwise the test above would compare nothing.
    """
    call = RoundPlan(tuple(range(SIZE)))
    known = {
        type(rule).__name__
        for _, rule in FULL
        if rule.proportions(rule.init(Population.from_size(SIZE)), call) is not None
    }
    assert known == {
        "DataFraction",
        "AverageParticipating",
        "AverageAll",
        "FedAUCorrection",
        "EmpiricalCorrection",
        "KnownRatesCorrection",
    }


@conforming
def test_permutation_equivariant(row: Row, rule: Weighting[Any], heard: int) -> None:
    """Other names for the same clients give the same weights under those names."""
    history = rounds_of(15, heard, seed=2)
    name = np.random.default_rng(3).permutation(SIZE)
    others = [under_other_names(given, name) for given in history]
    told = play(rule, history)[1]
    told_others = play(with_other_names(rule, name), [other for other, _ in others])[1]
    for weights, other, (_, order) in zip(told, told_others, others, strict=True):
        np.testing.assert_allclose(other.weight, weights.weight[order], atol=1e-8)
        if weights.mixing is not None:
            assert other.mixing is not None
            np.testing.assert_allclose(other.mixing[name], weights.mixing, atol=1e-8)


def saved_and_restored(rule: Weighting[Any], state: Any) -> Any:
    """Return a state after a round trip through a file of plain arrays."""
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **to_arrays(state, "w"))
    buffer.seek(0)
    read = dict(np.load(buffer, allow_pickle=False).items())
    return from_arrays(rule.init(Population.from_size(SIZE)), "w", read)


@conforming
def test_saved_and_restored_decides_the_same(row: Row, rule: Weighting[Any], heard: int) -> None:
    """A state is plain arrays: from a file it gives the same next decisions, to the last bit."""
    history = rounds_of(12, heard, seed=4)
    state, _ = play(rule, history[:7])
    expected = play(rule, history[7:], state)[1]
    got = play(rule, history[7:], saved_and_restored(rule, state))[1]
    for first, other in zip(expected, got, strict=True):
        assert first.weight.tolist() == other.weight.tolist()


@conforming
def test_no_look_into_the_future(row: Row, rule: Weighting[Any], heard: int) -> None:
    """Decisions are the same however the run goes on, and l_t is of a p without round t."""
    history, other = rounds_of(12, heard, seed=5), rounds_of(12, heard, seed=6)
    told = play(rule, history)[1]
    for cut in (1, 6, 11):
        changed = play(rule, [*history[:cut], *other[cut:]])[1]
        for first, same in zip(told[:cut], changed[:cut], strict=True):
            assert first.weight.tolist() == same.weight.tolist()
            assert first.decision_loss == same.decision_loss
        if rule.weights_by_data or rule.needs_losses:
            assert told[cut].weight.tolist() != changed[cut].weight.tolist()


@conforming
def test_the_state_passed_in_is_not_changed(row: Row, rule: Weighting[Any], heard: int) -> None:
    """A rule is a function: the same state twice gives the same decision twice."""
    history = rounds_of(6, heard, seed=7)
    state, _ = play(rule, history[:5])
    before = {name: array.copy() for name, array in to_arrays(state, "w").items()}
    first, second = (play(rule, history[5:], state)[1][0] for _ in range(2))
    assert first.weight.tolist() == second.weight.tolist()
    for name, array in to_arrays(state, "w").items():
        np.testing.assert_array_equal(array, before[name])


@conforming
def test_a_round_without_updates(row: Row, rule: Weighting[Any], heard: int) -> None:
    """A round without answers has no weights; to a rule without omega it is as if it was not."""
    history = rounds_of(4, heard, seed=8)
    state, _ = play(rule, history[:3])
    call = RoundPlan(tuple(range(heard)))
    nobody = make_client_updates(
        [], known=SIZE, updates=np.zeros((0, 12)), examples=history[0].reported_examples
    )
    after, weights = rule.weigh(state, call, nobody, np.zeros(0))
    assert weights.weight.shape == (0,)
    refused, weights = rule.weigh(after, call, history[3], np.zeros(heard))
    assert weights.weight.tolist() == [0.0] * heard
    if rule.goal is not Goal.PARTICIPATION:
        expected, got = (play(rule, history[3:], s)[1][0] for s in (state, refused))
        assert expected.weight.tolist() == got.weight.tolist()


@conforming
def test_who_is_not_admitted_does_not_count(row: Row, rule: Weighting[Any], heard: int) -> None:
    """A share of 0 has weight 0 and leaves the weights of the others a distribution."""
    (given,) = rounds_of(1, heard, seed=9)
    share = np.ones(heard)
    share[1] = 0.0
    call = RoundPlan(tuple(given.client.tolist()))
    _, weights = rule.weigh(rule.init(Population.from_size(SIZE)), call, given, share)
    assert weights.weight[1] == 0
    if row.total is expect_one and weights.update_norm is None:
        assert_on_the_simplex(weights.weight)


GROWING = [rule for _, rule in FULL if not rule.fixed_population]


@pytest.mark.parametrize("rule", GROWING, ids=repr)
def test_who_joins_changes_nothing_for_the_others(rule: Weighting[Any]) -> None:
    """A state grows with the population, where K need not stay: newcomers begin from nothing."""
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
            examples=dict(enumerate(DATA.tolist())),
        )
        return rule.weigh(state, RoundPlan(tuple(known)), given, np.ones(len(client)))

    state = rule.init(before)
    for turn in range(4):
        state, _ = weigh_once(state, [k for k in clients if (k + turn) % 3], clients)
    places = np.searchsorted(after.sorted_clients, before.sorted_clients)
    larger = expand_state(state, rule.init(after), len(clients), places)
    drawn = rng.bit_generator.state
    _, expected = weigh_once(state, clients[:4], clients)
    rng.bit_generator.state = drawn
    _, got = weigh_once(larger, clients[:4], clients)
    assert got.weight.tolist() == expected.weight.tolist()
    fresh, joined = to_arrays(rule.init(after), "w"), to_arrays(larger, "w")
    for name, array in fresh.items():
        if array.ndim:  # a number is of all clients
            np.testing.assert_array_equal(joined[name][[0, 3, 6]], array[[0, 3, 6]])
    everyone = list(after.clients)
    _, weights = weigh_once(larger, sorted(everyone), sorted(everyone))
    assert np.isfinite(weights.weight).all()


@pytest.mark.parametrize("rule", [rule for _, rule in FULL], ids=repr)
def test_a_weighting_says_what_others_need_to_know(rule: Weighting[Any]) -> None:
    """Question, factor, divisor, lateness, and either the largest share or why there is none."""
    assert isinstance(rule.goal, Goal)
    assert rule.numerator
    assert rule.denominator.format(whom="the clients")
    assert rule.late_reply_effect.endswith(".")
    assert 0 < rule.tolerance <= 1e-6
    if rule.dp_unsupported_reason:
        with pytest.raises(ParameterError, match="weighting must be one whose shares are bounded"):
            Weighting.compute_max_share(rule, 10)
    else:
        assert 0 < rule.compute_max_share(10) < math.inf
    bound = rule.compute_regret_bound(10, SIZE, 1.0)
    assert bound is None or 0 < bound.value < math.inf


@pytest.mark.parametrize("rule", [rule for _, rule in FULL], ids=repr)
def test_a_weight_is_explained_with_its_number(rule: Weighting[Any]) -> None:
    """For every client, in lines of which one ends in the weight that the rule gave."""
    (given,) = rounds_of(1, SIZE, seed=12)
    made = decide_first_round(
        rule, given, SIZE, AllClients() if rule.aggregates else LocalModelSelection()
    )
    assert made.weights is not None
    for place in range(SIZE):
        lines = list(rule.explain(made, place))
        assert lines
        assert all("\n" not in line for line in lines)
        weight, recorded = made.weights.weight[place], made.recorded_decisions[place]
        if rule.unreplayable and recorded.mixing_coefficient is not None:
            assert lines[-1].endswith(
                f"{recorded.mixing_coefficient:.6g} / {recorded.update_norm:.6g}"
            )
        elif rule.aggregates:
            assert lines[-1].endswith(f"= {weight:.6g}") or f"= {weight:.6g}" in lines[0]
        else:
            assert lines[0].startswith("c_k = 0")
    assert list(rule.check_unreplayable(made)) == []


UNDECIDED = [
    rule
    for _, rule in FULL
    if rule.aggregates
    and not rule.not_recorded
    and not isinstance(rule, AverageAll | AverageParticipating)
]
"""The rules whose explanations need the weights.

Averages follow from who took part alone, and of weights by updates the recorded ones are told.
"""


@pytest.mark.parametrize("rule", UNDECIDED, ids=repr)
def test_a_weight_that_could_not_be_decided_is_not_explained(rule: Weighting[Any]) -> None:
    """Where records lack what the weights follow from, no formula has made-up numbers.

    What a correction for participation knows of the client does not depend on the weights.
    """
    (given,) = rounds_of(1, SIZE, seed=12)
    made = replace(decide_first_round(rule, given, SIZE), weights=None, next_state=None)
    lines = [line for place in range(SIZE) for line in rule.explain(made, place)]
    assert len(lines) == (SIZE if isinstance(rule, Participation) else 0)
    assert all(line.startswith("omega_n ") for line in lines)


# --- selections ---------------------------------------------------------------------------------

ASKING = [rule for row in select_rows(Selection) for rule in row.made]
asking = pytest.mark.parametrize("rule", ASKING, ids=repr)
CLIENTS = Population.from_size(SIZE, [0, 2, 5])


def call_of(rule: Selection, t: int) -> RoundPlan:
    return rule.plan(t, CLIENTS, ClientReports(dict(enumerate(DATA.tolist()))))


@asking
def test_a_call_is_a_function_of_the_round(rule: Selection) -> None:
    """In whatever order rounds are asked for; the clients ascend, and are those of the pool."""
    calls = [call_of(rule, t) for t in range(10)]
    assert [call_of(rule, t) for t in reversed(range(10))] == calls[::-1]
    for call in calls:
        assert [*call.clients] == sorted(set(call.clients))
        assert set(call.clients) <= (
            set(CLIENTS.clients) if call.eligible is None else call.eligible
        )
        assert call.trains_local_model == rule.trains_local_models
        assert (call.epsilon is not None) == rule.has_gate


@asking
@pytest.mark.parametrize("loss", [0.0, 1e-12, 1.0, 1e6, math.nan])
def test_a_share_is_whole_or_has_a_reason(rule: Selection, loss: float) -> None:
    """Shares are in [0, 1], of priority clients 1, for any losses; each is explained."""
    call = call_of(rule, 9)
    weights = CLIENTS.priority_weights[list(call.clients)]
    n = len(call.clients)
    given = make_client_updates(np.full(n, loss), client=call.clients, priority=weights)
    for objective in (Objective(1.0, 0.5), Objective(math.nan, math.nan)):
        admission = rule.admit(call, objective, given)
        assert admission.fraction.shape == (n,)
        assert np.all((admission.fraction >= 0) & (admission.fraction <= 1))
        assert admission.fraction[weights == 1].tolist() == [1.0] * int((weights == 1).sum())
        assert [why is None for why in admission.reason] == (admission.fraction == 1).tolist()


@asking
def test_a_selection_describes_whom_it_selects_and_covers(rule: Selection) -> None:
    """In words: its divisor, whether it asks all, and why it does not ask a client."""
    assert rule.population_text
    assert isinstance(rule.dp_unsupported_reason, str)
    for t in range(3):
        call = call_of(rule, t)
        for client in CLIENTS.clients:
            asked = rule.explain_selection(t, CLIENTS, call, client)
            assert asked.startswith("yes; " if client in call.clients else "no; ")


@pytest.mark.parametrize("rule", [rule for rule in ASKING if not rule.keeps_models], ids=repr)
def test_an_admission_is_explained_with_its_numbers(rule: Selection) -> None:
    """Whole, in part or not at all, of every client that sent an update."""
    (given,) = rounds_of(1, SIZE, seed=13)
    made = decide_first_round(DataFraction(), given, SIZE, rule)
    for place in range(SIZE):
        assert rule.explain_admission(made, place).split(",")[0].split(";")[0] in ("whole", "no")


# --- server optimizers --------------------------------------------------------------------------

STEPPING = [rule for row in select_rows(ServerOptimizer) for rule in row.made]
stepping = pytest.mark.parametrize("rule", STEPPING, ids=repr)
START = {"a.w": np.array([[0.5, -1.0], [2.0, 0.0]]), "b": np.array([3.0])}


def updates_of(seed: int, count: int = 6) -> list[dict[str, FloatArray]]:
    rng = np.random.default_rng(seed)
    scales = 10.0 ** rng.integers(-6, 6, count)
    return [
        {name: scale * rng.normal(size=value.shape) for name, value in START.items()}
        for scale in scales
    ]


def steps(
    rule: ServerOptimizer[Any], updates: list[dict[str, FloatArray]], state: Any = None
) -> tuple[Any, list[dict[str, FloatArray]]]:
    """Return the last state and the parameters after every update."""
    parameters: Mapping[str, FloatArray] = START
    state, path = rule.init(parameters) if state is None else state, []
    for update in updates:
        state, parameters = rule.step(state, parameters, update)
        path.append(dict(parameters))
    return state, path


@stepping
def test_a_step_is_pure_and_finite(rule: ServerOptimizer[Any]) -> None:
    """The same arguments give the same step and none is changed, for updates of any length."""
    before = {name: value.copy() for name, value in START.items()}
    for one_path, same in zip(
        steps(rule, updates_of(1))[1], steps(rule, updates_of(1))[1], strict=True
    ):
        for name, value in one_path.items():
            np.testing.assert_array_equal(value, same[name])
            assert np.isfinite(value).all()
    for name, value in START.items():
        np.testing.assert_array_equal(value, before[name])


@stepping
def test_an_optimizer_resumes_from_its_state_as_arrays(rule: ServerOptimizer[Any]) -> None:
    """Written down and read, it takes the same next steps, to the last bit."""
    updates = updates_of(2)
    state, _ = steps(rule, updates[:3])
    again = from_arrays(rule.init(START), "optimizer", to_arrays(state, "optimizer"))
    for first, other in zip(
        steps(rule, updates[3:], state)[1], steps(rule, updates[3:], again)[1], strict=True
    ):
        for name, value in first.items():
            np.testing.assert_array_equal(value, other[name])


@stepping
def test_coordinates_and_names_do_not_matter(rule: ServerOptimizer[Any]) -> None:
    """Every coordinate moves by its own updates, whatever stands beside it."""
    updates = updates_of(3)
    _, path = steps(rule, updates)
    state, parameters = rule.init({"x": START["a.w"][1]}), {"x": START["a.w"][1]}
    for update, whole in zip(updates, path, strict=True):
        state, moved = rule.step(state, parameters, {"x": update["a.w"][1]})
        parameters = dict(moved)
        np.testing.assert_array_equal(parameters["x"], whole["a.w"][1])


@stepping
def test_a_learning_rate_is_positive(rule: Any) -> None:
    """It comes from the strategy, and is refused by its name in Python."""
    assert type(rule).at(0.25, {}, RunContext()).learning_rate == 0.25
    with pytest.raises(ParameterError, match=r"learning_rate must be a number > 0, got 0\.0"):
        replace(rule, learning_rate=0.0)


@pytest.mark.parametrize("rule", [row.made[0] for row in select_rows(ServerOptimizer)], ids=repr)
def test_only_a_step_along_the_update_says_so(rule: ServerOptimizer[Any]) -> None:
    """``is_linear``: the step is the learning rate times the update, in every round."""
    updates = updates_of(4)
    _, path = steps(rule, updates)
    follows = [
        np.allclose(after["b"] - before["b"], rule.learning_rate * update["b"], rtol=1e-9)
        for before, after, update in zip([START, *path[:-1]], path, updates, strict=True)
    ]
    assert all(follows) == rule.is_linear
