"""Responses: the six transforms, their range, the doubly robust estimate, and missing losses."""

import itertools
import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from fedquorum.errors import ParameterError
from fedquorum.rules.parameters import CDF
from fedquorum.rules.types import FloatArray, RoundPlan
from fedquorum.rules.weighting import AAggFFDWeighting, AAggFFSWeighting
from fedquorum.rules.weighting.responses import (
    compute_authors_cdf,
    compute_bounded_responses,
    compute_cdf,
    compute_decision_loss,
    compute_relative_losses,
    compute_reported_mask,
    estimate_doubly_robust,
    find_client_indices,
    resolve_response_range,
    scatter,
)
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tests.builders import make_client_updates
from tests.reference import aaggff

LOSSES = hnp.arrays(np.float64, st.integers(1, 30), elements=st.floats(1e-12, 1e6))


@pytest.mark.parametrize("cdf", CDF.choices)
def test_the_authors_transforms_equal_the_cdfs_except_for_the_normal_one(cdf: str) -> None:
    """Their normal one is (1 + erfc((x - 1) / sqrt 2)) / 2."""
    x = np.array([0.0, 0.3, 1.0, 2.5, 40.0])
    expected = [(1 + math.erfc((value - 1) / math.sqrt(2))) / 2 for value in x]
    if cdf != "normal":
        expected = compute_cdf(cdf, x).tolist()
    np.testing.assert_allclose(compute_authors_cdf(cdf, x), expected, rtol=1e-14)


def test_every_transform_has_a_reference() -> None:
    """The names of the parameter, of the rules and of the reference are the same six."""
    assert set(CDF.choices) == set(aaggff.CDFS)
    assert len(CDF.choices) == 6


@pytest.mark.parametrize("cdf", CDF.choices)
def test_transforms_match_the_reference(cdf: str) -> None:
    """To 1e-13 of the value in 40 digits, from 0 to deep in the tail."""
    x = np.concatenate([[0.0], np.logspace(-12, 2, 200), [1e6]])
    expected = [float(aaggff.CDFS[cdf](mpmath.mpf(float(v)))) for v in x]
    np.testing.assert_allclose(compute_cdf(cdf, x), expected, rtol=1e-13, atol=1e-300)


@pytest.mark.parametrize("cdf", CDF.choices)
def test_transforms_are_distribution_functions(cdf: str) -> None:
    """They increase, strictly within the accuracy of floats, and stay inside [0, 1]."""
    value = compute_cdf(cdf, np.linspace(0.0, 5.0, 2001))
    assert np.all(np.diff(value) >= 0)
    assert np.all(np.diff(value[400:1200]) > 0)
    ends = compute_cdf(cdf, np.array([0.0, 1e-300, 1e6, 1e300]))
    assert np.all((ends >= 0) & (ends <= 1))
    assert ends[-1] == 1.0


def test_an_invalid_transform_is_refused() -> None:
    """A name that does not exist raises, in the function and with the range in the rules."""
    with pytest.raises(KeyError, match="cauchy"):
        compute_cdf("cauchy", np.ones(1))
    for rule in (AAggFFSWeighting, AAggFFDWeighting):
        with pytest.raises(ParameterError, match=r"cdf must be one of weibull, .*, got 'cauchy'"):
            rule(cdf="cauchy")


@given(loss=LOSSES, cdf=st.sampled_from(CDF.choices))
def test_responses_stay_in_their_range_in_the_order_of_the_losses(
    loss: FloatArray, cdf: str
) -> None:
    """r is in [C1, C2] for losses from 1e-12 to 1e6, and a larger loss has no smaller r."""
    response = compute_bounded_responses(loss, cdf, 0.25, 0.75)
    assert np.all((response >= 0.25) & (response <= 0.75))
    assert np.all(np.diff(response[np.argsort(loss)]) >= 0)


@given(loss=LOSSES, unit=st.sampled_from([1e-3, 2.0, 1e6]))
def test_responses_have_no_unit(loss: FloatArray, unit: float) -> None:
    """Losses in another unit give the same responses: only the ratio to the mean counts."""
    np.testing.assert_allclose(
        compute_bounded_responses(unit * loss, "logistic", 0.0, 1.0),
        compute_bounded_responses(loss, "logistic", 0.0, 1.0),
        rtol=1e-12,
    )


def test_relative_losses() -> None:
    """F / mean F; 1 if all losses are 0; no overflow of the sum; empty without clients."""
    assert compute_relative_losses(np.array([1.0, 3.0])).tolist() == [0.5, 1.5]
    assert compute_relative_losses(np.zeros(3)).tolist() == [1.0, 1.0, 1.0]
    np.testing.assert_allclose(compute_relative_losses(np.full(4, 1.5e308)), np.ones(4))
    assert compute_relative_losses(np.zeros(0)).shape == (0,)


def test_decision_loss() -> None:
    """-log(1 + <p, r>), and inf if the logarithm is undefined."""
    assert compute_decision_loss(np.array([0.5, 0.5]), np.array([0.2, 0.4])) == -math.log1p(0.3)
    assert compute_decision_loss(np.array([1.0, 0.0]), np.array([-1.0, 9.0])) == math.inf


# --- the doubly robust estimate ---------------------------------------------------------------


