"""Place the labels of points and lines so that they do not overlap."""

from collections.abc import Sequence
from itertools import accumulate

LETTER, LINE, GAP = 7.0, 16.0, 8.0
"""Pixels: a letter's width, a line's height, and the gap between a point and its label."""

MARKER_RADIUS = 5.0

PixelBox = tuple[float, float, float, float]
"""Left, low, right and high, in pixels, y upwards."""


def spread_labels(
    positions: Sequence[float], heights: Sequence[float], low: float, high: float
) -> list[float]:
    """Return the middles of labels, in the same order, moved just enough not to overlap.

    Overlapping neighbors become one group around the mean of its positions, so labels move as
    little as possible. A group that would extend beyond an end starts at that end.

    Parameters
    ----------
    positions : sequence of float
        The preferred middles of the labels.
    heights : sequence of float
        The height of each label, in the same unit.
    low, high : float
        The ends. Labels that do not fit between them extend beyond ``high``.
    """

    def compute_start(group: Sequence[int]) -> float:
        first = sum(positions[i] - up for i, up in zip(group, compute_middles(group), strict=True))
        return max(low, min(first / len(group), high - sum_heights(group)))

    def sum_heights(group: Sequence[int]) -> float:
        return sum(heights[i] for i in group)

    def compute_middles(group: Sequence[int]) -> list[float]:
        tops = accumulate(heights[i] for i in group)
        return [top - heights[i] / 2 for i, top in zip(group, tops, strict=True)]

    groups: list[list[int]] = []
    for index in sorted(range(len(positions)), key=positions.__getitem__):
        groups.append([index])
        while len(groups) > 1 and compute_start(groups[-1]) < (
            compute_start(groups[-2]) + sum_heights(groups[-2])
        ):
            last = groups.pop()
            groups[-1] += last
    found = {
        i: compute_start(group) + up
        for group in groups
        for i, up in zip(group, compute_middles(group), strict=True)
    }
    return [found[i] for i in range(len(positions))]


def choose_label_sides(
    points: Sequence[tuple[float, float]],
    texts: Sequence[str],
    width: float,
    obstacles: Sequence[PixelBox] = (),
) -> list[str]:
    """Choose the side of each point for its label, in Plotly's words.

    Points with the fewest free sides come first. Each takes the first side within the chart where
    the label overlaps no point, no label placed earlier and no obstacle; failing that, no point and
    no label; failing that, the side toward the chart's middle.

    Parameters
    ----------
    points : sequence of (x, y)
        In pixels, y upwards.
    texts : sequence of str
        The labels.
    width : float
        The chart's width in pixels.
    obstacles : sequence of PixelBox
        Other marks that labels should not cover.
    """
    occupied: list[PixelBox] = [
        (x - MARKER_RADIUS, y - MARKER_RADIUS, x + MARKER_RADIUS, y + MARKER_RADIUS)
        for x, y in points
    ]
    boxes = [
        _compute_boxes(x, y, LETTER * len(text)) for (x, y), text in zip(points, texts, strict=True)
    ]

    def list_free_sides(i: int, others: Sequence[PixelBox]) -> list[str]:
        inside = [side for side, box in boxes[i].items() if box[0] >= 0 and box[2] <= width]
        return [s for s in inside if not any(_has_overlap(boxes[i][s], one) for one in others)]

    chosen: dict[int, str] = {}
    for i in sorted(range(len(points)), key=lambda i: len(list_free_sides(i, occupied))):
        inward = "middle right" if points[i][0] < width / 2 else "middle left"
        free = [*list_free_sides(i, [*occupied, *obstacles]), *list_free_sides(i, occupied)]
        side = [*free, inward][0]
        occupied.append(boxes[i][side])
        chosen[i] = side
    return [chosen[i] for i in range(len(points))]


def _compute_boxes(x: float, y: float, length: float) -> dict[str, PixelBox]:
    middle, above, below = (-LINE / 2, LINE / 2), (GAP, GAP + LINE), (-GAP - LINE, -GAP)
    right, left, center = (GAP, GAP + length), (-GAP - length, -GAP), (-length / 2, length / 2)
    spans = {
        "middle right": (right, middle),
        "middle left": (left, middle),
        "top center": (center, above),
        "bottom center": (center, below),
        "top left": (left, above),
        "bottom left": (left, below),
        "top right": (right, above),
        "bottom right": (right, below),
    }
    return {
        side: (x + across[0], y + up[0], x + across[1], y + up[1])
        for side, (across, up) in spans.items()
    }


def _has_overlap(one: PixelBox, other: PixelBox) -> bool:
    separate_x = one[2] <= other[0] or other[2] <= one[0]
    return not (separate_x or one[3] <= other[1] or other[3] <= one[1])
