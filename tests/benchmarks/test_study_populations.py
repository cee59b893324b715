"""Tests of the simulated populations behind the study's error rate."""

import numpy as np

from benchmarks.study_populations import SCENARIOS, count_named, draw_scores


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
