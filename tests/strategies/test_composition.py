"""Selections, weightings and server optimizers together: who counts how much, what is refused."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest

from strategies import ComposedStrategy
from strategies.composition import check_composition, divisor
from strategies.decision import decide
from strategies.parameters import ParameterError
from strategies.selection import Alone, EpsilonGate, Everyone, PriorityOnly, Sampling, Selection
from strategies.server_optimizer import SGD, Adam, Momentum
from strategies.types import Call, FloatArray, GlobalMeasure, Population, Responses
from strategies.weighting import (
    AFL,
    TERM,
    AAggFFD,
    AAggFFS,
    AverageAll,
    AverageParticipating,
    DataFraction,
    FedAU,
    FedMGDAPlus,
    KnownData,
    KnownMixing,
    KnownRates,
    NoWeight,
    PropFair,
    QFedAvg,
    Weighting,
)

# Clients 0 and 1 have priority. Of the others 2 and 3 are always aligned, 4 never is and says so.
POPULATION = Population((0, 1, 2, 3, 4), frozenset({0, 1}))
DATA = np.array([30.0, 10.0, 20.0, 40.0, 100.0])
LOSS = np.array([1.0, 1.2, 0.9, 1.1, 9.0])
MEASURE = GlobalMeasure(1.0, 0.5)
RATES = np.array([0.9, 0.5, 0.4, 0.3, 0.5])
ALIGNED = np.array([True, True, True, True, False])
GATE = EpsilonGate(num_rounds=10**6, epsilon=0.5, warmup_fraction=0.0)
INVERSE = dict(enumerate((1.0 / RATES).tolist()))


def answers(there: FloatArray, call: Call) -> Responses:
    """Return what the clients that are there answer: an update, or with a gate their silence."""
    asked = np.isin(np.arange(5), call.clients) & (there > 0)
    trains = asked & (ALIGNED if call.epsilon is not None else True)
    client = np.flatnonzero(trains)
    return Responses(
        client=client,
        priority_weight=POPULATION.priority_weights[client],
        num_examples=DATA[client],
        loss=LOSS[client],
        accuracy=np.full(len(client), 0.5),
        known=np.arange(5),
        silent=np.flatnonzero(asked & ~trains),
        examples=dict(enumerate(DATA.tolist())),
    )


def play(
    selection: Selection, weighting: Weighting[Any], presence: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return every client's weight and p in each round, shapes (T, N)."""
    state, covered = weighting.init(POPULATION), None
    weight, mixing = np.zeros(presence.shape), np.full(presence.shape, math.nan)
    for t, there in enumerate(presence):
        call = selection.call(t, POPULATION, {})
        decision = decide(
            selection,
            weighting,
            POPULATION,
            call=call,
            measure=MEASURE,
            responses=answers(there, call),
            state=state,
            covered=covered,
        )
        state, covered = decision.state, decision.covered
        weight[t, decision.responses.client] = decision.weights.weight
        if decision.weights.mixing is not None:
            mixing[t] = decision.weights.mixing
    return weight, mixing


def bernoulli(rounds: int) -> FloatArray:
    return (np.random.default_rng(7).random((rounds, 5)) < RATES).astype(np.float64)


COVERED: dict[str, tuple[Selection, FloatArray]] = {
    "everyone": (Everyone(), np.ones(5)),
    "priority_only": (PriorityOnly(), np.array([1.0, 1.0, 0.0, 0.0, 0.0])),
    "epsilon_gate": (GATE, ALIGNED.astype(np.float64)),
}
FIXED_BASES: dict[str, tuple[Callable[[], Weighting[Any]], FloatArray]] = {
    "average_all": (AverageAll, np.ones(5)),
    "data_fraction": (DataFraction, DATA),
}


# The bounds of these simulations are set beforehand. Each is 5 standard errors of a mean over
# thousands of rounds, which is close to normal: a client is outside with probability 6e-7, and any
# client of any case here with less than 1e-4. The rates and the numbers of rounds are such that a
# bound is a third of the expected weight or less, with rounds for a few seconds.


