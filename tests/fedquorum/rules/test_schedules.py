"""Schedules of the threshold and of learning rates, and fractions of the rounds."""

from fractions import Fraction

import pytest
from fedquorum.errors import ParameterError
from fedquorum.rules.schedules import (
    ClientLRSchedule,
    ServerLRSchedule,
    compute_epsilon_factor,
    count_rounds,
)
from hypothesis import given
from hypothesis import strategies as st


@given(percent=st.integers(0, 100), num_rounds=st.integers(1, 2000))
def test_counting_rounds_is_exact_in_decimals(percent: int, num_rounds: int) -> None:
    """The number of t with t < fraction * T is that of exact decimal arithmetic."""
    exact = Fraction(percent, 100) * num_rounds
    assert count_rounds(percent / 100, num_rounds) == sum(t < exact for t in range(num_rounds))


def test_an_invalid_schedule_is_refused() -> None:
    """A schedule that does not exist raises and names it."""
    with pytest.raises(ValueError, match="no epsilon schedule named 'lin'"):
        compute_epsilon_factor("lin", 0, 10, 0.5, 5.0)


@pytest.mark.parametrize(
    ("rate", "last", "expected"),
    [
        (ClientLRSchedule(7.5, "step", 0.95, 20), 299, 2.05),
        (ClientLRSchedule(0.1, "step", 0.96, 300), 2999, 1.44),
        (ClientLRSchedule(1e-4, "step", 0.95, 5), 49, 1.59),
        (ClientLRSchedule(1.0, "step", 0.99, 10), 99, 1.09),
        (ClientLRSchedule(1.0, "step", 0.5, 1, first_round=8), 9, 2.0),
        (ClientLRSchedule(0.3, "exponential", 0.5, 2), 3, 2**1.5),
        (ClientLRSchedule(0.3, "inverse_sqrt", every=4), 32, 3.0),
        (ClientLRSchedule(0.3), 500, 1.0),
    ],
)
def test_the_servers_rate_rises_as_the_clients_falls(
    rate: ClientLRSchedule, last: int, expected: float
) -> None:
    """The factors of AAggFF's four experiments; the product of both rates is constant."""
    server = ServerLRSchedule("inverse_client", rate)
    assert server.compute_factor(0) == 1.0
    assert server.compute_factor(last) == pytest.approx(expected, abs=0.005)
    assert all(
        server.compute_factor(t) * rate.compute_lr(t) == pytest.approx(rate.lr) for t in range(last)
    )
    assert ServerLRSchedule.for_client("constant", rate) == ServerLRSchedule()
    assert ServerLRSchedule().compute_factor(last) == 1.0


def test_inverse_client_needs_one_client_rate_per_round() -> None:
    """Theorem 1's rate changes within a round; other schedules than the two are refused."""
    assert ClientLRSchedule.from_settings({"lr": 0.1, "lr_schedule": "theorem"}) is None
    assert ClientLRSchedule.from_settings({}) is None
    message = r"^server_optimizer\.lr_schedule must be constant where no round has one client rate"
    with pytest.raises(ParameterError, match=message):
        ServerLRSchedule.for_client("inverse_client", None)
    with pytest.raises(ParameterError, match="must be one of constant, inverse_client, got 'x'"):
        ServerLRSchedule.for_client("x", ClientLRSchedule(0.1))
