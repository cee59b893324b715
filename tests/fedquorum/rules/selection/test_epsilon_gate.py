"""The gate: its schedule, its admissions, and its explanations of rejections."""

import math

import numpy as np
import pytest
from fedquorum.errors import ParameterError
from fedquorum.rules.decisions import DecisionTrace
from fedquorum.rules.rule import RunContext
from fedquorum.rules.selection import EpsilonGate
from fedquorum.rules.selection.base import select_objective_clients
from fedquorum.rules.selection.epsilon_gate import compute_threshold
from fedquorum.rules.types import ClientReports, ClientUpdates, Objective, Population, RoundPlan
from fedquorum.rules.weighting import DataFraction
from numpy.typing import ArrayLike

from tests.builders import make_client_updates

POPULATION = Population((0, 1, 2, 3), frozenset({0, 2}))


def make_updates(
    loss: ArrayLike, accuracy: ArrayLike = 0.5, priority: ArrayLike = (1.0, 0.0)
) -> ClientUpdates:
    """Return clients' updates; by default of two clients, the first with priority."""
    return make_client_updates(loss, accuracy=accuracy, priority=priority)


def test_warmup_selects_only_priority_clients() -> None:
    """For the first warmup_fraction of the rounds only priority clients are selected."""
    gate = EpsilonGate(num_rounds=20, warmup_fraction=0.1)
    selected = [gate.plan(t, POPULATION, ClientReports()).clients for t in range(20)]
    assert selected == [(0, 2)] * 2 + [(0, 1, 2, 3)] * 18


def test_step_schedule_counts_from_round_zero_warmup_included() -> None:
    """The step schedule returns eps_0 while t < fraction * T, counted from the first round."""
    gate = EpsilonGate(num_rounds=10, epsilon=0.3, epsilon_schedule="step", warmup_fraction=0.2)
    assert [gate.plan(t, POPULATION, ClientReports()).epsilon for t in range(10)] == [
        0,
        0,
        0.3,
        0.3,
        0.3,
    ] + [0] * 5


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
    got = [gate.plan(t, POPULATION, ClientReports()).epsilon for t in range(5)]
    assert got == pytest.approx([0.2 * factor for factor in expected], abs=1e-15)


def test_an_infinite_threshold_falls_to_zero_with_its_schedule() -> None:
    """inf times 0 is closed, not NaN."""
    gate = EpsilonGate(num_rounds=3, epsilon=math.inf, epsilon_schedule="linear", warmup_fraction=0)
    assert [compute_threshold(gate, t) for t in range(3)] == [math.inf, math.inf, 0.0]


def test_a_single_round_has_the_whole_threshold() -> None:
    """T = 1: u is 0, not 0 / 0."""
    for schedule in ("linear", "cosine", "exponential", "sqrt"):
        gate = EpsilonGate(num_rounds=1, epsilon=0.2, epsilon_schedule=schedule, warmup_fraction=0)
        assert compute_threshold(gate, 0) == 0.2


def test_the_second_of_two_rounds_has_the_end_of_the_schedule() -> None:
    """T = 2: u is 0 and then 1."""
    for schedule, end in (("linear", 0.0), ("cosine", 0.0), ("exponential", math.exp(-5.0))):
        gate = EpsilonGate(num_rounds=2, epsilon=0.2, epsilon_schedule=schedule, warmup_fraction=0)
        assert [compute_threshold(gate, t) for t in (0, 1)] == pytest.approx(
            [0.2, 0.2 * end], abs=1e-17
        )


def test_warmup_in_rounds_wins_over_the_fraction() -> None:
    """warmup_rounds overrides warmup_fraction."""
    gate = EpsilonGate(num_rounds=20, warmup_fraction=0.5, warmup_rounds=3)
    num_selected = [len(gate.plan(t, POPULATION, ClientReports()).clients) for t in range(20)]
    assert num_selected == [2] * 3 + [4] * 17


