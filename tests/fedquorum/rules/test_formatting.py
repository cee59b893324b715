"""Numbers and formulas as text."""

import math
from dataclasses import replace

import numpy as np
import pytest
from fedquorum.rules.formatting import (
    explain_normalization,
    explain_response,
    find_population_index,
    format_number,
)
from fedquorum.rules.weighting import AAggFFDWeighting, AFLWeighting, DataFraction

from tests.builders import decide_first_round, make_client_updates


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "null"), (0.1234567, "0.123457"), (np.float64(1e-9), "1e-09"), (math.inf, "inf")],
)
def test_numbers_have_six_digits(value: object, text: str) -> None:
    """A missing number is null."""
    assert format_number(value) == text


def test_an_index_is_among_all_clients() -> None:
    """The second of the reporting clients is the fourth of all."""
    trace = decide_first_round(
        DataFraction(), make_client_updates([1.0, 2.0], client=[0, 3], known=5), 5
    )
    assert find_population_index(np.arange(5), trace, 1) == 3


def test_a_response_by_hand() -> None:
    """r = 0 + 1 CDF(3 / 2), the mean over the reporting clients."""
    trace = decide_first_round(AAggFFDWeighting(), make_client_updates([1.0, 3.0]), 2)
    (line,) = explain_response("weibull", 0.0, 1.0, trace, 1)
    assert line.endswith("= 0 + 1 x weibull(3 / 2) = 0.894601")


def test_a_restriction_by_hand() -> None:
    """p of the reporting clients over their sum: 0.15 / 0.4 + 0.25 / 0.4 = 1."""
    trace = decide_first_round(
        AFLWeighting(0.05), make_client_updates([1.0, 3.0], client=[0, 2]), 3
    )
    assert trace.next_state is not None
    (line,) = explain_normalization(np.arange(3), trace.next_state.mixing, trace, 1)
    assert line.endswith("= 0.383333 / 0.666667 = 0.575")


def test_undecided_weights_are_not_explained() -> None:
    """If the records do not determine the weights, there are no numbers to explain."""
    trace = replace(
        decide_first_round(AFLWeighting(), make_client_updates([1.0, 3.0]), 2), weights=None
    )
    assert [*explain_response("weibull", 0.0, 1.0, trace, 1)] == []
    assert [*explain_normalization(np.arange(2), np.ones(2) / 2, trace, 1)] == []