@pytest.mark.parametrize(("selection", "base"), [*product(COVERED, FIXED_BASES)])
def test_expected_weights_with_known_rates(selection: str, base: str) -> None:
    """Over 4,000 rounds of random presence every client counts b_k / B in the mean.

    c_k is b_k / (B p_k) with probability p_k, else 0, independently: its standard deviation is
    (b_k / B) sqrt((1 - p_k) / p_k), and the mean is within 5 standard errors of b_k / B. The first
    200 rounds, in which all are heard for the first time, are left out.
    """
    rule, covered = COVERED[selection]
    make, amounts = FIXED_BASES[base]
    rounds = 4_000
    weight, _ = play(rule, KnownRates(INVERSE, make()), bernoulli(rounds + 200))
    expected = covered * amounts / (covered * amounts).sum()
    error = expected * np.sqrt((1 - RATES) / RATES / rounds)
    assert np.all(np.abs(weight[200:].mean(axis=0) - expected) <= 5 * error)
    assert np.all(weight[:, covered == 0] == 0)


def estimated_bound(expected: FloatArray, spread: FloatArray, first: int, end: int) -> FloatArray:
    """Return how far the mean weight of rounds ``first`` to ``end`` may be off, omega estimated.

    Shapes (N,). ``spread`` / sqrt(t) is the standard error of how often a client is there in t
    rounds, relative to p_k. With c_k = (b_k / B) I_t omega_t, I_t whether it is there,
    I_t omega_t - 1 = (I_t - p_k) omega_t + (p_k omega_t - 1). The mean of the first part is within
    5 spread / sqrt(end - first) times the largest p_k omega_t, 1 + d_first. That of the second is
    within the mean of d_t = 5 spread / sqrt(t): omega_t is t over how often the client was there
    by then, and the standard deviation of a mean is at most the mean of the standard deviations.
    """
    t = np.arange(first, end)[:, None]
    estimate = 5 * spread / np.sqrt(t)
    presence = 5 * spread / math.sqrt(end - first) * (1 + estimate.max(axis=0))
    bound: FloatArray = expected * (presence + estimate.mean(axis=0))
    return bound


@pytest.mark.parametrize(
    ("selection", "base"), [("everyone", "average_all"), ("epsilon_gate", "data_fraction")]
)
def test_expected_weights_with_fedau(selection: str, base: str) -> None:
    """The same with omega estimated: its mean interval is another source of error."""
    rule, covered = COVERED[selection]
    make, amounts = FIXED_BASES[base]
    first, rounds = 2_000, 10_000
    weight, _ = play(rule, FedAU(base=make()), bernoulli(rounds))
    expected = covered * amounts / (covered * amounts).sum()
    bound = estimated_bound(expected, np.sqrt((1 - RATES) / RATES), first, rounds)
    assert np.all(np.abs(weight[first:].mean(axis=0) - expected) <= bound)
    assert np.all(bound <= expected / 3)


def markov(rounds: int) -> FloatArray:
    """Return presence by two-state chains of the same rates, leaving for good in none."""
    rng = np.random.default_rng(8)
    joins = np.minimum(0.2, RATES)
    leaves = joins * (1 / RATES - 1)
    there = rng.random(5) < RATES
    rows = []
    for draw in rng.random((rounds, 5)):
        rows.append(there)
        there = np.where(there, draw >= leaves, draw < joins)
    return np.array(rows, dtype=np.float64)


def test_expected_weights_of_fedau_in_fedalign_under_markov_presence() -> None:
    """p_k / (1 + A^) for all in the gate, though presence comes in long runs.

    How often a chain is there in T rounds has variance about T p (1 - p) (1 + r) / (1 - r) with
    r = 1 - a - b, a and b its transition rates: that factor more than independent rounds. A rule
    that divides by who is there is another matter: its expected weights, over all 32 sets of
    clients that can be there, are off by more than twice the bound.
    """
    first, rounds = 3_000, 12_000
    weight, _ = play(GATE, FedAU(base=DataFraction()), markov(rounds))
    joins = np.minimum(0.2, RATES)
    stay = 1 - joins - joins * (1 / RATES - 1)
    expected = np.where(ALIGNED, DATA, 0.0) / DATA[ALIGNED].sum()
    spread = np.sqrt((1 - RATES) / RATES * (1 + stay) / (1 - stay))
    bound = estimated_bound(expected, spread, first, rounds)
    assert np.all(np.abs(weight[first:].mean(axis=0) - expected) <= bound)
    assert np.all(bound <= expected / 3)
    sets = np.array([*product((0.0, 1.0), repeat=5)])
    probability = np.where(sets > 0, RATES, 1 - RATES).prod(axis=1)
    present, _ = play(GATE, DataFraction(), sets)
    assert np.any(np.abs(probability @ present - expected) > 2 * bound)