def compute_expected_estimate(response: FloatArray, m: int, rbar: float | None) -> FloatArray:
    """Return E r~ over all samples of m of the K clients; rbar None is the sample's mean."""
    k = len(response)
    total = np.zeros(k)
    samples = [np.array(s) for s in itertools.combinations(range(k), m)]
    for sample in samples:
        sampled = response[sample]
        total += estimate_doubly_robust(
            sampled, sample, k, m / k, float(sampled.mean()) if rbar is None else rbar
        )
    return total / len(samples)


RESPONSE = np.array([0.05, 0.9, 0.3, 0.31, 0.77, 0.12])


@pytest.mark.parametrize("m", range(1, 7))
@pytest.mark.parametrize("rbar", [0.0, 0.4, 3.0])
def test_unbiased_for_an_rbar_fixed_before_sampling(m: int, rbar: float) -> None:
    """Over all samples of size m the estimate's mean is the response, for any rbar."""
    np.testing.assert_allclose(compute_expected_estimate(RESPONSE, m, rbar), RESPONSE, rtol=1e-12)


@pytest.mark.parametrize("m", range(1, 7))
def test_the_samples_own_mean_shrinks(m: int) -> None:
    """E r~_i - mean = (1 - (K - m) / (m (K - 1))) (r_i - mean), which is 0 for m = 1."""
    k = len(RESPONSE)
    factor = 1 - Fraction(k - m, m * (k - 1))
    expected = RESPONSE.mean() + float(factor) * (RESPONSE - RESPONSE.mean())
    np.testing.assert_allclose(compute_expected_estimate(RESPONSE, m, None), expected, rtol=1e-12)
    if m == 1:
        assert factor == 0


def test_with_all_reporting_the_estimate_is_the_response() -> None:
    """With C = 1 the estimate is r, to the last bit."""
    estimate = estimate_doubly_robust(RESPONSE, np.arange(6), 6, 1.0, float(RESPONSE.mean()))
    assert estimate.tolist() == RESPONSE.tolist()


def test_clients_that_did_not_report_have_rbar() -> None:
    """r~_i = rbar off the sample, and rbar + (r_i - rbar) / C on it."""
    estimate = estimate_doubly_robust(np.array([0.5]), np.array([2]), 4, 0.25, 0.1)
    np.testing.assert_allclose(estimate, [0.1, 0.1, 1.7, 0.1])


# --- ranges, and missing losses --------------------------------------------------------------


def test_response_range() -> None:
    """By default 0 and the rule's C2; C1 must stay below C2, given or default."""
    assert resolve_response_range(None, None, 0.25) == (0.0, 0.25)
    assert resolve_response_range(0.1, 2.0, 0.25) == (0.1, 2.0)
    with pytest.raises(ParameterError, match=r"c2 must be a number > 0\.5, got 0\.25"):
        resolve_response_range(0.5, None, 0.25)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"c1": -0.1}, r"c1 must be a number >= 0, got -0\.1"),
        ({"c2": 0.0}, r"c2 must be a number > 0, got 0\.0"),
        ({"c1": 0.5, "c2": 0.5}, r"c2 must be a number > 0\.5, got 0\.5"),
    ],
)
@pytest.mark.parametrize("rule", [AAggFFSWeighting, AAggFFDWeighting])
def test_impossible_ranges(
    rule: type[AAggFFSWeighting | AAggFFDWeighting], changed: dict[str, float], message: str
) -> None:
    """The constructor refuses an empty range."""
    with pytest.raises(ParameterError, match=message):
        rule(**changed)  # type: ignore[arg-type]


def test_reporting_needs_a_fraction_and_a_loss() -> None:
    """Updates not admitted, or without a loss, do not count."""
    got = compute_reported_mask(
        RoundPlan((0, 1, 2)), make_client_updates([1.0, math.nan, 2.0]), np.array([1.0, 1.0, 0.0])
    )
    assert got.tolist() == [True, False, False]
    assert compute_reported_mask(RoundPlan((0,)), make_client_updates([]), np.zeros(0)).shape == (
        0,
    )
    scattered = scatter(np.array([7.0]), got)
    assert scattered[0] == 7.0
    assert np.isnan(scattered[1:]).all()


def test_missing_losses_are_a_configuration_error() -> None:
    """If no client evaluates, a rule that weights by losses raises an error."""
    with pytest.raises(ValueError, match="loss of the model it received, but none was sent"):
        compute_reported_mask(
            RoundPlan((0, 1)), make_client_updates([math.nan, math.nan]), np.ones(2)
        )
    with pytest.raises(AssertionError, match="requests the losses that its weighting needs"):
        compute_reported_mask(
            RoundPlan((0, 1), requests_loss=False), make_client_updates([1.0, 2.0]), np.ones(2)
        )


def test_client_indices() -> None:
    """The indices of the updates' clients among all clients."""
    assert find_client_indices(np.array([3, 5, 9]), make_client_updates([1.0] * 3)).tolist() == [
        0,
        0,
        0,
    ]
    assert find_client_indices(np.array([0, 1, 2]), make_client_updates([1.0] * 3)).tolist() == [
        0,
        1,
        2,
    ]
    assert find_client_indices(
        np.array([-4, 0, 1, 7]), make_client_updates([1.0] * 2)
    ).tolist() == [1, 2]
