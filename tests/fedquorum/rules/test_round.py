"""One round as a pure function: admitted updates, fixed denominators, and reports."""

import math
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np
import pytest
from fedquorum.errors import SolverError
from fedquorum.rules.composition import RuleSet
from fedquorum.rules.decisions import ClientDecision
from fedquorum.rules.robustness import Robustness
from fedquorum.rules.round import (
    NO_OBJECTIVE,
    NOT_FINITE,
    NOT_SOLVED,
    ClientOutcome,
    RoundDecision,
    RoundState,
    admit,
    compute_objective,
    decide_round,
)
from fedquorum.rules.selection import AllClients, EpsilonGate, Sampling
from fedquorum.rules.state_arrays import to_arrays
from fedquorum.rules.types import ClientReports, Objective, Population, RoundPlan
from fedquorum.rules.weighting import (
    AFLWeighting,
    AverageAll,
    DataFraction,
    FedMGDAWeighting,
    PopulationDataFraction,
    QFedAvgWeighting,
    TERMWeighting,
    Weighting,
)

from tests.builders import (
    FIVE,
    GATE,
    OBJECTIVE,
    build_corrected_weighting,
    compute_round_weights,
    decide_rounds,
    make_client_updates,
    make_declined_outcome,
    make_round_outcomes,
    make_trained_outcome,
    make_unavailable_outcome,
    parse_presence,
)

FEDAU = build_corrected_weighting(DataFraction(), "fedau")
POPULATION = Population.from_size(3, [0])


def make_first_decision(
    weighting: Weighting[Any],
    *outcomes: ClientOutcome,
    plan: RoundPlan | None = None,
    objective: Objective | None = OBJECTIVE,
    state: RoundState | None = None,
    **options: Any,
) -> RoundDecision:
    """Return round 1 of three clients; the first has priority."""
    rules = RuleSet(AllClients(), weighting)
    state_before = RoundState.initial(rules, POPULATION) if state is None else state
    updates = options.pop("updates", None)
    return decide_round(
        rules,
        POPULATION,
        state_before,
        server_round=1,
        plan=plan or RoundPlan((0, 1, 2)),
        objective=objective,
        outcomes=make_round_outcomes(*outcomes, known=3, updates=updates),
        **options,
    )


# --- admitted updates ---------------------------------------------------------------------------


def test_no_priority_update() -> None:
    """p_k is undefined, so no update counts, with that reason; fixed p_k stay defined."""
    plan = RoundPlan((0, 1), epsilon=5.0)
    others = make_client_updates([1.0, 1.0], priority=0.0)
    plain, fixed = RuleSet(GATE, DataFraction()), RuleSet(GATE, FEDAU)
    got = admit(plain, plan, OBJECTIVE, others)
    assert got.reason == ("no priority client's update arrived, so p_k is undefined",) * 2
    assert got.fraction.tolist() == [0.0, 0.0]
    assert admit(fixed, plan, OBJECTIVE, others).reason == (None, None)
    one = make_client_updates([1.0, 1.0], priority=[1.0, 0.0])
    assert admit(plain, plan, OBJECTIVE, one).reason == (None, None)


def test_a_round_without_priority_updates() -> None:
    """Without a fixed denominator p_k is undefined and no update counts; with one others count."""
    presence = parse_presence(5, "0123", "23")
    plain, _ = compute_round_weights(DataFraction(), FIVE, presence, GATE)
    assert plain[1].tolist() == [0.0] * 5
    fixed, _ = compute_round_weights(FEDAU, FIVE, presence, GATE)
    np.testing.assert_allclose(fixed[1], [0, 0, 0.2, 0.4, 0])


# --- fixed denominators -------------------------------------------------------------------------


def test_last_aligned_clients_stay_in_the_denominator() -> None:
    """Clients 2 and 3 enter A^ when first admitted, and stay in it while absent."""
    presence = parse_presence(5, "01", "012", "014", "013", "01", "4")
    weight, _ = compute_round_weights(FEDAU, FIVE, presence, GATE)
    np.testing.assert_allclose(weight[:5, 0], 30 / np.array([40, 60, 60, 100, 100]))
    assert weight[:, 4].tolist() == [0.0] * 6


