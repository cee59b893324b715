"""MaxFL's weights, and the appeal of a model: formulas and their limits."""

import math
from typing import Any

import numpy as np
import pytest
from fedquorum.contrib.maxfl import (
    NO_REQUIREMENT,
    MaxFLWeighting,
    build_appeal_hooks,
    compute_appeal,
    compute_preferred_accuracy,
    compute_satisfaction_slope,
    restore_appeal_hooks,
)
from fedquorum.errors import ParameterError
from fedquorum.rules.hooks import Hooks
from fedquorum.rules.rule import RunContext
from fedquorum.rules.types import AggregationWeights, Population

from tests.builders import decide_first_round, make_client_updates, weigh
from tests.reference import maxfl as reference

LOSS = [0.5, 1.25, 3.0, 0.75]
NAN = math.nan
RHO = [1.0, 1.0, 0.5, 0.75]


def compute_weights(rho: Any, losses: list[float] = LOSS, **options: Any) -> AggregationWeights:
    return weigh(MaxFLWeighting(rho, **options), make_client_updates(losses))


@pytest.mark.parametrize(("slope", "offset"), [(1, "0"), (3, "0"), (2, "0.5"), (1, "10")])
def test_the_weights_match_the_formulas(slope: int, offset: str) -> None:
    """In exact fractions; with an offset they sum to less than 1."""
    gaps = [str(loss - rho) for loss, rho in zip(LOSS, RHO, strict=True)]
    expected = [float(weight) for weight in reference.compute_weights(gaps, slope, offset)]
    got = compute_weights(RHO, slope=float(slope), offset=float(offset)).weight
    np.testing.assert_allclose(got, expected, rtol=1e-13)
    assert got.sum() == pytest.approx(1.0) if offset == "0" else got.sum() < 1.0


def test_equal_gaps_are_the_plain_average() -> None:
    """1 / n to the bit, for any size and sign of the gap."""
    for gap in (-700.0, -1.0, 0.0, 1.0, 700.0):
        rho = [loss - gap for loss in (800.0, 801.0, 803.0, 900.0)]
        assert compute_weights(rho, [800.0, 801.0, 803.0, 900.0]).weight.tolist() == [0.25] * 4


def test_q_is_largest_at_the_requirement_and_falls_on_both_sides() -> None:
    """q(0) = 1/4, q(z) = q(-z), q(800) = 0 without an overflow: hopeless clients have no weight."""
    z = np.array([0.0, 1.0, -1.0, 800.0, -800.0, math.inf])
    q = compute_satisfaction_slope(z)
    assert q[0] == 0.25
    assert q[1] == q[2] == pytest.approx(math.e / (1 + math.e) ** 2, rel=1e-15)
    assert q[3:].tolist() == [0.0, 0.0, 0.0]
    assert (np.diff(compute_satisfaction_slope(np.linspace(0.0, 40.0, 200))) < 0).all()
    satisfied, near, hopeless = compute_weights([11.0] * 3, [1.0, 11.0, 21.0]).weight
    assert satisfied == pytest.approx(hopeless)
    assert near > 0.99


def test_no_client_near_its_requirement_is_no_step() -> None:
    """All weights are 0 if every q underflows, also with an offset."""
    for offset in (0.0, 1.0):
        got = compute_weights([900.0, -900.0], [0.0, 1.0], offset=offset)
        assert (got.weight.tolist(), got.denominator) == ([0.0, 0.0], 0.0)


def test_an_infinite_or_missing_requirement_has_no_weight() -> None:
    """A missing one has a reason; the other clients get the weights of a round without both."""
    got = compute_weights([math.inf, -math.inf, math.nan, 1.0])
    assert got.weight.tolist() == [0.0, 0.0, 0.0, 1.0]
    assert got.reason == {2: NO_REQUIREMENT}
    rule = MaxFLWeighting({0: 1.0, 3: 1.0})
    trace = decide_first_round(rule, make_client_updates(LOSS), 4)
    assert [d.reason for d in trace.recorded_decisions] == [
        None,
        NO_REQUIREMENT,
        NO_REQUIREMENT,
        None,
    ]
    assert [*rule.explain(trace, 1)] == [f"c_k = 0; {NO_REQUIREMENT}"]


def test_admitted_fractions_scale_the_weights() -> None:
    """c_k is proportional to s_k q_k."""
    got = weigh(MaxFLWeighting(1.0), make_client_updates([1.0, 1.0]), share=np.array([1.0, 0.25]))
    assert got.weight.tolist() == [0.8, 0.2]


