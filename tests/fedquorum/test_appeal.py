"""For how many clients the model is worth it."""

import math

import numpy as np
import pytest
from fedquorum.appeal import Requirements, appeal, preferred_accuracy

from tests.reference import maxfl as reference

NAN = math.nan


def test_appeal_and_preferred_accuracy_are_those_of_the_formulas() -> None:
    """Client by client, of random losses and accuracies."""
    losses, required, ours, theirs = np.random.default_rng(1).uniform(size=(4, 50))
    expected = reference.appeal(*(x.tolist() for x in (losses, required, ours, theirs)))
    assert appeal(losses, required) == pytest.approx(expected[0])
    assert preferred_accuracy(losses, required, ours, theirs) == pytest.approx(expected[1])


def test_a_tie_does_not_satisfy() -> None:
    """F_k = rho_k is not below it, so the client keeps its local model."""
    loss, required = np.array([1.0, 1.0]), np.array([1.0, np.nextafter(1.0, 2.0)])
    assert appeal(loss, required) == 0.5
    kept = preferred_accuracy(loss, required, np.array([0.1, 0.2]), np.array([0.9, 0.8]))
    assert kept == pytest.approx((0.9 + 0.2) / 2)


def test_the_test_part_does_not_decide() -> None:
    """A client takes the model with the lower training loss, though it tests worse."""
    worse, better = np.array([0.1]), np.array([0.9])
    assert preferred_accuracy(np.array([1.0]), np.array([2.0]), worse, better) == 0.1


def test_what_is_not_known_is_left_out() -> None:
    """Clients without a loss or a requirement; NaN if there is no other."""
    loss, required = np.array([0.0, NAN, 0.0, 3.0]), np.array([1.0, 1.0, NAN, 1.0])
    assert appeal(loss, required) == 0.5
    assert math.isnan(appeal(loss[1:3], required[1:3]))
    accuracy, local = np.array([0.5, 0.5, 0.5, 0.5]), np.array([1.0, 1.0, 1.0, NAN])
    assert preferred_accuracy(loss, required, accuracy, local) == 0.5
    assert math.isnan(preferred_accuracy(loss[3:], required[3:], accuracy[3:], local[3:]))


def test_infinite_requirements() -> None:
    """Any finite loss is below inf, none below -inf."""
    assert appeal(np.array([5.0, 5.0]), np.array([math.inf, -math.inf])) == 0.5


def test_requirements_by_client() -> None:
    """NaN for clients that have none."""
    found = Requirements({3: 0.5}, {3: 0.25})
    assert np.isnan(found.losses(np.array([1, 2]))).all()
    assert found.losses(np.array([3])).tolist() == [0.5]
    assert found.accuracies(np.array([3])).tolist() == [0.25]
    assert np.isnan(Requirements({}).losses(np.array([0]))).all()
