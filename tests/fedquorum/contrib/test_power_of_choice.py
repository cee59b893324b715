"""Power-of-choice: who is drawn by data, and who of them is asked by loss."""

import math
from collections import Counter
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from fedquorum.composition import RuleSet
from fedquorum.contrib import PowerOfChoice
from fedquorum.errors import ParameterError
from fedquorum.flower.standard_protocol import StandardProtocol
from fedquorum.round import RoundState
from fedquorum.selection import Sampling
from fedquorum.types import ClientReports, Population
from fedquorum.weighting import AAggFFDWeighting, AAggFFSWeighting, AverageAll, AverageParticipating

from tests.builders import build_corrected_weighting
from tests.reference import power_of_choice as reference

N = 20
POPULATION = Population.from_size(N)
DATA = {k: float(5 + 3 * k) for k in range(N)}
RNG = np.random.default_rng(5)
LOSSES = {k: float(loss) for k, loss in enumerate(RNG.lognormal(size=N))}
TOLD = ClientReports(DATA, evaluated_losses=LOSSES)


def rule(fraction: float = 0.2, **options: Any) -> PowerOfChoice:
    return PowerOfChoice(sampling=Sampling(fraction, seed=3), **options)


def drawn(t: int, **options: Any) -> list[int]:
    """Return the candidates of a round in the order of drawing."""
    return list(rule(**options).plan(t, POPULATION, TOLD).candidate_losses)


@pytest.mark.parametrize("count", [4, 7, 8, None, 20])
def test_the_candidates_with_the_largest_losses_are_selected(count: int | None) -> None:
    """As an independent implementation chooses; by default there are twice as many candidates."""
    for t in range(30):
        candidates = drawn(t, candidates=count)
        assert len(set(candidates)) == (8 if count is None else count)
        call = rule(candidates=count).plan(t, POPULATION, TOLD)
        assert set(call.clients) == reference.select_largest_losses(candidates, LOSSES, 4)
        assert call.candidate_losses == {k: LOSSES[k] for k in candidates}


def test_the_candidates_measure_the_model_first() -> None:
    """Before round 1 all clients do; with losses from updates, nobody else."""
    before = rule().hooks.before_round
    assert before is not None
    told = ClientReports(DATA)  # whatever was measured before
    for t in range(5):
        candidates = sorted(drawn(t))
        found = before.select_candidates(t, POPULATION, told)
        assert list(found.clients) == candidates
        assert sorted(found.evaluating_clients) == ([*range(N)] if t == 0 else candidates)
        by_updates = rule(losses="told").select_candidates(t, POPULATION, told)
        assert list(by_updates.clients) == candidates
        assert list(by_updates.evaluating_clients) == ([*range(N)] if t == 0 else [])
    mixed = Population.from_size(N, range(0, N, 4))
    found = rule().select_candidates(1, mixed, told)
    assert len(set(found.clients) & mixed.priority) == 1
    assert set(found.clients) - mixed.priority == set(found.evaluating_clients)


def test_as_many_candidates_as_selected_clients_is_the_sample() -> None:
    """Losses then decide nothing."""
    for t in range(5):
        call = rule(candidates=4).plan(t, POPULATION, TOLD)
        assert set(call.clients) == set(drawn(t, candidates=4))


def test_all_candidates_is_the_largest_losses() -> None:
    """The draw then decides nothing."""
    largest = sorted(sorted(LOSSES, key=LOSSES.__getitem__)[-4:])
    calls = [rule(candidates=N).plan(t, POPULATION, TOLD) for t in range(5)]
    assert [list(call.clients) for call in calls] == [largest] * 5


def test_equal_losses_go_in_the_order_of_drawing() -> None:
    """The first m drawn are asked."""
    told = ClientReports(DATA, evaluated_losses=dict.fromkeys(range(N), 1.0))
    for t in range(10):
        assert set(rule().plan(t, POPULATION, told).clients) == set(drawn(t)[:4])


def test_losses_of_other_clients_change_nothing() -> None:
    """Only candidates are compared."""
    for t in range(10):
        candidates = drawn(t)
        others = {k: 1e9 for k in range(N) if k not in candidates}
        told = ClientReports(DATA, evaluated_losses={**LOSSES, **others})
        assert rule().plan(t, POPULATION, told) == rule().plan(t, POPULATION, TOLD)


def test_a_candidate_without_a_loss_is_not_selected() -> None:
    """Of fewer than m the rest is asked, and of none nobody."""
    candidates = drawn(2)
    for left in (6, 3, 0):
        known = {k: LOSSES[k] for k in candidates[:left]}
        call = rule().plan(2, POPULATION, ClientReports(DATA, evaluated_losses=known))
        assert set(call.clients) == reference.select_largest_losses(candidates, known, 4)
        assert len(call.clients) == min(4, left)


def test_clients_without_a_reported_loss_are_selected_first() -> None:
    """A client that never told a loss has an infinite one."""
    by_told = rule(losses="told", candidates=N)
    known = {k: LOSSES[k] for k in range(N) if k not in (3, 11)}
    call = by_told.plan(
        0, POPULATION, ClientReports(DATA, known, evaluated_losses=dict.fromkeys(range(N), 1e9))
    )
    assert set(call.clients) == {3, 11, *sorted(known, key=known.__getitem__)[-2:]}