def test_one_priority_client_can_define_the_objective() -> None:
    """F is the loss of this client alone, which must have priority."""
    gate = EpsilonGate(num_rounds=5, objective_client=2)
    gate.check_population(POPULATION)
    assert select_objective_clients(gate, frozenset({0, 2})) == {2}
    assert select_objective_clients(gate, frozenset({0})) == frozenset()
    assert select_objective_clients(EpsilonGate(num_rounds=5), frozenset({0, 2})) == {0, 2}
    message = "objective_client must be the id of a priority client, or none, got 1"
    with pytest.raises(ParameterError, match=message):
        EpsilonGate(num_rounds=5, objective_client=1).check_population(POPULATION)


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
    """A non-priority update counts if F_k >= F - eps (acc_k <= acc + eps); NaN never counts."""
    gate = EpsilonGate(num_rounds=1, epsilon=epsilon, warmup_fraction=0, criterion=criterion)
    objective = Objective(loss=1.0, accuracy=0.5)
    got = gate.admit(
        gate.plan(0, POPULATION, ClientReports()),
        objective,
        make_updates([1.0, loss], [0.5, accuracy]),
    )
    assert got.fraction.tolist() == [1.0, float(admitted)]
    assert (got.reason[1] is None) == admitted


def test_a_missing_global_loss_keeps_the_gate_closed() -> None:
    """If no priority client evaluated, F(w_t) is NaN, and no non-priority update counts."""
    gate = EpsilonGate(num_rounds=1, epsilon=0.5, warmup_fraction=0)
    objective = Objective(math.nan, math.nan)
    got = gate.admit(gate.plan(0, POPULATION, ClientReports()), objective, make_updates([1.0, 1.0]))
    assert got.fraction.tolist() == [1.0, 0.0]


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
    """A wrong parameter has the same error in Python as on the command line."""
    arguments: dict[str, object] = {"num_rounds": 10, **changed}
    with pytest.raises(ParameterError, match=message):
        EpsilonGate(**arguments)  # type: ignore[arg-type]


def test_generalized_prioritized_learning_by_hand() -> None:
    """Fraction lambda + (1 - lambda) [inside], times p_k = D_k / sum lambda_i D_i."""
    given = make_client_updates(
        [1.0, 1.1, 2.0, 1.0, 0.2],
        data=[10.0, 20.0, 40.0, 30.0, 50.0],
        priority=[1.0, 0.5, 0.25, 0.0, 0.0],
    )
    gate = EpsilonGate(num_rounds=1, epsilon=0.3, warmup_fraction=0)
    plan = RoundPlan(tuple(range(5)), epsilon=0.3)
    got = gate.admit(plan, Objective(1.0, 0.5), given)
    assert got.fraction.tolist() == [1.0, 1.0, 0.25, 1.0, 0.0]
    assert [reason is None for reason in got.reason] == [True, True, False, True, False]
    assert got.reason[2] == "loss 2 > global 1 + epsilon 0.3"
    _, weights = DataFraction().weigh(None, plan, given, got.fraction)
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
    given = make_updates([1.0, *values[1:]], accuracies, [1.0] + [0.5] * 5)
    plan = RoundPlan(tuple(range(6)), epsilon=0.2, criterion=criterion)
    gate = EpsilonGate(num_rounds=1, criterion=criterion)
    got = gate.admit(plan, Objective(1.0, 0.5), given)
    assert got.fraction.tolist() == [1.0, 1.0, 0.5, 1.0, 0.5, 0.5]


def test_the_gate_takes_the_rounds_from_the_run() -> None:
    """Without T the schedule and the warm-up are undefined."""
    assert EpsilonGate.from_options({"epsilon": 0.5}, RunContext(num_rounds=7)).num_rounds == 7
    with pytest.raises(
        ParameterError, match=r"num_rounds must be a whole number >= 1 \(the schedule"
    ):
        EpsilonGate.from_options({}, RunContext())


# --- reasons of the gate ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("criterion", "epsilon", "loss", "accuracy", "reason"),
    [
        ("loss", 0.2, 0.5, 0.5, "loss 0.5 < global 1 - epsilon 0.2"),
        ("loss", 0.2, 1.5, 0.5, "loss 1.5 > global 1 + epsilon 0.2"),
        ("loss", 0.2, math.nan, 0.5, "it reported no loss"),
        ("loss", 0.0, 1.0, 0.5, "epsilon is 0: the gate is closed"),
        ("accuracy", 0.2, 1.0, 0.75, "accuracy 0.75 > global 0.5 + epsilon 0.2"),
        ("accuracy", 0.2, 1.0, 0.25, "accuracy 0.25 < global 0.5 - epsilon 0.2"),
        ("accuracy", 0.2, 1.0, math.nan, "it reported no accuracy"),
        ("accuracy", 0.0, 1.0, 0.5, "epsilon is 0: the gate is closed"),
        ("accuracy", 0.2, math.nan, 0.5, None),
        ("loss", 0.2, 1.0, math.nan, None),
    ],
)
def test_the_reasons_of_the_gate(
    criterion: str, epsilon: float, loss: float, accuracy: float, reason: str | None
) -> None:
    """The value of the criterion, the violated side of the gate, and the threshold."""
    plan = RoundPlan((0, 1), epsilon=epsilon, criterion=criterion, clients_apply_gate=False)
    gate = EpsilonGate(num_rounds=1)
    got = gate.admit(plan, Objective(1.0, 0.5), make_updates([1.0, loss], [0.5, accuracy]))
    assert got.reason == (None, reason)
    assert got.fraction.tolist() == [1.0, float(reason is None)]


