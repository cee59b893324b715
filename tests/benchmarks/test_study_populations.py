"""Tests of the simulated populations behind the study's error rate."""

import numpy as np

from benchmarks.study_populations import (
    ROWS,
    SCENARIOS,
    count_named,
    divide_rows,
    draw_scores,
)


def test_equal_methods_are_equal_on_average_only() -> None:
    """Over populations the mean difference is 0, within one it varies more than over its seeds."""
    scores = draw_scores(SCENARIOS[0], np.random.default_rng(1), 40, 10)
    baseline, method, *_ = scores["mean"]
    means = (method - baseline).mean(axis=1)
    assert abs(means.mean()) < 4 * means.std() / 40**0.5
    independent = (method - baseline).std(axis=1, ddof=1).mean() / 10**0.5
    assert means.std() > 1.3 * independent


def test_large_gains_are_named_and_equal_methods_are_not() -> None:
    """Of 20 populations each: all with a gain of four deviations, at most two without."""
    by_gain = {one.gain: one for one in SCENARIOS if one.gain}
    assert count_named(by_gain[4.0], 10, 20)["mean"] == 20
    assert count_named(SCENARIOS[0], 10, 20)["mean"] <= 2


def test_the_rows_that_all_seeds_test_widen_the_interval() -> None:
    """Of 40 populations Student's t names a third, and with row weights at most three are named."""
    fixed = {one.has_row_weights: one for one in SCENARIOS if one.fixed and not one.same_model}
    assert count_named(fixed[False], 10, 40)["mean"] >= 8
    assert count_named(fixed[True], 10, 40)["mean"] <= 3


def test_no_seed_tests_rows_by_which_the_tuning_has_chosen() -> None:
    """Validation rows are the same in all seeds, and test rows are drawn anew among the others."""
    train, validation, test = divide_rows(SCENARIOS[0], np.random.default_rng(0), 2, 6)
    assert (validation == validation[:, :1]).all()
    assert not np.isin(test, validation[0, 0]).any()
    assert (test[:, 0] != test[:, 1]).any()
    rows = np.concatenate([part.reshape(2, 6, -1) for part in (train, validation, test)], axis=2)
    assert (np.sort(rows, axis=2) == np.arange(ROWS)).all()