def test_a_declining_client_leaves_the_denominator() -> None:
    """A declining client is not aligned, and with a closed gate no client is."""
    rules = RuleSet(GATE, FEDAU)
    state = RoundState.initial(rules, FIVE.population)
    priority = (
        make_trained_outcome(0, data=30, loss=1.0),
        make_trained_outcome(1, data=10, loss=1.2),
    )
    aligned = (
        make_trained_outcome(2, data=20, loss=0.9),
        make_trained_outcome(3, data=40, loss=1.1),
    )
    fractions = []
    for others, epsilon in (
        (aligned, 0.5),
        ((make_declined_outcome(2),), 0.5),
        ((), 0.5),
        ((), 0.0),
        ((), 0.5),
    ):
        state = decide_round(
            rules,
            FIVE.population,
            state,
            server_round=1,
            plan=RoundPlan(tuple(range(5)), epsilon=epsilon),
            objective=OBJECTIVE,
            outcomes=make_round_outcomes(*priority, *others, known=5),
        ).next_state
        assert state.admitted_fractions is not None
        fractions.append(state.admitted_fractions.tolist())
    assert fractions == [
        [1, 1, 1, 1, 0],
        [1, 1, 0, 1, 0],
        [1, 1, 0, 1, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 0, 0, 0],
    ]


def test_a_round_without_an_objective_changes_no_admitted_fraction() -> None:
    """If F(w_t) is unknown, an aligned client stays aligned."""
    rules = RuleSet(GATE, FEDAU)
    state = RoundState.initial(rules, FIVE.population)
    state = replace(state, admitted_fractions=np.array([1.0, 1.0, 1.0, 0.0, 0.0]))
    one = decide_round(
        rules,
        FIVE.population,
        state,
        server_round=1,
        plan=RoundPlan(tuple(range(5)), epsilon=0.5),
        objective=NO_OBJECTIVE,
        outcomes=make_round_outcomes(
            make_declined_outcome(2), make_trained_outcome(3, loss=1.0), known=5
        ),
    )
    assert one.next_state.admitted_fractions is not None
    assert one.next_state.admitted_fractions.tolist() == [1, 1, 1, 0, 0]


def test_without_a_fixed_denominator_no_fractions_are_stored() -> None:
    """Nor without a gate."""
    for rules in (RuleSet(GATE, DataFraction()), RuleSet(AllClients(), FEDAU)):
        assert all(
            one.next_state.admitted_fractions is None
            for one in decide_rounds(rules, FIVE, np.ones((3, 5)))
        )


def test_priority_weights_are_initial_fractions() -> None:
    """A client with lambda_k = 0.5 counts half until it is inside the gate."""
    population = Population((0, 1), frozenset({0, 1}), {1: 0.5})
    rules = RuleSet(GATE, FEDAU)
    one = decide_round(
        rules,
        population,
        replace(RoundState.initial(rules, population), reports=ClientReports({1: 20.0})),
        server_round=1,
        plan=RoundPlan((0, 1), epsilon=0.1),
        objective=OBJECTIVE,
        outcomes=make_round_outcomes(
            make_trained_outcome(0, data=10, loss=1.0), make_unavailable_outcome(1), known=2
        ),
    )
    assert one.weight.tolist() == [0.5]
    assert one.report.inclusion_mass == 0.0


def test_a_declined_client_is_admitted_up_to_its_priority_weight() -> None:
    """It was inside the gate and no longer is; its fraction falls to lambda_k."""
    population = Population((0, 1), frozenset({0, 1}), {1: 0.5})
    rules = RuleSet(GATE, FEDAU)
    state = replace(RoundState.initial(rules, population), reports=ClientReports({1: 20.0}))
    fractions = []
    for second in (make_trained_outcome(1, data=20, loss=1.0), make_declined_outcome(1)):
        one = decide_round(
            rules,
            population,
            state,
            server_round=1,
            plan=RoundPlan((0, 1), epsilon=0.1),
            objective=OBJECTIVE,
            outcomes=make_round_outcomes(
                make_trained_outcome(0, data=10, loss=1.0), second, known=2
            ),
        )
        state = one.next_state
        assert state.admitted_fractions is not None
        fractions.append(state.admitted_fractions.tolist())
    assert fractions == [[1.0, 1.0], [1.0, 0.5]]


def test_eligible_clients_form_the_denominator_without_a_gate() -> None:
    """If only priority clients are eligible, the denominator sums over them, present or not."""
    weighting = PopulationDataFraction()
    state = RoundState(
        weighting.init(POPULATION), reports=ClientReports({0: 10.0, 1: 30.0, 2: 60.0})
    )
    plan = RoundPlan((0,), eligible=frozenset({0}))
    one = make_first_decision(weighting, make_trained_outcome(0, data=10), plan=plan, state=state)
    assert one.weight.tolist() == [1.0]


