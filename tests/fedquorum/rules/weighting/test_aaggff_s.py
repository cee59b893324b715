"""AAggFF-S against an independent reference in high precision, and its promises."""

import numpy as np
import pytest
from fedquorum.errors import ParameterError
from fedquorum.rules.composition import RuleSet
from fedquorum.rules.regret import compute_regret_bound
from fedquorum.rules.selection import AllClients, Sampling
from fedquorum.rules.types import FloatArray, Population, RoundPlan
from fedquorum.rules.weighting import AAggFFDWeighting, AAggFFSWeighting
from fedquorum.rules.weighting.responses import compute_bounded_responses

from tests.builders import compute_mixing_path, draw_losses, make_updates_from_losses
from tests.reference import aaggff


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "rounds", "cdf", "c1", "c2"),
    [
        (2, 200, "normal", 0.0, None),
        (7, 200, "normal", 0.0, None),
        (7, 100, "frechet", 0.2, 1.0),
        (20, 100, "logistic", 0.0, None),
        (20, 60, "exponential", 0.0, 1.0),
        (100, 200, "weibull", 0.0, None),
        (100, 60, "gumbel", 0.1, 2.0),
    ],
)
def test_s_follows_the_reference(
    size: int, rounds: int, cdf: str, c1: float, c2: float | None
) -> None:
    """p of every round is the exact minimizer's, to 1e-9."""
    history = draw_losses(size, rounds, size)
    got, _ = compute_mixing_path(AAggFFSWeighting(cdf, c1=c1, c2=c2), history, size)
    expected = aaggff.compute_newton_trajectory(
        history, size, cdf, c1=c1, c2=c2, extended=size > 20
    )
    np.testing.assert_allclose(got, expected, atol=1e-9, rtol=0)
    assert (expected[-1] == 0).any(), "a case without an active constraint tests less"


@pytest.mark.slow
@pytest.mark.parametrize(("size", "sample"), [(7, 4), (20, 13)])
def test_s_replaces_missing_responses_by_the_mean(size: int, sample: int) -> None:
    """The mean is over the reported responses; p on the reporting clients weights the updates."""
    history = draw_losses(size, 60, sample)
    got, weights_by_round = compute_mixing_path(AAggFFSWeighting(), history, size)
    np.testing.assert_allclose(
        got, aaggff.compute_newton_trajectory(history, size, "normal"), atol=1e-9, rtol=0
    )
    for losses, mixing, weights in zip(history, got, weights_by_round, strict=True):
        reported_mixing = mixing[list(losses)]
        np.testing.assert_allclose(
            weights.weight, reported_mixing / reported_mixing.sum(), rtol=1e-12
        )


@pytest.mark.parametrize(("size", "cdf"), [(2, "normal"), (7, "normal"), (11, "logistic")])
def test_the_authors_code_follows_its_reference(size: int, cdf: str) -> None:
    """p of every round is the exact minimizer's, to 1e-9, and not the paper's."""
    history = draw_losses(size, 80, size)
    got, _ = compute_mixing_path(AAggFFSWeighting(cdf, variant="authors_code"), history, size)
    expected = aaggff.compute_published_trajectory(history, size, cdf)
    np.testing.assert_allclose(got, expected, atol=1e-9, rtol=0)
    papers = aaggff.compute_newton_trajectory(history, size, cdf)
    assert np.abs(papers - expected).max() > 0.01


def test_the_authors_normal_prefers_the_smaller_loss() -> None:
    """The paper's form favors the client with the larger loss, the authors' code the other."""
    history = [{0: 2.0, 1: 1.0}] * 20
    for form, prefers_larger in (("paper", True), ("authors_code", False)):
        got, _ = compute_mixing_path(AAggFFSWeighting(variant=form), history, 2)
        assert (got[-1, 0] > got[-1, 1]) == prefers_larger


