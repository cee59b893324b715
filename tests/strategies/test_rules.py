"""The pure rules: selection, weighting, server optimizer, schedules."""

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies.parameters import ParameterError
from strategies.schedules import epsilon_factor, rounds_in
from strategies.selection import Alone, EpsilonGate, Everyone, PriorityOnly
from strategies.server_optimizer import SGD
from strategies.types import Call, GlobalMeasure, Population, Responses
from strategies.weighting import DataFraction, NoWeight

POPULATION = Population((0, 1, 2, 3), frozenset({0, 2}))


def responses(
    loss: list[float],
    accuracy: list[float] | None = None,
    num_examples: list[float] | None = None,
    priority: Sequence[float] | None = None,
) -> Responses:
    n = len(loss)
    return Responses(
        client=np.arange(n),
        priority_weight=np.array(priority or [k in (0, 2) for k in range(n)], dtype=np.float64),
        num_examples=np.array(num_examples or [10.0] * n),
        loss=np.array(loss),
        accuracy=np.array(accuracy or [0.5] * n),
        known=np.arange(n),
    )


def test_warmup_asks_only_priority_clients() -> None:
    """For the first warmup_fraction of the rounds only priority clients are asked."""
    gate = EpsilonGate(num_rounds=20, warmup_fraction=0.1)
    asked = [gate.call(t, POPULATION, {}).clients for t in range(20)]
    assert asked == [(0, 2)] * 2 + [(0, 1, 2, 3)] * 18


def test_step_schedule_counts_from_round_zero_warmup_included() -> None:
    """The step schedule keeps eps_0 while t < fraction * T, counted from the first round."""
    gate = EpsilonGate(num_rounds=10, epsilon=0.3, epsilon_schedule="step", warmup_fraction=0.2)
    assert [gate.call(t, POPULATION, {}).epsilon for t in range(10)] == [0, 0, 0.3, 0.3, 0.3] + [
        0
    ] * 5


def test_alone_asks_all_for_their_own_models_and_counts_none() -> None:
    """Every client is called to its own model, no reply is refused and no update weighs."""
    call = Alone().call(3, POPULATION, {})
    assert call == Call((0, 1, 2, 3), own_model=True)
    arrived = responses([1.0, 2.0, 3.0])
    share = Alone().admit(call, GlobalMeasure(1.0, 0.5), arrived).share
    assert share.tolist() == [1, 1, 1]
    state, weights = NoWeight().weigh(None, call, arrived, share)
    assert state is None
    assert weights.weight.tolist() == [0, 0, 0]
    assert weights.inclusion_mass is None


@given(percent=st.integers(0, 100), num_rounds=st.integers(1, 2000))
def test_rounds_in_is_exact_in_decimal(percent: int, num_rounds: int) -> None:
    """The number of t with t < fraction * T is that of exact decimal arithmetic."""
    exact = Fraction(percent, 100) * num_rounds
    assert rounds_in(percent / 100, num_rounds) == sum(t < exact for t in range(num_rounds))


def test_unknown_schedule_is_refused() -> None:
    """A schedule that does not exist raises and names it."""
    with pytest.raises(ValueError, match="no epsilon schedule named 'lin'"):
        epsilon_factor("lin", 0, 10, 0.5, 5.0)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [1, 1, 1, 1, 1]),
        ("step", [1, 1, 1, 0, 0]),
        ("linear", [1, 0.75, 0.5, 0.25, 0]),
        ("cosine", [1, (1 + math.sqrt(0.5)) / 2, 0.5, (1 - math.sqrt(0.5)) / 2, 0]),
        ("exponential", [1, math.exp(-1.25), math.exp(-2.5), math.exp(-3.75), math.exp(-5)]),
        ("sqrt", [1, 1 / math.sqrt(2), 1 / math.sqrt(3), 0.5, 1 / math.sqrt(5)]),
    ],
)
def test_epsilon_schedules_by_hand(schedule: str, expected: list[float]) -> None:
    """Five rounds of each schedule, u = 0, 1/4, 1/2, 3/4, 1."""
    gate = EpsilonGate(num_rounds=5, epsilon=0.2, epsilon_schedule=schedule, warmup_fraction=0)
    got = [gate.call(t, POPULATION, {}).epsilon for t in range(5)]
    assert got == pytest.approx([0.2 * factor for factor in expected], abs=1e-15)


def test_an_infinite_threshold_falls_to_zero_with_its_schedule() -> None:
    """inf times 0 is closed, not NaN."""
    gate = EpsilonGate(num_rounds=3, epsilon=math.inf, epsilon_schedule="linear", warmup_fraction=0)
    assert [gate.threshold(t) for t in range(3)] == [math.inf, math.inf, 0.0]


def test_a_single_round_has_the_whole_threshold() -> None:
    """T = 1: u is 0, not 0 / 0."""
    for schedule in ("linear", "cosine", "exponential", "sqrt"):
        gate = EpsilonGate(num_rounds=1, epsilon=0.2, epsilon_schedule=schedule, warmup_fraction=0)
        assert gate.threshold(0) == 0.2