# --- F(w_t) without an evaluation ---------------------------------------------------------------


def test_the_objective_from_the_outcomes() -> None:
    """By lambda_k D_k over the priority clients that reported a finite loss."""
    population = Population((0, 1, 2, 3), frozenset({0, 1, 3}), {1: 0.5})
    usable = [
        make_trained_outcome(0, data=10, loss=1.0),
        make_trained_outcome(1, data=20, loss=4.0),
        make_trained_outcome(2, data=99, loss=9.0),
        make_trained_outcome(3, data=50, loss=math.inf),
    ]
    got = compute_objective(population, usable)
    assert (got.loss, got.accuracy) == (2.5, 0.5)
    alone = compute_objective(population, usable[2:])
    assert math.isnan(alone.loss)
    assert alone.accuracy == 0.5  # each mean is over its finite values
    one = make_first_decision(DataFraction(), *usable[:2], objective=None)
    assert one.report.objective.loss == 1.0


# --- reports ------------------------------------------------------------------------------------


def test_every_selected_client_has_a_decision() -> None:
    """Ascending, with its status, its numbers if it trained, and its weight."""
    one = make_first_decision(
        QFedAvgWeighting(),
        make_trained_outcome(2, data=30, loss=1.0),
        ClientOutcome(0, "rejected", "array 'w' has another shape"),
        make_unavailable_outcome(1),
    )
    assert one.report.decisions == (
        ClientDecision(0, True, "rejected", "array 'w' has another shape", mixing_coefficient=0.0),
        ClientDecision(1, False, "unavailable", "no reply", mixing_coefficient=0.0),
        ClientDecision(
            2,
            False,
            "trained",
            num_examples=30,
            loss=1.0,
            accuracy=0.5,
            response=0.0,
            mixing_coefficient=1.0,
            weight=1.0,
        ),
    )
    assert (one.clients, one.report.num_admitted, one.report.is_empty) == ((2,), 1, False)
    assert one.trace.recorded_decisions == one.report.decisions[2:]
    assert one.trace.denominator == "the sum of the same over the clients admitted in the round"


def test_a_rejection_has_its_reason_and_an_admission_its_note() -> None:
    """The gate's reason replaces the note on the reply."""
    rules = RuleSet(EpsilonGate(num_rounds=1), DataFraction())
    clipped = replace(make_trained_outcome(1, loss=0.1), note="clipped")
    fine = replace(make_trained_outcome(0, loss=1.0), note="clipped")
    one = decide_round(
        rules,
        POPULATION,
        RoundState.initial(rules, POPULATION),
        server_round=1,
        plan=RoundPlan((0, 1), epsilon=0.2),
        objective=OBJECTIVE,
        outcomes=make_round_outcomes(fine, clipped, known=3),
    )
    assert [d.reason for d in one.report.decisions] == [
        "clipped",
        "loss 0.1 < global 1 - epsilon 0.2",
    ]
    assert [d.status for d in one.report.decisions] == ["trained", "rejected"]
    assert one.report.decisions[1].num_examples == 10


def test_a_bound_on_one_client_caps_its_weight() -> None:
    """The report, the step and the note have the capped weight; the trace has the rule's weight."""
    one = make_first_decision(
        DataFraction(),
        make_trained_outcome(0, data=10),
        make_trained_outcome(1, data=30),
        robustness=Robustness(max_weight=0.5),
    )
    assert one.weight.tolist() == [0.25, 0.5]
    assert one.report.decisions[1].weight == 0.5
    assert one.report.decisions[1].reason == "weight 0.75 capped at 0.5"
    assert one.trace.weights is not None
    assert one.trace.weights.weight.tolist() == [0.25, 0.75]
    assert one.trace.weight_cap == 0.5


def test_draws_are_reported_for_the_sampled_clients() -> None:
    """Three draws of two priority clients; the others have none."""
    population = Population.from_size(4, [0, 1])
    rules = RuleSet(AllClients(Sampling(priority_samples=3, seed=1)), DataFraction())
    state = replace(
        RoundState.initial(rules, population), reports=ClientReports({0: 10.0, 1: 10.0})
    )
    plan = rules.plan_round(0, population, state.reports)
    assert plan.replacement_sample is not None
    one = decide_round(
        rules,
        population,
        state,
        server_round=1,
        plan=plan,
        objective=OBJECTIVE,
        outcomes=make_round_outcomes(*(make_trained_outcome(k) for k in plan.clients), known=4),
    )
    num_draws_by_client = {d.client: d.num_draws for d in one.report.decisions}
    assert {k: n for k, n in num_draws_by_client.items() if n is not None} == dict(
        plan.replacement_sample.counts
    )
    assert num_draws_by_client[3] is None


