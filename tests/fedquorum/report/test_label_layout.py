"""Tests of the layout of labels without overlaps."""

from itertools import pairwise

import numpy as np
import pytest
from fedquorum.report.label_layout import GAP, LETTER, choose_label_sides, spread_labels


def test_labels_without_overlap_do_not_move() -> None:
    """In any order."""
    assert spread_labels([3.0, 1.0, 2.0], [0.5] * 3, 0.0, 4.0) == [3.0, 1.0, 2.0]
    assert spread_labels([], [], 0.0, 4.0) == []


def test_two_labels_at_one_point_move_equally() -> None:
    """Each moves by half of the overlap, for any heights."""
    assert spread_labels([1.0, 1.0], [0.5, 0.5], 0.0, 4.0) == pytest.approx([0.75, 1.25])
    assert spread_labels([2.0, 2.0], [0.5, 1.5], 0.0, 4.0) == pytest.approx([1.5, 2.5])


@pytest.mark.parametrize("seed", range(20))
def test_labels_keep_order_distance_and_ends(seed: int) -> None:
    """For any positions, if all labels fit."""
    rng = np.random.default_rng(seed)
    positions, heights = rng.normal(size=8).tolist(), rng.uniform(0.1, 0.5, size=8).tolist()
    found = spread_labels(positions, heights, -2.0, 2.0)
    order = sorted(range(8), key=positions.__getitem__)
    for before, after in pairwise(order):
        gap = found[after] - found[before]
        assert gap >= (heights[before] + heights[after]) / 2 - 1e-9
    assert min(y - h / 2 for y, h in zip(found, heights, strict=True)) >= -2.0 - 1e-9
    assert max(y + h / 2 for y, h in zip(found, heights, strict=True)) <= 2.0 + 1e-9


def test_too_many_labels_start_at_the_lower_end() -> None:
    """The last ones extend beyond the upper end."""
    assert spread_labels([1.0] * 3, [1.0] * 3, 0.0, 2.0) == pytest.approx([0.5, 1.5, 2.5])


def test_a_label_is_to_the_right_of_its_point_if_it_fits() -> None:
    """Otherwise left: at the right end, beside a neighbor or an obstacle."""
    text = "x" * 5
    assert choose_label_sides([(50, 50)], [text], 300) == ["middle right"]
    assert choose_label_sides([(290, 50)], [text], 300) == ["middle left"]
    near = (100 + GAP + LETTER, 50)
    assert choose_label_sides([(100, 50), near], [text, text], 300) == [
        "middle left",
        "middle right",
    ]
    wall = (100, 0, 300, 100)
    assert choose_label_sides([(90, 50)], [text], 300, [wall]) == ["middle left"]


def test_points_with_few_free_sides_come_first() -> None:
    """A long label at the right end takes its only side before a short one next to it."""
    points, texts = [(272.0, 93.0), (275.0, 100.0)], ["FedAU", "known statistics"]
    corner = [(0.0, 100.0, 275.0, 100.0), (275.0, 0.0, 275.0, 100.0)]
    assert choose_label_sides(points, texts, 310, corner) == ["bottom left", "top left"]


def test_a_label_without_free_side_points_inward() -> None:
    """It overlaps an obstacle, but stays inside the chart."""
    everywhere = (0, 0, 300, 100)
    texts = ["a", "b"]
    assert choose_label_sides([(10, 50), (290, 50)], texts, 300, [everywhere]) == [
        "middle right",
        "middle left",
    ]