def test_the_cases_with_a_proven_regret_bound() -> None:
    """The default range up to K = 3, and responses in [0, 1]; the authors' code has no bound."""
    bounds = {size: compute_regret_bound(AAggFFSWeighting(), 50, size, 1.0) for size in (3, 4)}
    assert {size: bound is not None and bound.is_proven for size, bound in bounds.items()} == {
        3: True,
        4: False,
    }
    wide = compute_regret_bound(AAggFFSWeighting(c2=1.0), 50, 100, 1.0)
    assert wide is not None
    assert wide.is_proven
    assert compute_regret_bound(AAggFFSWeighting(variant="authors_code"), 50, 3, 1.0) is None
    sampled = compute_regret_bound(AAggFFDWeighting(), 50, 10, 0.5)
    assert sampled is not None
    assert not sampled.is_proven


def test_s_minimizes_the_papers_objective() -> None:
    """No other p has a smaller sum over the whole history, in the paper's form."""
    size, rounds = 6, 25
    history = draw_losses(size, rounds, size, seed=1)
    got, _ = compute_mixing_path(AAggFFSWeighting(c2=1.0), history, size)
    mixing_path = np.vstack([np.full(size, 1 / size), got])
    response = np.array(
        [compute_bounded_responses(np.array(list(f.values())), "normal", 0.0, 1.0) for f in history]
    )
    gradients = np.array(
        [-r / (1 + p @ r) for r, p in zip(response, mixing_path[:-1], strict=True)]
    )  # (T, K)

    def objective(p: FloatArray) -> float:
        linear = float((gradients @ p).sum())
        curved = sum(
            float(g @ (p - q)) ** 2 for g, q in zip(gradients, mixing_path[:-1], strict=True)
        )
        return linear + 4 * size / 2 * float(p @ p) + curved / 4 / 2

    minimum = objective(mixing_path[-1])
    rng = np.random.default_rng(2)
    others = np.vstack([np.eye(size), rng.dirichlet(np.ones(size), 200)])
    for other in others:
        assert all(
            objective(mixing_path[-1] + step * (other - mixing_path[-1])) >= minimum - 1e-10
            for step in (1e-4, 1e-2, 1.0)
        )


def test_s_refuses_sampling() -> None:
    """A fraction below 1 is refused with the reason, and with the rule to use instead."""
    with pytest.raises(
        ParameterError,
        match=r"fraction must be 1 for AAggFF-S \(its Newton step needs the losses of all clients "
        r"in every round; with sampling use AAggFF-D\), got 0\.5",
    ):
        RuleSet(AllClients(Sampling(0.5)), AAggFFSWeighting())
    rule = AAggFFSWeighting()
    with pytest.raises(
        ValueError, match="all 3 clients in every round, got a round that selects 2;"
    ):
        rule.weigh(
            rule.init(Population.from_size(3)),
            RoundPlan((0, 1)),
            make_updates_from_losses({0: 1.0}),
            np.ones(1),
        )


def test_s_gives_no_weight_by_rounding_errors() -> None:
    """If only clients with p = 0 report, their p is rounding error, and no update counts."""
    rule = AAggFFSWeighting()
    state = rule.init(Population.from_size(3))
    for _ in range(60):
        state, _ = rule.weigh(
            state,
            RoundPlan((0, 1, 2)),
            make_updates_from_losses({0: 9.0, 1: 1e-3, 2: 1e-3}),
            np.ones(3),
        )
    next_state, weights = rule.weigh(
        state, RoundPlan((0, 1, 2)), make_updates_from_losses({1: 1.0, 2: 2.0}), np.ones(2)
    )
    assert next_state.mixing[1:].sum() < 1e-9
    assert weights.weight.tolist() == [0.0, 0.0]


def test_s_stores_sums_and_no_history() -> None:
    """The state has the same size after 1 round and after 50."""
    rule = AAggFFSWeighting()
    state, sizes = rule.init(Population.from_size(5)), set()
    for losses in draw_losses(5, 50, 5):
        state, _ = rule.weigh(
            state, RoundPlan(tuple(range(5))), make_updates_from_losses(losses), np.ones(5)
        )
        arrays = (state.client, state.linear, state.quadratic, state.mixing)
        sizes.add(tuple(a.shape for a in arrays))
    assert sizes == {((5,), (5,), (5, 5), (5,))}