@pytest.mark.parametrize("criterion", ["loss", "accuracy"])
def test_an_unknown_objective_closes_the_gate(criterion: str) -> None:
    """No client without priority is admitted, and the reason is that F is unknown."""
    plan = RoundPlan((0, 1), epsilon=0.2, criterion=criterion)
    got = EpsilonGate(num_rounds=1).admit(
        plan, Objective(math.nan, math.nan), make_updates([1.0, 1.0])
    )
    assert got.reason == (None, f"the priority clients' {criterion} is unknown: the gate is closed")


def test_a_plan_without_a_threshold_closes_the_gate() -> None:
    """The gate then admits priority clients only."""
    got = EpsilonGate(num_rounds=1).admit(
        RoundPlan((0, 1)), Objective(1.0, 0.5), make_updates([1.0, 1.0])
    )
    assert got.reason == (None, "epsilon is 0: the gate is closed")


LOWER = "F_k = 0.9 >= F - eps_t = 1 - 0.2 = 0.8"
UPPER = "F_k = 0.9 <= F + eps_t = 1 + 0.2 = 1.2"
ABOVE = "F_k = 1.5 > F + eps_t = 1 + 0.2 = 1.2"


def explain_admissions(plan: RoundPlan, objective: Objective, given: ClientUpdates) -> list[str]:
    """Return a gate's explanations of two clients' admission."""
    gate = EpsilonGate(num_rounds=1)
    admission = gate.admit(plan, objective, given)
    trace = DecisionTrace(
        plan, objective, given, admission.fraction, admission.reason, None, None, None, ""
    )
    return [gate.explain_admission(trace, index) for index in range(2)]


@pytest.mark.parametrize(
    ("clients_decide", "loss", "priority", "explanation"),
    [
        (True, 0.9, 0.0, f"whole; {LOWER}"),
        (True, 0.5, 0.0, "no; F_k = 0.5 < F - eps_t = 1 - 0.2 = 0.8"),
        (
            False,
            0.9,
            0.0,
            f"whole; {LOWER} and {UPPER}",
        ),
        (False, 0.5, 0.0, "no; F_k = 0.5 < F - eps_t = 1 - 0.2 = 0.8"),
        (False, 1.5, 0.0, f"no; {ABOVE}"),
        (False, math.nan, 0.0, "no; it reported no loss"),
        (
            True,
            1.5,
            0.25,
            f"share lambda_k + (1 - lambda_k) [inside] = 0.25, lambda_k = 0.25; {ABOVE}",
        ),
        (
            True,
            math.nan,
            0.25,
            "share lambda_k + (1 - lambda_k) [inside] = 0.25, lambda_k = 0.25; it reported no loss",
        ),
    ],
)
def test_the_halves_that_the_server_decided_are_explained(
    clients_decide: bool, loss: float, priority: float, explanation: str
) -> None:
    """For an admitted update all of them, for a rejected one those that failed."""
    plan = RoundPlan((0, 1), epsilon=0.2, clients_apply_gate=clients_decide)
    given = make_updates([1.0, loss], priority=[1.0, priority])
    assert explain_admissions(plan, Objective(1.0, 0.5), given) == [
        "whole; the client has priority",
        explanation,
    ]


@pytest.mark.parametrize(
    ("epsilon", "overall", "explanation"),
    [
        (0.0, 1.0, "no; the gate is closed (eps_t = 0)"),
        (0.2, math.nan, "no; the priority clients' loss is unknown: the gate is closed"),
    ],
)
def test_a_closed_gate_is_explained(epsilon: float, overall: float, explanation: str) -> None:
    """The explanation shows no inequality."""
    plan, objective = RoundPlan((0, 1), epsilon=epsilon), Objective(overall, 0.5)
    assert explain_admissions(plan, objective, make_updates([1.0, 0.9]))[1] == explanation
