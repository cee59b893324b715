"""Labels that do not lie over each other."""

from itertools import pairwise

import numpy as np
import pytest

from server_app.report.label_layout import GAP, LETTER, choose_label_sides, spread_labels


def test_labels_with_room_stay_where_they_are() -> None:
    """In whatever order they are given."""
    assert spread_labels([3.0, 1.0, 2.0], [0.5] * 3, 0.0, 4.0) == [3.0, 1.0, 2.0]
    assert spread_labels([], [], 0.0, 4.0) == []


def test_two_labels_at_one_point_move_equally() -> None:
    """Each moves by half of the distance, whatever their heights."""
    assert spread_labels([1.0, 1.0], [0.5, 0.5], 0.0, 4.0) == pytest.approx([0.75, 1.25])
    assert spread_labels([2.0, 2.0], [0.5, 1.5], 0.0, 4.0) == pytest.approx([1.5, 2.5])


@pytest.mark.parametrize("seed", range(20))
def test_labels_keep_order_distance_and_ends(seed: int) -> None:
    """Whatever the places, where there is room for all."""
    rng = np.random.default_rng(seed)
    places, heights = rng.normal(size=8).tolist(), rng.uniform(0.1, 0.5, size=8).tolist()
    found = spread_labels(places, heights, -2.0, 2.0)
    order = sorted(range(8), key=places.__getitem__)
    for before, after in pairwise(order):
        gap = found[after] - found[before]
        assert gap >= (heights[before] + heights[after]) / 2 - 1e-9
    assert min(y - h / 2 for y, h in zip(found, heights, strict=True)) >= -2.0 - 1e-9
    assert max(y + h / 2 for y, h in zip(found, heights, strict=True)) <= 2.0 + 1e-9


def test_too_many_labels_begin_at_the_lower_end() -> None:
    """The last ones lie beyond."""
    assert spread_labels([1.0] * 3, [1.0] * 3, 0.0, 2.0) == pytest.approx([0.5, 1.5, 2.5])


def test_a_label_stands_right_of_its_point_where_there_is_room() -> None:
    """Otherwise left: at the right end, beside a neighbour, beside something drawn."""
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


def test_points_with_little_room_come_first() -> None:
    """A long label at the right end takes its only sides before a short one beside it does."""
    points, texts = [(272.0, 93.0), (275.0, 100.0)], ["FedAU", "known statistics"]
    corner = [(0.0, 100.0, 275.0, 100.0), (275.0, 0.0, 275.0, 100.0)]
    assert choose_label_sides(points, texts, 310, corner) == ["bottom left", "top left"]


def test_a_label_without_room_points_to_the_middle() -> None:
    """It lies over something, but not outside."""
    everywhere = (0, 0, 300, 100)
    texts = ["a", "b"]
    assert choose_label_sides([(10, 50), (290, 50)], texts, 300, [everywhere]) == [
        "middle right",
        "middle left",
    ]