def test_the_divergence_from_the_data_needs_the_data_of_all() -> None:
    """KL(p || w), once every client has reported its amount of data."""
    part = make_first_decision(
        AFLWeighting(), make_trained_outcome(0, loss=1.0), make_trained_outcome(1, loss=1.0)
    )
    assert part.report.divergence is None
    whole = make_first_decision(
        AFLWeighting(), *(make_trained_outcome(k, loss=1.0) for k in range(3))
    )
    assert whole.report.divergence == pytest.approx(0.0, abs=1e-12)
    assert whole.report.mixing is not None


# --- the state ----------------------------------------------------------------------------------


def test_the_last_reports_of_clients_are_stored() -> None:
    """The last D_k and F_k of each reporting client; a missing loss leaves the earlier one."""
    first = make_first_decision(
        DataFraction(),
        make_trained_outcome(0, data=10, loss=1.0),
        make_trained_outcome(2, data=5, loss=2.0),
    )
    assert first.next_state.reports == ClientReports({0: 10.0, 2: 5.0}, {0: 1.0, 2: 2.0})
    second = make_first_decision(
        DataFraction(),
        make_trained_outcome(2, data=6),
        make_declined_outcome(0),
        state=first.next_state,
    )
    assert second.next_state.reports == ClientReports({0: 10.0, 2: 6.0}, {0: 1.0, 2: 2.0})


def test_a_round_does_not_change_its_input_state() -> None:
    """The states before and after a round are two values."""
    rules = RuleSet(GATE, build_corrected_weighting(AFLWeighting(), "fedau"))
    rounds = list(decide_rounds(rules, FIVE, np.ones((2, 5))))
    state_before = RoundState.initial(rules, FIVE.population)
    arrays_before = {
        name: array.copy() for name, array in to_arrays(state_before.weighting, "w").items()
    }
    for name, array in to_arrays(rounds[0].previous_state.weighting, "w").items():
        np.testing.assert_array_equal(array, arrays_before[name])
    assert rounds[1].previous_state is rounds[0].next_state
    assert rounds[0].previous_state.admitted_fractions is None


def test_the_initial_state_without_clients_is_empty() -> None:
    """In an open population no rule has a state before the first client joins."""
    rules = RuleSet(AllClients(), build_corrected_weighting(AverageAll(), "fedau"))
    assert RoundState.initial(rules, Population.open()).weighting is None
    assert RoundState.initial(rules, POPULATION).weighting.omega.tolist() == [1.0] * 3


def test_a_joining_client_starts_with_its_priority_weight() -> None:
    """A new client without priority is not aligned yet; the other clients do not change."""
    rules = RuleSet(GATE, FEDAU)
    (first,) = decide_rounds(rules, FIVE, parse_presence(5, "012"))
    assert first.next_state.admitted_fractions is not None
    assert first.next_state.admitted_fractions.tolist() == [1.0, 1.0, 1.0, 0.0, 0.0]
    after = Population(tuple(range(7)), frozenset({0, 1, 6}))
    larger = first.next_state.with_clients(rules, FIVE.population, after)
    assert larger.admitted_fractions is not None
    assert larger.admitted_fractions.tolist() == [1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0]
    assert larger.reports == first.next_state.reports


def test_a_client_that_joins_between_others_does_not_shift_their_state() -> None:
    """Each client retains its state if new ids come between the others."""
    rules = RuleSet(GATE, FEDAU)
    before = Population((0, 2, 4), frozenset({0}))
    state = replace(
        RoundState.initial(rules, before), admitted_fractions=np.array([1.0, 0.0, 0.25])
    )
    omega = replace(state.weighting, omega=np.array([2.0, 3.0, 5.0]))
    after = Population((0, 1, 2, 3, 4), frozenset({0, 3}))
    larger = replace(state, weighting=omega).with_clients(rules, before, after)
    assert larger.admitted_fractions is not None
    assert larger.admitted_fractions.tolist() == [1.0, 0.0, 0.0, 1.0, 0.25]
    assert larger.weighting.client.tolist() == [0, 1, 2, 3, 4]
    assert larger.weighting.omega.tolist() == [2.0, 1.0, 3.0, 1.0, 5.0]


# --- rejected rounds ----------------------------------------------------------------------------