def test_of_two_rounds_the_second_has_the_schedules_end() -> None:
    """T = 2: u is 0 and then 1."""
    for schedule, end in (("linear", 0.0), ("cosine", 0.0), ("exponential", math.exp(-5.0))):
        gate = EpsilonGate(num_rounds=2, epsilon=0.2, epsilon_schedule=schedule, warmup_fraction=0)
        assert [gate.threshold(t) for t in (0, 1)] == pytest.approx([0.2, 0.2 * end], abs=1e-17)


def test_warmup_in_rounds_wins_over_the_fraction() -> None:
    """warmup_rounds counts rounds, whatever the fraction says."""
    gate = EpsilonGate(num_rounds=20, warmup_fraction=0.5, warmup_rounds=3)
    asked = [len(gate.call(t, POPULATION, {}).clients) for t in range(20)]
    assert asked == [2] * 3 + [4] * 17


@pytest.mark.parametrize(
    ("criterion", "loss", "accuracy", "epsilon", "admitted"),
    [
        ("loss", 0.8, 0.0, 0.2, True),  # exactly on the boundary: 0.8 >= 1.0 - 0.2
        ("loss", math.nextafter(0.8, 0), 0.0, 0.2, False),
        ("loss", 5.0, 0.0, 0.2, True),  # the upper half is the client's decision
        ("loss", 1.0, 0.0, 0.0, False),  # closed, even at equal losses
        ("loss", 0.0, 0.0, math.inf, True),
        ("loss", math.nan, 0.0, math.inf, False),
        ("accuracy", 0.0, 0.7, 0.2, True),  # 0.7 <= 0.5 + 0.2
        ("accuracy", 0.0, math.nextafter(0.7, 1), 0.2, False),
        ("accuracy", 0.0, 0.1, 0.2, True),
        ("accuracy", 0.0, 0.5, 0.0, False),
        ("accuracy", 0.0, math.nan, math.inf, False),
    ],
)
def test_server_half_of_the_gate(
    criterion: str, loss: float, accuracy: float, epsilon: float, admitted: bool
) -> None:
    """A non-priority update counts if F_k >= F - eps (acc_k <= acc + eps), and NaN never."""
    gate = EpsilonGate(num_rounds=1, epsilon=epsilon, warmup_fraction=0, criterion=criterion)
    measure = GlobalMeasure(loss=1.0, accuracy=0.5)
    got = gate.admit(gate.call(0, POPULATION, {}), measure, responses([1.0, loss], [0.5, accuracy]))
    assert got.share.tolist() == [1.0, float(admitted)]
    assert (got.reason[1] is None) == admitted


def test_an_unknown_global_loss_keeps_the_gate_closed() -> None:
    """Where no priority client measured F(w_t) it is NaN, and no non-priority update counts."""
    gate = EpsilonGate(num_rounds=1, epsilon=0.5, warmup_fraction=0)
    measure = GlobalMeasure(math.nan, math.nan)
    got = gate.admit(gate.call(0, POPULATION, {}), measure, responses([1.0, 1.0]))
    assert got.share.tolist() == [1.0, 0.0]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"epsilon": -0.1}, r"epsilon must be a number >= 0 \(inf allowed\), got -0.1"),
        ({"epsilon": math.nan}, "epsilon must be"),
        ({"warmup_fraction": 1.5}, "warmup_fraction must be a number >= 0 and <= 1, got 1.5"),
        ({"criterion": "f1"}, "criterion must be one of loss, accuracy, got 'f1'"),
        (
            {"epsilon_schedule": "x"},
            "epsilon_schedule must be one of constant, step, linear, .*, got 'x'",
        ),
        ({"num_rounds": 0}, "num_rounds must be a whole number >= 1, got 0"),
    ],
)
def test_gate_parameters_out_of_range(changed: dict[str, object], message: str) -> None:
    """A wrong parameter is refused in Python with the same sentence as on the command line."""
    arguments: dict[str, object] = {"num_rounds": 10, **changed}
    with pytest.raises(ParameterError, match=message):
        EpsilonGate(**arguments)  # type: ignore[arg-type]


def test_priority_only_and_everyone() -> None:
    """The two baselines ask who their names say, and admit whatever comes back."""
    assert Everyone().call(5, POPULATION, {}).clients == (0, 1, 2, 3)
    assert PriorityOnly().call(5, POPULATION, {}).clients == (0, 2)
    for rule in (Everyone(), PriorityOnly()):
        call = rule.call(0, POPULATION, {})
        assert call.epsilon is None
        answered = responses([9.0, 0.0, math.nan], priority=[True] * 3)
        admission = rule.admit(call, GlobalMeasure(1, 1), answered)
        assert (admission.share == 1.0).all()


cohorts = st.lists(
    st.tuples(st.integers(1, 10**6), st.booleans(), st.booleans()), min_size=1, max_size=40
)