def test_candidates_are_drawn_by_their_data() -> None:
    """Every order of two of three clients comes with its probability without replacement."""
    data, rounds, population = [1.0, 2.0, 5.0], 2000, Population.from_size(3)
    told = ClientReports(dict(enumerate(data)))
    select = PowerOfChoice(2, sampling=Sampling(1 / 3, seed=1))
    seen: Counter[tuple[int, ...]] = Counter(
        tuple(select.plan(t, population, told).candidate_losses) for t in range(rounds)
    )
    for order in permutations(range(3), 2):
        p = reference.compute_selection_probability(data, list(order))
        assert seen[order] == pytest.approx(p * rounds, abs=5 * math.sqrt(p * (1 - p) * rounds))


def test_missing_and_zero_amounts_of_data() -> None:
    """An unknown amount counts as the mean, none as nothing; without any, all count alike."""
    select = PowerOfChoice(2, sampling=Sampling(1 / 3, seed=1))
    population = Population.from_size(3)

    def first(told: ClientReports) -> Counter[int]:
        calls = (select.plan(t, population, told).candidate_losses for t in range(1500))
        return Counter(next(iter(candidates)) for candidates in calls)

    mean = first(ClientReports({0: 1.0, 1: 3.0}))
    assert mean[2] == pytest.approx(500, abs=92)
    assert first(ClientReports({0: 1.0, 1: 3.0, 2: 0.0})).keys() == {0, 1}
    for told in (ClientReports(), ClientReports(dict.fromkeys(range(3), 0.0))):
        assert min(first(told).values()) > 405


def test_with_priority_clients_the_choice_is_among_the_others() -> None:
    """Priority clients are drawn uniformly, as everywhere; all of them with fraction 1."""
    population = Population.from_size(N, range(0, N, 4))
    call = rule(candidates=15).plan(1, population, TOLD)
    others = {k: LOSSES[k] for k in population.non_priority_clients}
    assert set(call.candidate_losses) == set(others)
    assert set(call.clients) - population.priority == reference.select_largest_losses(
        list(others), others, 3
    )
    assert len(set(call.clients) & population.priority) == 1
    assert set(rule(1.0).plan(0, population, TOLD).clients) == set(range(N))


def test_only_connected_clients_are_drawn() -> None:
    """Of those that are there m follows from their number."""
    told = ClientReports(DATA, evaluated_losses=LOSSES, available=frozenset(range(10)))
    call = rule().plan(0, POPULATION, told)
    assert set(call.candidate_losses) <= set(range(10))
    assert (len(call.clients), len(call.candidate_losses)) == (2, 4)


@pytest.mark.parametrize("count", [3, 21])
def test_a_number_of_candidates_that_cannot_be(count: int) -> None:
    """Fewer than are asked, or more than there are: before any round."""
    message = rf"candidates must be a whole number from 4, .* to 20, .*, got {count}"
    rules = RuleSet(rule(candidates=count), AverageParticipating())
    with pytest.raises(ParameterError, match=message):
        RoundState.initial(rules, POPULATION)


def test_what_does_not_go_with_it_is_refused() -> None:
    """Corrections, rules that need all clients or their chances, draws, and plain ClientApps."""
    with pytest.raises(ParameterError, match="participation must be none with the selection"):
        RuleSet(rule(), build_corrected_weighting(AverageAll(), "fedau"))
    for weighting in (AAggFFDWeighting(), AAggFFSWeighting()):
        with pytest.raises(ParameterError, match=r"selection must be .* got 'power_of_choice'"):
            RuleSet(rule(), weighting)
    with pytest.raises(ParameterError, match="priority_samples must be None with the selection"):
        PowerOfChoice(sampling=Sampling(priority_samples=2))
    with pytest.raises(ParameterError, match="losses must be told with a ClientApp"):
        StandardProtocol().check_rules(RuleSet(rule(), AverageParticipating()))
    StandardProtocol().check_rules(RuleSet(rule(losses="told"), AverageParticipating()))


def test_a_call_is_explained_by_the_draw_and_the_loss() -> None:
    """Not drawn, drawn and too small a loss, drawn without one, and asked."""
    call = rule().plan(
        2, POPULATION, ClientReports(DATA, evaluated_losses={**LOSSES, drawn(2)[1]: math.nan})
    )
    ranked = sorted(set(drawn(2)) - {drawn(2)[1]}, key=lambda k: -LOSSES[k])
    seed = 'from (seed 3, "selection", round 3)'

    def told(client: int) -> str:
        return rule().explain_selection(2, POPULATION, call, client)

    absent = next(k for k in range(N) if k not in drawn(2))
    assert told(absent).startswith("no; it is not one of 8 candidates")
    assert told(absent).endswith(seed)
    assert told(drawn(2)[1]).startswith("no; number 2 of 8 candidates")
    assert told(drawn(2)[1]).endswith("it reported no loss")
    place = drawn(2).index(ranked[0]) + 1
    asked, loss = told(ranked[0]).split(f"{seed}; ")
    assert asked.startswith(f"yes; number {place} of 8 candidates")
    assert f"F_k = {LOSSES[ranked[0]]:.6g} is number 1 by size" in loss
    assert "the largest 4" in loss
    assert told(ranked[-1]).startswith("no; number ")