def test_a_rejected_round_counts_nothing_and_changes_nothing() -> None:
    """The decisions stay readable, without a weight; the state is the previous one."""
    weighting = build_corrected_weighting(AverageAll(), "fedau")
    one = make_first_decision(
        weighting,
        make_trained_outcome(0),
        make_unavailable_outcome(1),
        make_trained_outcome(2, data=20),
    )
    assert one.weight.tolist() == [1 / 3, 1 / 3]
    rejected = one.reject(NOT_FINITE)
    assert rejected.weight.tolist() == [0.0, 0.0]
    assert rejected.next_state is one.previous_state
    assert one.next_state is not one.previous_state
    assert [(d.status, d.reason, d.weight) for d in rejected.report.decisions] == [
        ("rejected", NOT_FINITE, 0.0),
        ("unavailable", "no reply", 0.0),
        ("rejected", NOT_FINITE, 0.0),
    ]
    assert [d.num_examples for d in rejected.report.decisions] == [10, None, 20]
    assert rejected.report.is_empty
    assert not one.report.is_empty
    assert (one.report.rejection_reason, rejected.report.rejection_reason) == (None, NOT_FINITE)


def test_a_round_whose_weights_are_not_found_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run continues with the previous model and state, and the records have the reason."""

    def fails(*_: object) -> NoReturn:
        raise SolverError("the quadratic program of 2 clients was not solved")

    updates = np.array([[1.0, 0.0], [0.0, 2.0]])
    each = (
        make_trained_outcome(0, loss=1.0),
        make_unavailable_outcome(1),
        make_trained_outcome(2, data=30, loss=1.0),
    )
    monkeypatch.setattr(FedMGDAWeighting, "weigh", fails)
    one = make_first_decision(FedMGDAWeighting(), *each, updates=updates)
    reason = f"{NOT_SOLVED}: the quadratic program of 2 clients was not solved"
    assert [(d.status, d.reason, d.weight) for d in one.report.decisions] == [
        ("rejected", reason, 0.0),
        ("unavailable", "no reply", 0.0),
        ("rejected", reason, 0.0),
    ]
    assert one.report.is_empty
    assert one.report.rejection_reason == NOT_SOLVED
    assert one.next_state is one.previous_state


def test_a_rejected_client_retains_its_reason_in_a_rejected_round() -> None:
    """Only the updates that counted get the reason of the round."""
    rules = RuleSet(EpsilonGate(num_rounds=1), DataFraction())
    one = decide_round(
        rules,
        POPULATION,
        RoundState.initial(rules, POPULATION),
        server_round=1,
        plan=RoundPlan((0, 1), epsilon=0.2),
        objective=OBJECTIVE,
        outcomes=make_round_outcomes(
            make_trained_outcome(0, loss=1.0), make_trained_outcome(1, loss=0.1), known=3
        ),
    ).reject(NOT_FINITE)
    assert [d.reason for d in one.report.decisions] == [
        NOT_FINITE,
        "loss 0.1 < global 1 - epsilon 0.2",
    ]


# --- rules that need the updates themselves -----------------------------------------------------


def test_weights_that_cannot_be_decided_are_none() -> None:
    """Without the updates, as in an audit, everything else is decided, and the state stays."""
    updates = np.array([[1.0, 0.0], [0.0, 2.0]])
    each = (make_trained_outcome(0, loss=1.0), make_trained_outcome(1, data=30, loss=1.0))
    whole = make_first_decision(FedMGDAWeighting(), *each, updates=updates)
    assert whole.trace.weights is not None
    np.testing.assert_allclose(whole.weight, [0.5, 0.25], atol=1e-7)
    assert [d.update_norm for d in whole.report.decisions] == [1.0, 2.0]
    blind = make_first_decision(FedMGDAWeighting(), *each, compute_weights=False)
    assert blind.trace.weights is None
    assert blind.trace.next_state is None
    assert blind.weight.tolist() == [0.0, 0.0]
    assert blind.next_state.weighting is blind.previous_state.weighting
    assert blind.next_state.reports == whole.next_state.reports
    assert [d.status for d in blind.report.decisions] == ["trained", "trained"]
    assert blind.report.mixing is None


def test_a_rule_without_its_inputs_raises() -> None:
    """Missing inner products or losses: the round is not decided."""
    with pytest.raises(AssertionError, match="has the inner products of its updates"):
        make_first_decision(FedMGDAWeighting(), make_trained_outcome(0), make_trained_outcome(1))
    with pytest.raises(ValueError, match="loss of the model it received, but none was sent"):
        make_first_decision(TERMWeighting(), make_trained_outcome(0), make_trained_outcome(1))
