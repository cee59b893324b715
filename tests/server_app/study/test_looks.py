"""Tests of planned looks: the levels by hand, and that they never exceed the whole level."""

import pytest
from scipy import stats

from server_app.study.looks import (
    Look,
    add_look,
    compute_look_confidence,
    compute_next_confidence,
)


def list_levels(seeds: tuple[int, ...], planned: int, ratio: float = 0.0) -> list[float]:
    """Return the level of each look of a study with 95 %."""
    looks: tuple[Look, ...] = ()
    levels = []
    for number in seeds:
        looks = add_look(looks, number, planned)
        levels.append(1 - compute_look_confidence(looks, 0.95, ratio))
    return levels


def test_a_single_look_spends_all_but_the_reserve() -> None:
    """Four fifths of 5 %."""
    assert list_levels((10,), 10) == [pytest.approx(0.04)]


@pytest.mark.parametrize("ratio", [0.0, 0.3125])
def test_planned_looks_spend_by_information(ratio: float) -> None:
    """Lan and DeMets: 4 (1 - Phi(z / sqrt(t))), t from the variances of the mean difference."""
    fraction = (1 / 20 + ratio) / (1 / 10 + ratio)
    first = 4 * stats.norm.sf(stats.norm.isf(0.01) / fraction**0.5)
    assert list_levels((10, 20), 20, ratio) == pytest.approx([first, 0.04 - first])
    assert first < 0.04 * fraction**0.5


def test_looks_beyond_the_plan_halve_the_reserve() -> None:
    """A fifth of 5 % is for them: a half of it, a quarter, an eighth."""
    assert list_levels((5, 7, 8, 30), 5) == pytest.approx([0.04, 0.005, 0.0025, 0.00125])


@pytest.mark.parametrize("ratio", [0.0, 0.3125])
@pytest.mark.parametrize("planned", [5, 12, 40])
def test_all_looks_spend_at_most_the_level(planned: int, ratio: float) -> None:
    """However often somebody looks, each time with a level above 0."""
    levels = list_levels(tuple(range(5, 60)), planned, ratio)
    assert sum(levels) <= 0.05 + 1e-12  # rounding of 55 sums
    assert min(levels[: planned - 4]) > 0


def test_the_same_seeds_again_are_no_look() -> None:
    """A plan that is changed after the first look does not count."""
    looks = add_look((), 5, 10)
    assert add_look(looks, 5, 20) == looks
    assert add_look(looks, 8, 50) == (Look(5, 10), Look(8, 10))


def test_the_next_look_is_at_the_end_of_the_plan_or_beyond_it() -> None:
    """Its confidence is that of a look there."""
    assert compute_next_confidence((Look(5, 20),), 0.95) == compute_look_confidence(
        (Look(5, 20), Look(20, 20)), 0.95
    )
    assert compute_next_confidence((Look(20, 20),), 0.95) == pytest.approx(1 - 0.005)
    assert compute_next_confidence((), 0.95) == pytest.approx(0.96)