@pytest.mark.parametrize("rule", [AAggFFD(), AFL(0.01)])
@pytest.mark.parametrize("selection", COVERED)
def test_omega_multiplies_mixing_over_all_that_can_count(
    rule: Weighting[Any], selection: str
) -> None:
    """c_k = omega_k p_k / (sum of p over all covered), whoever else is there."""
    selected, covered = COVERED[selection]
    presence = bernoulli(300)
    weight, mixing = play(selected, KnownRates(INVERSE, rule), presence)
    mass = mixing * covered
    expected = presence * mass / mass.sum(axis=1, keepdims=True) / RATES
    late = np.s_[150:]  # by when all in the gate have been heard
    heard = presence[late].max(axis=1) > 0
    np.testing.assert_allclose(weight[late][heard], expected[late][heard], rtol=1e-12)
    # without omega p is divided by that of who is there; a gate then needs a priority update
    plain, mixing = play(selected, rule, presence)
    own = presence * mixing * covered
    counted = presence[:, :2].any(axis=1) & (own.sum(axis=1) > 0)
    own /= np.maximum(own.sum(axis=1, keepdims=True), np.finfo(float).tiny)
    np.testing.assert_allclose(plain[counted], own[counted], rtol=1e-9)


@pytest.mark.parametrize("base", [AverageAll(), DataFraction(), AAggFFD(), AFL()])
def test_with_everyone_there_nothing_is_corrected(base: Weighting[Any]) -> None:
    """Full participation: FedAU's omega is 1, and the fixed divisor is that of the round."""
    for selection, _ in COVERED.values():
        corrected, _ = play(selection, FedAU(base=base), np.ones((30, 5)))
        plain, _ = play(selection, base, np.ones((30, 5)))
        np.testing.assert_allclose(corrected, plain, rtol=1e-12)


# --- who is covered ----------------------------------------------------------------------------


def rows(*there: str) -> FloatArray:
    """Return presence by rounds, the ids of the clients there as digits."""
    return np.array([[float(str(k) in row) for k in range(5)] for row in there])


def test_who_was_last_known_to_be_aligned_stays_in_the_divisor() -> None:
    """Clients 2 and 3 enter A^ when they are first admitted, and stay while they are away."""
    weight, _ = play(GATE, FedAU(base=DataFraction()), rows("01", "012", "014", "013", "01", "4"))
    of_0 = weight[:, 0]
    np.testing.assert_allclose(of_0[:5], 30 / np.array([40, 60, 60, 100, 100]))
    assert weight[:, 4].tolist() == [0.0] * 6


def test_who_falls_silent_leaves_the_divisor() -> None:
    """A silent answer is knowledge: not aligned. So is a closed gate, of everybody."""
    weighting = FedAU(base=DataFraction())
    state, covered = weighting.init(POPULATION), None
    seen: list[list[float]] = []
    for silent, epsilon in (((), 0.5), ((2,), 0.5), ((), 0.5), ((), 0.0), ((), 0.5)):
        call = Call(tuple(range(5)), epsilon=epsilon)
        there = np.array([1.0, 1.0, 0.0, 0.0, 0.0])
        responses = answers(there, call)
        if not seen:
            responses = answers(np.array([1.0, 1.0, 1.0, 1.0, 0.0]), call)
        object.__setattr__(responses, "silent", np.array(silent, dtype=np.int64))
        decision = decide(
            GATE,
            weighting,
            POPULATION,
            call=call,
            measure=MEASURE,
            responses=responses,
            state=state,
            covered=covered,
        )
        state, covered = decision.state, decision.covered
        assert covered is not None
        seen.append(covered.tolist())
    assert seen == [
        [1, 1, 1, 1, 0],
        [1, 1, 0, 1, 0],
        [1, 1, 0, 1, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 0, 0, 0],
    ]


