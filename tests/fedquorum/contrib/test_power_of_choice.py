"""Power-of-choice: candidates sampled by data, and the selection among them by loss."""

import math
from collections import Counter
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from fedquorum.contrib import PowerOfChoice
from fedquorum.errors import ParameterError
from fedquorum.flower.protocol import StandardProtocol
from fedquorum.rules.composition import RuleSet
from fedquorum.rules.round import RoundState
from fedquorum.rules.selection import Sampling
from fedquorum.rules.types import ClientReports, Population
from fedquorum.rules.weighting import (
    AAggFFDWeighting,
    AAggFFSWeighting,
    AverageAll,
    AverageParticipating,
)

from tests.builders import build_corrected_weighting
from tests.reference import power_of_choice as reference

N = 20
POPULATION = Population.from_size(N)
DATA = {k: float(5 + 3 * k) for k in range(N)}
RNG = np.random.default_rng(5)
LOSSES = {k: float(loss) for k, loss in enumerate(RNG.lognormal(size=N))}
REPORTS = ClientReports(DATA, evaluated_losses=LOSSES)


def build_rule(fraction: float = 0.2, **options: Any) -> PowerOfChoice:
    return PowerOfChoice(sampling=Sampling(fraction, seed=3), **options)


def draw_candidates(t: int, **options: Any) -> list[int]:
    """Return the candidates of a round in the order of sampling."""
    return list(build_rule(**options).plan(t, POPULATION, REPORTS).candidate_losses)


@pytest.mark.parametrize("count", [4, 7, 8, None, 20])
def test_the_candidates_with_the_largest_losses_are_selected(count: int | None) -> None:
    """As in an independent implementation; by default there are twice as many candidates."""
    for t in range(30):
        candidates = draw_candidates(t, candidates=count)
        assert len(set(candidates)) == (8 if count is None else count)
        plan = build_rule(candidates=count).plan(t, POPULATION, REPORTS)
        assert set(plan.clients) == reference.select_largest_losses(candidates, LOSSES, 4)
        assert plan.candidate_losses == {k: LOSSES[k] for k in candidates}


def test_the_candidates_evaluate_the_model_first() -> None:
    """Before round 1 all clients do; with losses from updates no client does later."""
    before = build_rule().hooks.before_round
    without = build_rule(loss_source="reported").hooks.before_round
    assert before is not None
    assert without is not None
    reports = ClientReports(DATA)  # independent of earlier evaluations
    for t in range(5):
        candidates = sorted(draw_candidates(t))
        candidates_of_round = before.select_candidates(t, POPULATION, reports)
        assert list(candidates_of_round.clients) == candidates
        assert sorted(candidates_of_round.evaluating_clients) == (
            [*range(N)] if t == 0 else candidates
        )
        by_updates = without.select_candidates(t, POPULATION, reports)
        assert list(by_updates.clients) == candidates
        assert list(by_updates.evaluating_clients) == ([*range(N)] if t == 0 else [])
    mixed = Population.from_size(N, range(0, N, 4))
    before = build_rule().hooks.before_round
    assert before is not None
    candidates_of_round = before.select_candidates(1, mixed, reports)
    assert len(set(candidates_of_round.clients) & mixed.priority) == 1
    assert set(candidates_of_round.clients) - mixed.priority == set(
        candidates_of_round.evaluating_clients
    )


def test_as_many_candidates_as_selected_clients_is_the_sample() -> None:
    """Losses then have no effect."""
    for t in range(5):
        plan = build_rule(candidates=4).plan(t, POPULATION, REPORTS)
        assert set(plan.clients) == set(draw_candidates(t, candidates=4))


def test_all_candidates_is_the_largest_losses() -> None:
    """The sample then has no effect."""
    largest = sorted(sorted(LOSSES, key=LOSSES.__getitem__)[-4:])
    calls = [build_rule(candidates=N).plan(t, POPULATION, REPORTS) for t in range(5)]
    assert [list(plan.clients) for plan in calls] == [largest] * 5


def test_equal_losses_are_selected_in_the_order_of_sampling() -> None:
    """The first m candidates are selected."""
    reports = ClientReports(DATA, evaluated_losses=dict.fromkeys(range(N), 1.0))
    for t in range(10):
        assert set(build_rule().plan(t, POPULATION, reports).clients) == set(draw_candidates(t)[:4])


def test_losses_of_other_clients_change_nothing() -> None:
    """Only the losses of candidates are compared."""
    for t in range(10):
        candidates = draw_candidates(t)
        others = {k: 1e9 for k in range(N) if k not in candidates}
        reports = ClientReports(DATA, evaluated_losses={**LOSSES, **others})
        assert build_rule().plan(t, POPULATION, reports) == build_rule().plan(
            t, POPULATION, REPORTS
        )


def test_a_candidate_without_a_loss_is_not_selected() -> None:
    """If fewer than m candidates have a loss, fewer clients are selected."""
    candidates = draw_candidates(2)
    for num_losses in (6, 3, 0):
        losses = {k: LOSSES[k] for k in candidates[:num_losses]}
        plan = build_rule().plan(2, POPULATION, ClientReports(DATA, evaluated_losses=losses))
        assert set(plan.clients) == reference.select_largest_losses(candidates, losses, 4)
        assert len(plan.clients) == min(4, num_losses)


def test_clients_without_a_reported_loss_are_selected_first() -> None:
    """A client that never reported a loss has an infinite one."""
    by_updates = build_rule(loss_source="reported", candidates=N)
    losses = {k: LOSSES[k] for k in range(N) if k not in (3, 11)}
    plan = by_updates.plan(
        0, POPULATION, ClientReports(DATA, losses, evaluated_losses=dict.fromkeys(range(N), 1e9))
    )
    assert set(plan.clients) == {3, 11, *sorted(losses, key=losses.__getitem__)[-2:]}


