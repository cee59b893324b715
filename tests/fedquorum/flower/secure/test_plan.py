"""Neighbors and thresholds."""

import math
from fractions import Fraction

import pytest
from fedquorum.errors import ParameterError
from fedquorum.flower.secure.plan import MAX_COLLUSION, MAX_LOSS, GraphSize, MaskPlan


def compute_tails(n: int, size: GraphSize, bad: int, lost: int) -> tuple[Fraction, Fraction]:
    """Return n P(at least t colluding neighbors), n P(fewer than t left), by counting."""
    k, t = size.num_neighbors, size.threshold

    def count(special: int, wanted: range) -> Fraction:
        ways = sum(math.comb(special, i) * math.comb(n - 1 - special, k - i) for i in wanted)
        return Fraction(n * ways, math.comb(n - 1, k))

    return count(bad, range(t, k + 1)), count(n - 1 - lost, range(t))


@pytest.mark.parametrize(
    ("share", "expected"), [(0.05, (30, 17)), (0.1, (46, 26)), (0.2, (98, 54))]
)
def test_the_size_for_a_thousand_nodes(share: float, expected: tuple[int, int]) -> None:
    """It meets both probabilities, and no smaller even degree does."""
    n, special = 1000, round(1000 * share)
    size = GraphSize.for_shares(n, share, share)
    assert (size.num_neighbors, size.threshold) == expected
    collusion, loss = compute_tails(n, size, special, special)
    assert collusion <= Fraction(MAX_COLLUSION)
    assert loss <= Fraction(MAX_LOSS)
    k = size.num_neighbors - 2
    for t in range(k // 2 + 1, k + 2):
        fewer = compute_tails(n, GraphSize(k, t), special, special)
        assert fewer[0] > Fraction(MAX_COLLUSION) or fewer[1] > Fraction(MAX_LOSS)


@pytest.mark.parametrize("n", [3, 4, 5, 10, 30])
def test_few_nodes_are_all_neighbors(n: int) -> None:
    """More than half of the shares are needed, and a tenth of the nodes may be lost."""
    size = GraphSize.for_shares(n, 0.1, 0.1)
    assert size.num_neighbors == n - 1
    assert 2 * size.threshold > n
    assert math.ceil(0.1 * n) < size.threshold <= n - math.ceil(0.1 * n)
    plan = MaskPlan.for_nodes(range(n), size, 0, 1)
    assert plan.neighbors == {k: tuple(i for i in range(n) if i != k) for k in range(n)}


@pytest.mark.parametrize(
    ("n", "colluding", "dropping", "text"),
    [
        (2, 0.1, 0.1, "none with fewer than 3 nodes"),
        (5, 0.1, 0.6, "dropping must be a smaller share with 5 nodes"),
        (5, 0.9, 0.1, "colluding must be a smaller share with 5 nodes"),
        (100, 0.5, 0.5, "dropping must be a smaller share with 100 nodes"),
        (100, 0.9, 0.1, "colluding must be a smaller share with 100 nodes"),
    ],
)
def test_shares_that_no_threshold_meets(
    n: int, colluding: float, dropping: float, text: str
) -> None:
    """The error says which settings to change."""
    with pytest.raises(ParameterError, match=text):
        GraphSize.for_shares(n, colluding, dropping)


def test_the_graph_is_regular_and_differs_by_round() -> None:
    """Neighbors are mutual; the same seed and round give the same graph."""
    nodes, size = range(100, 140), GraphSize(6, 4)
    plan = MaskPlan.for_nodes(nodes, size, 1, 2)
    for node, neighbors in plan.neighbors.items():
        assert len({*neighbors}) == 6
        assert node not in neighbors
        assert all(node in plan.neighbors[k] for k in neighbors)
    assert plan.nodes == tuple(nodes)
    assert plan == MaskPlan.for_nodes([*reversed(nodes)], size, 1, 2)
    others = [MaskPlan.for_nodes(nodes, size, *one) for one in ((1, 3), (2, 2))]
    assert all(other.neighbors != plan.neighbors for other in others)
