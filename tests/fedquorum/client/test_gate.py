"""FedALIGN's decision on the client."""

import math

import pytest
from fedquorum.client.gate import should_train
from hypothesis import given
from hypothesis import strategies as st

INF, NAN = math.inf, math.nan


def step_above(value: float) -> float:
    return math.nextafter(value, INF)


def step_below(value: float) -> float:
    return math.nextafter(value, -INF)


@pytest.mark.parametrize(
    ("epsilon", "global_loss", "loss", "expected"),
    [
        (0.2, 1.0, 0.5, True),
        (0.2, 1.0, 1.1, True),
        (0.2, 1.0, 1.2, True),  # a client on the boundary trains
        (0.2, 1.0, step_above(1.2), False),
        (0.2, 0.1, 0.1 + 0.2, True),  # 0.30000000000000004, as F + eps comes out in floats
        (0.2, 0.1, step_above(0.1 + 0.2), False),
        (0.1, 0.7, 0.8, False),  # 0.7 + 0.1 is just below 0.8 in floats, though 0.8 - 0.7 < 0.1
        (0.2, 1.0, 9.0, False),
        (0.0, 1.0, 1.0, False),  # closed, even at equal losses
        (0.0, 1.0, 0.0, False),
        (5e-324, 1.0, 1.0, True),  # the smallest positive epsilon opens it at equal losses
        (INF, 1.0, 1e300, True),
        (INF, 1.0, INF, True),
        (INF, 1.0, NAN, False),
        (INF, NAN, 1.0, False),
        (0.2, 1.0, NAN, False),
        (0.2, NAN, 1.0, False),
        (0.0, NAN, NAN, False),
        (NAN, 1.0, 0.5, False),
    ],
)
def test_loss_criterion(epsilon: float, global_loss: float, loss: float, expected: bool) -> None:
    """By loss a client trains if F_k <= F + eps in floats; 0 closes the gate, NaN never trains."""
    decision = should_train(
        "loss", epsilon, global_loss=global_loss, global_accuracy=0.9, loss=loss, accuracy=0.1
    )
    assert decision is expected


@pytest.mark.parametrize(
    ("epsilon", "global_accuracy", "accuracy", "expected"),
    [
        (0.2, 0.7, 0.9, True),
        (0.2, 0.7, 0.6, True),
        (0.2, 0.7, 0.7 - 0.2, True),  # a client on the boundary trains
        (0.2, 0.7, step_below(0.7 - 0.2), False),
        (0.1, 0.3, 0.2, True),  # 0.3 - 0.1 is just below 0.2 in floats
        (0.3, 0.9, 0.6, False),  # 0.9 - 0.3 is just above 0.6 in floats
        (0.2, 0.7, 0.0, False),
        (0.0, 0.7, 0.7, False),  # closed, even at equal accuracies
        (0.0, 0.7, 1.0, False),
        (5e-324, 0.7, 0.7, True),
        (INF, 1.0, 0.0, True),
        (INF, 1.0, NAN, False),
        (INF, NAN, 1.0, False),
        (0.2, 0.7, NAN, False),
        (0.2, NAN, 0.7, False),
        (0.0, NAN, NAN, False),
        (NAN, 0.7, 0.9, False),
    ],
)
def test_accuracy_criterion(
    epsilon: float, global_accuracy: float, accuracy: float, expected: bool
) -> None:
    """By accuracy a client trains if acc_k >= acc - eps in floats; NaN never trains."""
    decision = should_train(
        "accuracy",
        epsilon,
        global_loss=0.1,
        global_accuracy=global_accuracy,
        loss=9.0,
        accuracy=accuracy,
    )
    assert decision is expected


@pytest.mark.parametrize("epsilon", [0.0, 0.2, INF])
@pytest.mark.parametrize("criterion", ["", "Loss", "both"])
def test_an_invalid_criterion_is_refused(criterion: str, epsilon: float) -> None:
    """An unknown criterion raises an error that names it, for any epsilon."""
    with pytest.raises(ValueError, match=f"must be loss or accuracy, got '{criterion}'"):
        should_train(criterion, epsilon, global_loss=1, global_accuracy=1, loss=1, accuracy=1)


measures = st.one_of(st.floats(0, 10), st.sampled_from([0.1, 0.3, 0.5, NAN]))
epsilons = st.one_of(st.floats(0, 10), st.sampled_from([0.0, 0.2, INF]))


def decide_independently(local: float, common: float, epsilon: float, sign: int) -> bool:
    """Decide by an independent formula: train only if the badness is provably small enough."""
    if any(map(math.isnan, (local, common))) or not epsilon > 0:
        return False
    return not sign * local > sign * common + epsilon


@given(local=measures, common=measures, epsilon=epsilons)
def test_decision_is_the_formula(local: float, common: float, epsilon: float) -> None:
    """Both criteria agree with an independent formula and depend only on their own numbers."""
    by_loss = should_train(
        "loss", epsilon, global_loss=common, global_accuracy=NAN, loss=local, accuracy=NAN
    )
    by_accuracy = should_train(
        "accuracy", epsilon, global_loss=NAN, global_accuracy=common, loss=NAN, accuracy=local
    )
    assert by_loss is decide_independently(local, common, epsilon, 1)
    assert by_accuracy is decide_independently(local, common, epsilon, -1)


@given(local=measures, common=measures, epsilon=epsilons, more=st.floats(0, 10))
def test_larger_epsilon_never_closes(
    local: float, common: float, epsilon: float, more: float
) -> None:
    """A client that trains at an epsilon also trains at a larger one."""
    for criterion in ("loss", "accuracy"):
        small, large = (
            should_train(
                criterion,
                value,
                global_loss=common,
                global_accuracy=common,
                loss=local,
                accuracy=local,
            )
            for value in (epsilon, epsilon + more)
        )
        assert large or not small
