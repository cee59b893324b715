"""Tests of planned looks: what each may spend, and that all together keep the level."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtr, ndtri

from server_app.study.looks import (
    RESERVE,
    Look,
    add_look,
    compute_look_confidence,
    compute_next_confidence,
    spend_evenly,
)


def compute_levels(looks: tuple[Look, ...], confidence: float, ratio: float) -> list[float]:
    """Return the level of each look in turn."""
    return [
        1 - compute_look_confidence(looks[: number + 1], confidence, ratio)
        for number in range(len(looks))
    ]


def test_a_study_with_one_look_keeps_a_fifth() -> None:
    """The plan's only look has 96 % intervals for 95 %."""
    assert compute_look_confidence([Look(10, 10)], 0.95) == pytest.approx(0.96)


def test_an_early_look_spends_what_lan_and_demets_say() -> None:
    """At half of the planned information, by their formula for each side; the end gets the rest."""
    alpha = (1 - RESERVE) * 0.05
    spent = 4 * ndtr(ndtri(alpha / 4) / math.sqrt(0.5))
    looks = (Look(10, 20), Look(20, 20))
    first, last = compute_levels(looks, 0.95, 0.0)
    assert first == pytest.approx(spent)
    assert last == pytest.approx(alpha - spent)


def test_an_even_function_spends_as_pocock_does() -> None:
    """At half of the planned information, by Lan and DeMets's formula; the end gets the rest."""
    alpha = (1 - RESERVE) * 0.05
    spent = alpha * math.log(1 + (math.e - 1) * 0.5)
    looks = (Look(10, 20), Look(20, 20))
    first, last = (
        1 - compute_look_confidence(looks[:number], 0.95, spend=spend_evenly) for number in (1, 2)
    )
    assert first == pytest.approx(spent)
    assert last == pytest.approx(alpha - spent)


def test_information_counts_shared_rows() -> None:
    """With r = 0.3125, 10 of 20 seeds have 88 % of the information, not half."""
    (half,) = compute_levels((Look(10, 20),), 0.95, 0.0)
    (most,) = compute_levels((Look(10, 20),), 0.95, 0.3125)
    fraction = (1 / 20 + 0.3125) / (1 / 10 + 0.3125)
    alpha = (1 - RESERVE) * 0.05
    expected = 4 * ndtr(ndtri(alpha / 4) / math.sqrt(fraction))
    assert half < most == pytest.approx(expected)


def test_seeds_beyond_the_plan_halve_the_reserve() -> None:
    """A tenth of the level, then a twentieth."""
    looks = (Look(10, 10), Look(15, 10), Look(30, 10))
    assert compute_levels(looks, 0.95, 0.0) == pytest.approx([0.04, 0.005, 0.0025])


@given(
    st.lists(st.integers(5, 200), min_size=1, max_size=12, unique=True),
    st.integers(5, 100),
    st.floats(0, 2),
)
def test_all_looks_together_keep_the_level(seeds: list[int], planned: int, ratio: float) -> None:
    """Whatever the looks and the plan."""
    looks: tuple[Look, ...] = ()
    levels = []
    for number in sorted(seeds):
        looks = add_look(looks, number, planned)
        levels.append(1 - compute_look_confidence(looks, 0.95, ratio))
    assert all(level >= 0 for level in levels)
    assert sum(levels) <= 0.05 + 1e-12


def test_the_same_seeds_are_no_new_look() -> None:
    """To print a result again costs nothing; the first look's plan stays."""
    looks = add_look((), 10, 20)
    assert add_look(looks, 10, 99) == looks
    assert add_look(looks, 12, 99) == (Look(10, 20), Look(12, 20))
    assert add_look((), 10, 5) == (Look(10, 10),)


def test_the_next_look() -> None:
    """It is at the plan's end, or the next beyond it."""
    inside, beyond = (Look(10, 20),), (Look(20, 20),)
    at_the_end = compute_look_confidence((*inside, Look(20, 20)), 0.95)
    assert compute_next_confidence(inside, 0.95) == at_the_end
    assert compute_next_confidence(beyond, 0.95) == pytest.approx(1 - 0.005)