@given(cohorts)
def test_data_fraction_is_fedalign_aggregation(cohort: list[tuple[int, bool, bool]]) -> None:
    """c_k = p_k / (1 + A) with p_k = D_k / sum_P D_i, in exact fractions."""
    data = [d for d, _, _ in cohort]
    priority = [p for _, p, _ in cohort]
    admitted = [p or a for _, p, a in cohort]
    _, weights = DataFraction().weigh(
        None,
        Call(tuple(range(len(data)))),
        responses([1.0] * len(data), num_examples=[float(d) for d in data], priority=priority),
        np.array(admitted, dtype=np.float64),
    )
    total = sum(d for d, p in zip(data, priority, strict=True) if p)
    if total == 0:
        return
    p_k = [Fraction(d, total) if a else Fraction(0) for d, a in zip(data, admitted, strict=True)]
    mass = sum((f for f, p in zip(p_k, priority, strict=True) if not p), Fraction(0))
    np.testing.assert_allclose(weights.weight, [float(f / (1 + mass)) for f in p_k], rtol=1e-12)
    assert weights.inclusion_mass == pytest.approx(float(mass), rel=1e-12)
    assert weights.weight.sum() == pytest.approx(1.0)


def test_generalized_prioritized_learning_by_hand() -> None:
    """Share lambda + (1 - lambda) [inside]; weight share * p_k, p_k = D_k / sum lambda_i D_i."""
    answered = responses(
        [1.0, 1.1, 2.0, 1.0, 0.2],
        num_examples=[10.0, 20.0, 40.0, 30.0, 50.0],
        priority=[1.0, 0.5, 0.25, 0.0, 0.0],
    )
    gate = EpsilonGate(num_rounds=1, epsilon=0.3, warmup_fraction=0)
    call = Call(tuple(range(5)), epsilon=0.3)
    got = gate.admit(call, GlobalMeasure(1.0, 0.5), answered)
    assert got.share.tolist() == [1.0, 1.0, 0.25, 1.0, 0.0]
    assert [reason is None for reason in got.reason] == [True, True, False, True, False]
    assert got.reason[2] == "loss 2 > global 1 + epsilon 0.3"
    _, weights = DataFraction().weigh(None, call, answered, got.share)
    # sum lambda D = 10 + 10 + 10 = 30; shares of data 10 + 20 + 10 + 30 = 70; A = 70 / 30 - 1
    np.testing.assert_allclose(weights.weight, np.array([10, 20, 10, 30, 0]) / 70)
    assert weights.inclusion_mass == pytest.approx(4 / 3)


@pytest.mark.parametrize("criterion", ["loss", "accuracy"])
def test_clients_that_always_train_are_gated_on_both_sides(criterion: str) -> None:
    """With a weight between 0 and 1 the server decides both halves, in the same exact forms."""
    values = [0.5, 0.8, math.nextafter(0.8, 0), 1.2, math.nextafter(1.2, 2), math.nan]
    accuracies = [
        0.5,
        0.5 - 0.2,
        math.nextafter(0.5 - 0.2, 0),
        0.7,
        math.nextafter(0.7, 1),
        math.nan,
    ]
    answered = responses([1.0, *values[1:]], accuracies, priority=[1.0] + [0.5] * 5)
    call = Call(tuple(range(6)), epsilon=0.2, criterion=criterion)
    gate = EpsilonGate(num_rounds=1, criterion=criterion)
    got = gate.admit(call, GlobalMeasure(1.0, 0.5), answered)
    assert got.share.tolist() == [1.0, 1.0, 0.5, 1.0, 0.5, 0.5]


def test_nobody_admitted_means_zero_weights() -> None:
    """Zero total weight gives zeros, not a division by zero."""
    _, weights = DataFraction().weigh(None, Call((0, 1)), responses([1.0, 2.0]), np.zeros(2))
    assert weights.weight.tolist() == [0.0, 0.0]


def test_sgd_step() -> None:
    """x + eta * update, by name."""
    _, moved = SGD(0.5).step(None, {"w": np.array([1.0, 2.0])}, {"w": np.array([2.0, -2.0])})
    assert moved["w"].tolist() == [2.0, 1.0]


def test_server_learning_rate_must_be_positive() -> None:
    """A learning rate of 0 is refused."""
    with pytest.raises(ParameterError, match="server_lr must be a number > 0, got 0"):
        SGD(0.0)


def test_population_refuses_nonsense() -> None:
    """Priority clients must exist, and there must be one."""
    with pytest.raises(ValueError, match=r"\[7\] are not among the clients"):
        Population((0, 1), frozenset({7}))
    with pytest.raises(ValueError, match="at least one priority client"):
        Population((0, 1), frozenset())
    with pytest.raises(ValueError, match=r"must be in \(0, 1\].*, got 0.5 for client 1"):
        Population((0, 1), frozenset({0}), {1: 0.5})
    with pytest.raises(ValueError, match=r"got 1.5 for client 0"):
        Population((0, 1), frozenset({0}), {0: 1.5})
