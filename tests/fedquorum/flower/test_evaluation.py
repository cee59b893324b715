"""Plans of evaluations, and the objective from their replies."""

import math

import pytest
from fedquorum.flower.codec import EvaluateResult, Status
from fedquorum.flower.evaluation import EvaluationPlan, build_client_evaluations, update_objective
from fedquorum.flower.protocol import NativeProtocol
from fedquorum.flower.session import ReplyResults
from fedquorum.flower.validation import MAX_LOSS
from fedquorum.metrics.fairness import weighted_mean
from fedquorum.rules.composition import RuleSet
from fedquorum.rules.decisions import compute_priority_objective
from fedquorum.rules.hooks import Candidates
from fedquorum.rules.selection import EpsilonGate, PriorityOnly, Sampling, Selection
from fedquorum.rules.types import Objective, Population
from fedquorum.rules.weighting import DataFraction
from fedquorum.server.state import ServerState

POPULATION = Population((0, 1, 2), frozenset((0, 1)))
HALF = Sampling(0.5, seed=1)


MEASURINGS = ([(0, 2.0), (1, 1.0)], [(0, 4.0)])
"""Clients and their losses after two rounds; client 1 misses the second measuring."""


def make_evaluation(client: int, loss: float) -> EvaluateResult:
    return EvaluateResult(
        client,
        Status.DONE,
        num_examples=10,
        loss=loss,
        accuracy=0.5,
        test_num_examples=10,
        test_loss=loss,
        test_accuracy=0.5,
    )


@pytest.mark.parametrize("loss", [1.7e308, 2 * MAX_LOSS, math.inf])
def test_a_loss_beyond_all_bounds_counts_as_infinite(loss: float) -> None:
    """A mean of two such losses would otherwise overflow and end the run."""
    answers = ReplyResults(
        by_client={k: make_evaluation(k, loss) for k in (0, 1)} | {2: make_evaluation(2, 1.0)}
    )
    first, second, third = build_client_evaluations(answers, POPULATION)
    for evaluation in (first, second):
        assert (evaluation.loss, evaluation.test_loss) == (math.inf, math.inf)
    assert (third.loss, third.test_loss) == (1.0, 1.0)
    assert weighted_mean([e.test_loss for e in (first, second, third)], [10, 10, 10]) == math.inf
    objective = compute_priority_objective([first, second])
    assert objective is not None


def test_a_large_loss_stays_unchanged() -> None:
    """Losses up to the bound of an update are not clamped."""
    (evaluation,) = build_client_evaluations(
        ReplyResults(by_client={0: make_evaluation(0, MAX_LOSS)}), POPULATION
    )
    assert evaluation.loss == MAX_LOSS


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        (EpsilonGate(num_rounds=9, sampling=HALF), (0, 1, 2, 3)),
        (EpsilonGate(num_rounds=9, sampling=HALF, objective_clients="sampled"), (1, 3)),
        (PriorityOnly(HALF), (1, 3)),
    ],
)
def test_a_gate_compares_with_all_priority_clients(
    selection: Selection, expected: tuple[int, ...]
) -> None:
    """F covers all of them, even if the round selects half; only connected ones if known."""
    population = Population(tuple(range(6)), frozenset(range(4)))
    rules, communication = RuleSet(selection, DataFraction()), NativeProtocol()

    def list_evaluated(present: frozenset[int] | None) -> tuple[int, ...]:
        call = Candidates((1, 3, 4))
        return EvaluationPlan.for_next_round(
            population, communication, (), call, rules=rules, available=present
        ).objective_clients

    assert list_evaluated(None) == expected
    assert list_evaluated(frozenset({1, 3, 5})) == (1, 3)


def test_clients_missing_in_the_objective_are_named() -> None:
    """Among those selected: clients that failed or reported no loss; all, if F is unknown."""
    state = ServerState.initial(RuleSet(PriorityOnly(HALF), DataFraction()), POPULATION)
    for losses, expected in (
        ({0: 1.0, 1: 3.0}, Objective(2.0, 0.5)),
        ({1: 3.0}, Objective(3.0, 0.5, missing_clients=(0,))),
        ({0: math.nan, 1: 3.0}, Objective(3.0, 0.5, missing_clients=(0,))),
        ({0: math.inf, 1: 3.0}, Objective(math.inf, 0.5)),
    ):
        parts = {k: make_evaluation(k, loss) for k, loss in losses.items()}
        measured = build_client_evaluations(ReplyResults(by_client=parts), POPULATION)
        for stands_in in (False, True):
            asked = frozenset({0, 1})
            after = update_objective(state, asked, measured, reuse_last=stands_in)
            assert after.objective == expected
    for stands_in in (False, True):
        objective = update_objective(state, asked, (), reuse_last=stands_in).objective
        assert objective is not None
        assert math.isnan(objective.loss)
        assert objective.missing_clients == (0, 1)


def test_a_clients_last_evaluation_replaces_a_missing_one() -> None:
    """If a quorum may close early, F covers all clients and names those with an old loss."""
    rules = RuleSet(PriorityOnly(HALF), DataFraction())
    answers = [
        ReplyResults(by_client={k: make_evaluation(k, loss) for k, loss in each})
        for each in MEASURINGS
    ]
    evaluations = [build_client_evaluations(one, POPULATION) for one in answers]
    asked = frozenset({0, 1})
    for stands_in, expected in (
        (True, Objective(2.5, 0.5, stale_clients=(1,))),
        (False, Objective(4.0, 0.5, missing_clients=(1,))),
    ):
        state = ServerState.initial(rules, POPULATION)
        for measured in evaluations:
            state = update_objective(state, asked, measured, reuse_last=stands_in)
        assert state.objective == expected
        assert state.last_evaluations.keys() == ({0, 1} if stands_in else set())