def test_candidates_are_sampled_by_their_data() -> None:
    """Every order of two of three clients has its probability without replacement."""
    data, rounds, population = [1.0, 2.0, 5.0], 2000, Population.from_size(3)
    reports = ClientReports(dict(enumerate(data)))
    select = PowerOfChoice(2, sampling=Sampling(1 / 3, seed=1))
    orders: Counter[tuple[int, ...]] = Counter(
        tuple(select.plan(t, population, reports).candidate_losses) for t in range(rounds)
    )
    for order in permutations(range(3), 2):
        p = reference.compute_selection_probability(data, list(order))
        assert orders[order] == pytest.approx(p * rounds, abs=5 * math.sqrt(p * (1 - p) * rounds))


@pytest.mark.slow
def test_missing_and_zero_amounts_of_data() -> None:
    """An unknown amount counts as the mean, 0 as 0; without any data, all count equally."""
    select = PowerOfChoice(2, sampling=Sampling(1 / 3, seed=1))
    population = Population.from_size(3)

    def first(reports: ClientReports) -> Counter[int]:
        calls = (select.plan(t, population, reports).candidate_losses for t in range(1500))
        return Counter(next(iter(candidates)) for candidates in calls)

    mean = first(ClientReports({0: 1.0, 1: 3.0}))
    assert mean[2] == pytest.approx(500, abs=92)
    assert first(ClientReports({0: 1.0, 1: 3.0, 2: 0.0})).keys() == {0, 1}
    for reports in (ClientReports(), ClientReports(dict.fromkeys(range(3), 0.0))):
        assert min(first(reports).values()) > 405


def test_with_priority_clients_the_choice_is_among_the_others() -> None:
    """Priority clients are sampled uniformly, as in every selection; fraction 1 takes all."""
    population = Population.from_size(N, range(0, N, 4))
    plan = build_rule(candidates=15).plan(1, population, REPORTS)
    others = {k: LOSSES[k] for k in population.non_priority_clients}
    assert set(plan.candidate_losses) == set(others)
    assert set(plan.clients) - population.priority == reference.select_largest_losses(
        list(others), others, 3
    )
    assert len(set(plan.clients) & population.priority) == 1
    assert set(build_rule(1.0).plan(0, population, REPORTS).clients) == set(range(N))


def test_only_connected_clients_are_sampled() -> None:
    """m follows from the number of connected clients."""
    reports = ClientReports(DATA, evaluated_losses=LOSSES, available=frozenset(range(10)))
    plan = build_rule().plan(0, POPULATION, reports)
    assert set(plan.candidate_losses) <= set(range(10))
    assert (len(plan.clients), len(plan.candidate_losses)) == (2, 4)


@pytest.mark.parametrize("count", [3, 21])
def test_an_impossible_number_of_candidates_is_refused(count: int) -> None:
    """Fewer than the selected clients, or more than all clients, before any round."""
    message = rf"candidates must be a whole number from 4, .* to 20, .*, got {count}"
    rules = RuleSet(build_rule(candidates=count), AverageParticipating())
    with pytest.raises(ParameterError, match=message):
        RoundState.initial(rules, POPULATION)


def test_meaningless_combinations_are_refused() -> None:
    """Corrections, rules that need all clients or their probabilities, draws, plain ClientApps."""
    with pytest.raises(ParameterError, match="participation must be none with the selection"):
        RuleSet(build_rule(), build_corrected_weighting(AverageAll(), "fedau"))
    for weighting in (AAggFFDWeighting(), AAggFFSWeighting()):
        with pytest.raises(ParameterError, match=r"selection must be .* got 'power_of_choice'"):
            RuleSet(build_rule(), weighting)
    with pytest.raises(ParameterError, match="priority_samples must be None with the selection"):
        PowerOfChoice(sampling=Sampling(priority_samples=2))
    with pytest.raises(ParameterError, match="loss_source must be reported with a ClientApp"):
        StandardProtocol().check_rules(RuleSet(build_rule(), AverageParticipating()))
    StandardProtocol().check_rules(
        RuleSet(build_rule(loss_source="reported"), AverageParticipating())
    )


def test_a_selection_is_explained_by_the_sample_and_the_loss() -> None:
    """Not sampled, sampled with too small a loss, sampled without a loss, and selected."""
    plan = build_rule().plan(
        2,
        POPULATION,
        ClientReports(DATA, evaluated_losses={**LOSSES, draw_candidates(2)[1]: math.nan}),
    )
    ranked = sorted(set(draw_candidates(2)) - {draw_candidates(2)[1]}, key=lambda k: -LOSSES[k])
    seed = 'from (seed 3, "selection", round 3)'

    def explain(client: int) -> str:
        return build_rule().explain_selection(2, POPULATION, plan, client)

    absent = next(k for k in range(N) if k not in draw_candidates(2))
    assert explain(absent).startswith("no; it is not one of 8 candidates")
    assert explain(absent).endswith(seed)
    assert explain(draw_candidates(2)[1]).startswith("no; number 2 of 8 candidates")
    assert explain(draw_candidates(2)[1]).endswith("it reported no loss")
    position = draw_candidates(2).index(ranked[0]) + 1
    draw_text, loss = explain(ranked[0]).split(f"{seed}; ")
    assert draw_text.startswith(f"yes; number {position} of 8 candidates")
    assert f"F_k = {LOSSES[ranked[0]]:.6g} is number 1 by size" in loss
    assert "the largest 4" in loss
    assert explain(ranked[-1]).startswith("no; number ")
