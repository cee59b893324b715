"""Probabilities that change with time: the patterns, their rates and their paths."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from fedquorum.client.availability.periodic import (
    PATTERNS,
    AvailabilityPattern,
    InterleavedSine,
    PeriodicProcess,
    Sine,
    Staircase,
    build_pattern,
)
from fedquorum.client.availability.processes import (
    AvailabilityProcess,
    Bernoulli,
    compute_process_state,
)
from fedquorum.errors import ParameterError

P = np.array([0.05, 0.1, 0.12, 0.3, 1.0])


def list_states(process: AvailabilityProcess, client: int, rounds: int = 60) -> list[int]:
    """Return the states of rounds 1, 2, ..."""
    return [
        compute_process_state(process, seed=3, client=client, server_round=t).state
        for t in range(1, rounds + 1)
    ]


def compute_reference(kind: str, p: float, t: int) -> float:
    """Return p_n(t) by an independent form of the paper's formulas and constants."""
    g = 0.3 * math.sin(2 * math.pi * t / 20) + 1 - 0.3
    if kind == "staircase":
        return p if t % 20 < 10 else 0.4 * p
    if kind == "sine" or p * g >= 0.1 - 1e-12:
        return p * g
    return 0.0


@pytest.mark.parametrize("kind", PATTERNS)
def test_the_paper_is_the_default(kind: str) -> None:
    """Period 20, low 0.4, gamma 0.3 and a cut of 0.1, over three periods."""
    for t in range(60):
        expected = [compute_reference(kind, p, t) for p in P.tolist()]
        np.testing.assert_allclose(
            PATTERNS[kind]().compute_probabilities(P, t), expected, rtol=1e-12
        )


@pytest.mark.parametrize(
    ("pattern", "p", "rate"),
    [
        (Staircase(), 0.5, 0.35),
        (Sine(), 0.5, 0.35),
        (InterleavedSine(), 0.12, 0.0397),
        (InterleavedSine(), 0.3, 0.21),
        (InterleavedSine(), 0.1, 0.1 / 20),
        (InterleavedSine(), 0.0999, 0.0),
    ],
)
def test_rates_by_hand(pattern: AvailabilityPattern, p: float, rate: float) -> None:
    """The mean over a period is 0.7 p for both, and less with rounds below the cut."""
    assert PeriodicProcess(p, pattern).rate == pytest.approx(rate, abs=5e-5)
    assert pattern.compute_max_probabilities(np.array([p]))[0] == max(
        pattern.compute_probabilities(np.array([p]), t)[0] for t in range(pattern.period)
    )


def test_rounds_that_are_not_cut() -> None:
    """These are 7 of 20 for p = 0.12, only the peak for p = 0.1, none below, and all for 0.3."""
    there = np.array([InterleavedSine().compute_probabilities(P, t) > 0 for t in range(20)])
    assert there.sum(axis=0).tolist() == [0, 1, 7, 20, 20]
    assert there[5, 1]


@pytest.mark.parametrize("period", [2, 3, 5, 7, 10, 20, 33])
@pytest.mark.parametrize("phase", [0, 1, 8])
def test_the_largest_probability_of_a_sine(period: int, phase: int) -> None:
    """It needs no loop over the period, wherever the peak falls between rounds."""
    for pattern in (Sine(period, phase), InterleavedSine(period, phase, cut=0.25)):
        rounds = [pattern.compute_probabilities(P, t) for t in range(period)]
        np.testing.assert_array_equal(pattern.compute_max_probabilities(P), np.max(rounds, axis=0))


@pytest.mark.parametrize(
    "pattern",
    [
        Staircase(low=1.0),
        Sine(gamma=0.0),
        InterleavedSine(gamma=0.0, cut=0.0),
        Staircase(low=1.0, period=4, phase=3),
    ],
)
@pytest.mark.parametrize("p", [0.02, 0.3, 1.0])
def test_a_pattern_that_changes_nothing_is_bernoulli(
    pattern: AvailabilityPattern, p: float
) -> None:
    """The paths are equal, to the bit."""
    for client in range(4):
        assert list_states(PeriodicProcess(p, pattern), client) == list_states(Bernoulli(p), client)


def test_a_phase_begins_later_in_the_period() -> None:
    """Round t with phase 3 has the probabilities of round t + 3 without a phase."""
    kinds: tuple[type[Staircase | Sine], ...] = (Staircase, Sine, InterleavedSine)
    for kind in kinds:
        shifted, plain = kind(phase=3), kind()
        for t in range(25):
            np.testing.assert_array_equal(
                shifted.compute_probabilities(P, t), plain.compute_probabilities(P, t + 3)
            )


def test_clients_come_as_often_as_the_pattern_says() -> None:
    """The fraction of 4,000 clients available in each round is right within 4 sd."""
    pattern = InterleavedSine(period=4, cut=0.25)
    process = PeriodicProcess(0.5, pattern)
    for t in range(4):
        rng = np.random.default_rng(t)
        found = np.mean([process.advance(None, t + 1, rng) for _ in range(4_000)])
        p = float(pattern.compute_probabilities(np.array([0.5]), t)[0])
        assert found == pytest.approx(p, abs=4 * math.sqrt(p * (1 - p) / 4_000))


def test_a_client_below_the_cut_never_comes() -> None:
    """Its rate is 0."""
    assert PeriodicProcess(0.05, InterleavedSine()).rate == 0.0
    assert not any(list_states(PeriodicProcess(0.05, InterleavedSine()), 0, 200))


def test_a_pattern_is_read_from_settings() -> None:
    """A pattern has a name and the given parameters; other availabilities have none."""
    given = {"name": "interleaved", "p": 0.3, "period": 10, "cut": 0.2}
    assert build_pattern(given) == InterleavedSine(period=10, cut=0.2)
    assert build_pattern({"name": "bernoulli", "p": 0.3}) is None
    assert build_pattern({}) is None


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Staircase(period=3), "period must be an even whole number >= 2, got 3"),
        (lambda: Staircase(low=1.5), "low must be a number >= 0 and <= 1, got 1.5"),
        (lambda: Sine(period=1), "period must be a whole number >= 2, got 1"),
        (lambda: Sine(gamma=0.6), "gamma must be a number >= 0 and <= 0.5, got 0.6"),
        (lambda: Sine(phase=-1), "phase must be a whole number >= 0, got -1"),
        (lambda: InterleavedSine(cut=-0.1), "cut must be a number >= 0 and <= 1, got -0.1"),
        (lambda: PeriodicProcess(0.0, Sine()), "p must be a number > 0 and <= 1, got 0.0"),
    ],
)
def test_impossible_parameters(make: Callable[[], object], message: str) -> None:
    """The error names the parameter, its range and the value."""
    with pytest.raises(ParameterError) as caught:
        make()
    assert str(caught.value) == message