def test_the_requirements_come_from_the_run() -> None:
    """The run's requirements override the option, since the run reads a directory in it."""
    context = RunContext(clients=(0, 1), hooks=build_appeal_hooks({0: 0.5, 1: math.nan}))
    rule = MaxFLWeighting.from_options({"requirement": "outputs/local"}, context)
    assert rule.get_requirements(np.array([0, 1, 7])).tolist()[0] == 0.5
    assert np.isnan(rule.get_requirements(np.array([1, 7]))).all()
    assert MaxFLWeighting.from_options(
        {"requirement": 2}, RunContext(clients=(0,))
    ) == MaxFLWeighting(2)


@pytest.mark.parametrize("given", [None, [math.inf, math.nan], {5: 1.0}, "outputs/local"])
def test_clients_without_any_requirement_are_refused(given: Any) -> None:
    """The error has the parameter to give."""
    with pytest.raises(
        ParameterError, match=r"requirement must be a number, .*no client has a requirement"
    ):
        MaxFLWeighting.from_options({"requirement": given}, RunContext(clients=(0, 1)))


def test_rules_read_no_directory() -> None:
    """Only the command line opens files."""
    with pytest.raises(ParameterError, match=r"a mapping in Python .*, got 'outputs/local'"):
        MaxFLWeighting("outputs/local").init(Population.from_size(2))


def test_absent_clients_have_no_weight_to_correct() -> None:
    """A correction for participation is refused."""
    with pytest.raises(ParameterError, match=r"participation must be none with .* maxfl"):
        MaxFLWeighting(1.0).with_fixed_denominator()


# --- appeal ----------------------------------------------------------------------------------


def test_appeal_and_preferred_accuracy_match_the_formulas() -> None:
    """Client by client, for random losses and accuracies."""
    losses, required, ours, theirs = np.random.default_rng(1).uniform(size=(4, 50))
    expected = reference.measure_appeal(*(x.tolist() for x in (losses, required, ours, theirs)))
    assert compute_appeal(losses, required) == pytest.approx(expected[0])
    assert compute_preferred_accuracy(losses, required, ours, theirs) == pytest.approx(expected[1])


def test_a_tie_does_not_satisfy() -> None:
    """F_k = rho_k is not below it, so that the client prefers its model alone."""
    loss, required = np.array([1.0, 1.0]), np.array([1.0, np.nextafter(1.0, 2.0)])
    assert compute_appeal(loss, required) == 0.5
    preferred = compute_preferred_accuracy(
        loss, required, np.array([0.1, 0.2]), np.array([0.9, 0.8])
    )
    assert preferred == pytest.approx((0.9 + 0.2) / 2)


def test_the_test_split_does_not_decide() -> None:
    """A client prefers the model with the lower training loss, even with a lower test accuracy."""
    worse, better = np.array([0.1]), np.array([0.9])
    assert compute_preferred_accuracy(np.array([1.0]), np.array([2.0]), worse, better) == 0.1


def test_missing_values_are_left_out() -> None:
    """Clients without a loss or a requirement; NaN if there is no other."""
    loss, required = np.array([0.0, NAN, 0.0, 3.0]), np.array([1.0, 1.0, NAN, 1.0])
    assert compute_appeal(loss, required) == 0.5
    assert math.isnan(compute_appeal(loss[1:3], required[1:3]))
    accuracy, local = np.array([0.5, 0.5, 0.5, 0.5]), np.array([1.0, 1.0, 1.0, NAN])
    assert compute_preferred_accuracy(loss, required, accuracy, local) == 0.5
    assert math.isnan(compute_preferred_accuracy(loss[3:], required[3:], accuracy[3:], local[3:]))


def test_infinite_requirements() -> None:
    """Any finite loss is below inf, none below -inf."""
    assert compute_appeal(np.array([5.0, 5.0]), np.array([math.inf, -math.inf])) == 0.5


def test_requirements_are_restored_from_columns() -> None:
    """A null is no requirement; a run without requirements has no hooks."""
    hooks = build_appeal_hooks({1: -math.inf, 3: 0.5}, {3: 0.25})
    table: dict[str, list[Any]] = {
        "client": [0, 1, 3],
        "requirement": [None, -math.inf, 0.5],
        "local_accuracy": [None, None, 0.25],
    }
    restored = restore_appeal_hooks(table)
    assert {name: dict(column) for name, column in restored.columns.items()} == {
        name: dict(column) for name, column in hooks.columns.items()
    }
    assert restored.report is hooks.report
    assert restore_appeal_hooks({**table, "requirement": [None] * 3}) == Hooks()
    assert restore_appeal_hooks({"client": [0, 1, 3]}) == Hooks()