def test_a_round_without_priority_updates() -> None:
    """Without a fixed divisor p_k is undefined and nothing counts; with one the others do."""
    presence = rows("0123", "23")
    plain, _ = play(GATE, DataFraction(), presence)
    assert plain[1].tolist() == [0.0] * 5
    fixed, _ = play(GATE, FedAU(base=DataFraction()), presence)
    np.testing.assert_allclose(fixed[1], [0, 0, 0.2, 0.4, 0])


def test_priority_weights_are_covered_to_their_share() -> None:
    """lambda_k = 0.5 is half covered while its client has not been inside the gate."""
    population = Population((0, 1), frozenset({0, 1}), {1: 0.5})
    weighting = FedAU(base=DataFraction())
    call = Call((0, 1), epsilon=0.1)
    responses = Responses(
        client=np.array([0]),
        priority_weight=np.ones(1),
        num_examples=np.array([10.0]),
        loss=np.ones(1),
        accuracy=np.ones(1),
        known=np.array([0, 1]),
        examples={0: 10.0, 1: 20.0},
    )
    decision = decide(
        GATE,
        weighting,
        population,
        call=call,
        measure=MEASURE,
        responses=responses,
        state=weighting.init(population),
        covered=None,
    )
    assert decision.weights.weight.tolist() == [0.5]
    assert decision.weights.inclusion_mass == 0.0


# --- what is said and refused ------------------------------------------------------------------


def test_divisors_in_words() -> None:
    """What is divided by follows from both rules."""
    assert divisor(GATE, DataFraction()) == (
        "the training data of the clients admitted in the round"
    )
    assert divisor(GATE, FedAU(base=DataFraction())) == (
        "the training data of the priority clients and the others last known to be aligned"
    )
    assert divisor(Everyone(), FedAU()) == "the number of all known clients"
    assert divisor(PriorityOnly(), FedAU(base=AFL())) == (
        "the sum of p over the known priority clients"
    )
    assert FedAU(base=DataFraction()).factor == "omega_k D_k"
    assert divisor(Everyone(), QFedAvg(1.0, lipschitz=2.0)) == (
        "the sum of w_j h_j / L over the clients admitted in the round"
    )
    assert divisor(Everyone(Sampling(1.0, 2)), DataFraction()) == (
        "the training data of all priority clients, drawn or not, and the others admitted in the "
        "round"
    )


