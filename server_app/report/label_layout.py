"""Where the labels of points and lines stand, so that they do not lie over each other."""

from collections.abc import Sequence
from itertools import accumulate

LETTER, LINE, GAP = 7.0, 16.0, 8.0
"""Pixels: of a letter's width, of a line's height, between a point and its label."""

MARKER_RADIUS = 5.0

PixelBox = tuple[float, float, float, float]
"""Left, low, right and high, in pixels, y upwards."""


def spread_labels(
    positions: Sequence[float], heights: Sequence[float], low: float, high: float
) -> list[float]:
    """Return the middles of labels, in the same order, that do not lie over each other.

    Neighbours that are too near become one group around the mean of its places, so nothing moves
    further than it has to. A group that would reach over an end begins at that end.

    Parameters
    ----------
    positions : sequence of float
        Where the middles of the labels would stand.
    heights : sequence of float
        How high each label is, in the same unit.
    low, high : float
        The ends. If there is no room for all labels between them, the last ones lie beyond.
    """

    def begin(group: Sequence[int]) -> float:
        first = sum(positions[i] - up for i, up in zip(group, middles(group), strict=True))
        return max(low, min(first / len(group), high - length(group)))

    def length(group: Sequence[int]) -> float:
        return sum(heights[i] for i in group)

    def middles(group: Sequence[int]) -> list[float]:
        tops = accumulate(heights[i] for i in group)
        return [top - heights[i] / 2 for i, top in zip(group, tops, strict=True)]

    groups: list[list[int]] = []
    for place in sorted(range(len(positions)), key=positions.__getitem__):
        groups.append([place])
        while len(groups) > 1 and begin(groups[-1]) < begin(groups[-2]) + length(groups[-2]):
            last = groups.pop()
            groups[-1] += last
    found = {
        i: begin(group) + up
        for group in groups
        for i, up in zip(group, middles(group), strict=True)
    }
    return [found[i] for i in range(len(positions))]


def choose_label_sides(
    points: Sequence[tuple[float, float]],
    texts: Sequence[str],
    width: float,
    obstacles: Sequence[PixelBox] = (),
) -> list[str]:
    """Return on which side of each point its label stands, as Plotly says it.

    Points with the fewest sides to choose from come first. Each takes the first side that stays
    within the chart and on which its label lies over no point, no label placed before it and
    nothing else drawn, or at least over no point and no label; if there is none, the side with more
    room.

    Parameters
    ----------
    points : sequence of (x, y)
        In pixels, y upwards.
    texts : sequence of str
        The labels.
    width : float
        Of the chart, in pixels.
    obstacles : sequence of Box
        What else there is.
    """
    taken: list[PixelBox] = [
        (x - MARKER_RADIUS, y - MARKER_RADIUS, x + MARKER_RADIUS, y + MARKER_RADIUS)
        for x, y in points
    ]
    boxes = [
        _compute_boxes(x, y, LETTER * len(text)) for (x, y), text in zip(points, texts, strict=True)
    ]

    def free(place: int, others: Sequence[PixelBox]) -> list[str]:
        inside = [side for side, box in boxes[place].items() if box[0] >= 0 and box[2] <= width]
        return [s for s in inside if not any(_has_overlap(boxes[place][s], one) for one in others)]

    chosen: dict[int, str] = {}
    for place in sorted(range(len(points)), key=lambda place: len(free(place, taken))):
        near = "middle right" if points[place][0] < width / 2 else "middle left"
        side = [*free(place, [*taken, *obstacles]), *free(place, taken), near][0]
        taken.append(boxes[place][side])
        chosen[place] = side
    return [chosen[place] for place in range(len(points))]


def _compute_boxes(x: float, y: float, length: float) -> dict[str, PixelBox]:
    middle, above, below = (-LINE / 2, LINE / 2), (GAP, GAP + LINE), (-GAP - LINE, -GAP)
    right, left, centre = (GAP, GAP + length), (-GAP - length, -GAP), (-length / 2, length / 2)
    places = {
        "middle right": (right, middle),
        "middle left": (left, middle),
        "top center": (centre, above),
        "bottom center": (centre, below),
        "top left": (left, above),
        "bottom left": (left, below),
        "top right": (right, above),
        "bottom right": (right, below),
    }
    return {
        side: (x + across[0], y + up[0], x + across[1], y + up[1])
        for side, (across, up) in places.items()
    }


def _has_overlap(one: PixelBox, other: PixelBox) -> bool:
    apart_x = one[2] <= other[0] or other[2] <= one[0]
    return not (apart_x or one[3] <= other[1] or other[3] <= one[1])