REFUSED: Mapping[str, tuple[Callable[[], object], str]] = {
    "alone": (
        lambda: check_composition(Alone(), DataFraction(), SGD()),
        "selection=alone and weighting=no_weight go together only .*, got Alone with DataFraction",
    ),
    "no weight": (
        lambda: check_composition(Everyone(), NoWeight(), SGD()),
        "go together only .*, got Everyone with NoWeight",
    ),
    "alone adam": (
        lambda: check_composition(Alone(), NoWeight(), Adam()),
        "server_optimizer must be sgd where every client has a model of its own .*, got Adam",
    ),
    "aaggff_s gate": (
        lambda: check_composition(GATE, AAggFFS(), SGD()),
        "selection must be everyone with weighting=aaggff_s .*, got EpsilonGate",
    ),
    "aaggff_s sampled": (
        lambda: check_composition(Everyone(Sampling(0.5)), AAggFFS(), SGD()),
        "fraction must be 1 for AAggFF-S, .*, got 0.5; with sampling use AAggFF-D",
    ),
    "fedmgda gate": (
        lambda: check_composition(GATE, FedMGDAPlus(), SGD()),
        "selection must not be epsilon_gate with weighting=fedmgda",
    ),
    "fedmgda momentum": (
        lambda: check_composition(Everyone(), FedMGDAPlus(), Momentum()),
        "server_optimizer must be sgd with weighting=fedmgda .*, got Momentum",
    ),
    "draws": (
        lambda: check_composition(Everyone(Sampling(1.0, 2)), FedAU(), SGD()),
        "priority_draws must be null with a weighting that is not by data .*, got 2",
    ),
    "losses": (
        lambda: check_composition(Everyone(asks_losses=False), TERM(), SGD()),
        "asks_losses must be true with a weighting by the clients' losses, got False",
    ),
    "in a strategy": (
        lambda: ComposedStrategy(
            POPULATION, selection=GATE, weighting=AAggFFS(), server_optimizer=SGD()
        ),
        "selection must be everyone with weighting=aaggff_s",
    ),
    "twice": (lambda: FedAU(base=FedAU()), "participation must be corrected for once"),
    "nothing": (lambda: FedAU(base=NoWeight()), "participation must be none where nothing is"),
} | {
    type(rule).__name__: (
        partial(FedAU, base=rule),
        f"participation must be none with weighting={name} ",
    )
    for rule, name in (
        (AverageParticipating(), "average_participating"),
        (AAggFFS(), "aaggff_s"),
        (QFedAvg(), "qfedavg"),
        (TERM(), "term"),
        (PropFair(), "propfair"),
        (FedMGDAPlus(), "fedmgda"),
    )
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_makes_no_sense_is_refused_with_the_reason(name: str) -> None:
    """One line names the rule, what goes with it, and why."""
    make, message = REFUSED[name]
    with pytest.raises(ParameterError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("base", [AverageAll(), DataFraction(), AAggFFD(), AFL()])
def test_a_fixed_divisor_stays_what_it_is(base: Weighting[Any]) -> None:
    """What divides by a fixed population already is corrected as it is."""
    once = base.over_known()
    assert once.over_known() is once
    assert once.fixed_divisor
    assert once.factor == base.factor


def test_only_rules_with_p_of_all_are_divided_by_it() -> None:
    """A rule that holds no mixing vector cannot be divided by its sum."""
    rule = KnownMixing(DataFraction())
    call = Call((0, 1, 2, 3, 4))
    with pytest.raises(TypeError, match="DataFraction holds no p of all clients"):
        rule.weigh(rule.init(POPULATION), call, answers(np.ones(5), call), np.ones(5))


def test_nobody_has_told_how_much_data_there_is() -> None:
    """Without any D_k there is nothing to divide by: all weights are 0, and A^ is unknown."""
    rule = KnownData()
    nobody = answers(np.zeros(5), Call((0, 1, 2, 3, 4)))
    unheard = replace(nobody, examples={})
    _, weights = rule.weigh(rule.init(POPULATION), Call(()), unheard, np.zeros(0))
    assert weights.weight.tolist() == []
    assert weights.inclusion_mass is None


def test_inclusion_mass_is_of_the_known_data() -> None:
    """A^ = (data of all that can count - of the priority clients) / of the priority clients."""
    rule = KnownData()
    there = answers(np.array([1.0, 0.0, 1.0, 0.0, 0.0]), Call((0, 1, 2, 3, 4)))
    covered = replace(there, covered=ALIGNED.astype(np.float64))
    _, weights = rule.weigh(rule.init(POPULATION), Call(()), covered, np.ones(2))
    assert weights.weight.tolist() == [0.3, 0.2]
    assert weights.inclusion_mass == pytest.approx(60 / 40)


def test_nobody_who_can_count_holds_any_of_p() -> None:
    """Where p is all on a client outside of the gate, the others have no weight, not NaN."""
    rule = KnownMixing(AFL(0.01))
    there = answers(np.array([1.0, 0.0, 1.0, 0.0, 0.0]), Call((0, 1, 2, 3, 4)))
    state = replace(rule.init(POPULATION), mixing=np.array([0.0, 0.0, 0.0, 0.0, 1.0]))
    covered = replace(there, covered=ALIGNED.astype(np.float64))
    _, weights = rule.weigh(state, Call((0, 1, 2, 3, 4)), covered, np.ones(2))
    assert weights.weight.tolist() == [0.0, 0.0]


def test_nobody_can_count_in_the_average_of_all() -> None:
    """Where the selection covers nobody all weights are 0, not NaN."""
    there = answers(np.array([1.0, 0.0, 1.0, 0.0, 0.0]), Call((0, 1, 2, 3, 4)))
    nobody = replace(there, covered=np.zeros(5))
    _, weights = AverageAll().weigh(None, Call((0, 1, 2, 3, 4)), nobody, np.zeros(2))
    assert weights.weight.tolist() == [0.0, 0.0]
