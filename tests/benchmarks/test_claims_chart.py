"""Tests of the plots of claims."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from PIL import Image

from benchmarks.book.claims import Claim, Verdict
from benchmarks.book.claims_chart import (
    COLORS,
    OTHER_UNITS,
    draw_claims,
    draw_overview,
    write_claim_charts,
)
from benchmarks.book.render import read_verdicts
from benchmarks.book.results import SeedStatistic
from benchmarks.book.verdicts import Judgment, Outcome, compute_interval

DOCS = Path(__file__).resolve().parents[2] / "docs"
CLAIM = Claim("A, Figure 1", "Ours is below theirs.", "-4", missing_reason="-", sign=-1)
MEASURED = Verdict(CLAIM, SeedStatistic(-3.0, 2.0, 0, 9), 9, judgment=Judgment(Outcome.REPRODUCED))


def get_x(line: Line2D) -> list[float]:
    """Return the places of a line on the axis of effects."""
    x: list[float] = np.asarray(line.get_xdata(), dtype=float).tolist()
    return x


def get_title(ax: Axes) -> str:
    """Return the title of a panel, which stands at its left end."""
    return ax.get_title(loc="left")


def test_a_claim_is_drawn_in_the_claimed_direction() -> None:
    """A claimed fall of 3 lies at +3, with the ends of its interval and the published number."""
    claim = replace(CLAIM, published_difference=-4.0)
    figure = draw_claims([replace(MEASURED, claim=claim), Verdict(claim)])
    (ax,) = figure.axes
    zero, interval, mean, published = ax.get_lines()
    assert get_x(zero) == [0.0, 0.0]
    assert get_x(interval) == pytest.approx(compute_interval(3.0, 2.0, 9))
    assert get_x(mean) == [3.0]
    assert mean.get_color() == COLORS[Outcome.REPRODUCED]
    assert get_x(published) == [4.0]
    assert [label.get_text() for label in ax.get_yticklabels()] == [
        "Figure 1. Ours is below theirs"
    ]


def test_other_units_have_a_panel_of_their_own() -> None:
    """Nats and points share no axis; the overview has points alone."""
    loss = replace(MEASURED, claim=replace(CLAIM, is_in_points=False))
    other = replace(MEASURED, claim=replace(CLAIM, paper="B, Table 1"))
    verdicts = [loss, MEASURED, other]
    assert [get_title(ax) for ax in draw_claims(verdicts).axes] == ["A", "B", OTHER_UNITS]
    assert [get_title(ax) for ax in draw_overview(verdicts).axes] == ["A", "B"]


@pytest.mark.slow
def test_the_book_draws_every_measured_claim(tmp_path: Path) -> None:
    """The pictures of the documents are made from all of them."""
    verdicts = read_verdicts(DOCS)
    drawn = sum(len(ax.get_yticks()) for ax in draw_claims(verdicts).axes)
    assert drawn == sum(verdict.is_measured for verdict in verdicts)
    write_claim_charts(verdicts, tmp_path / "images")
    for path in (tmp_path / "images").iterdir():
        with Image.open(path) as picture, Image.open(DOCS / "images" / path.name) as committed:
            assert picture.size == committed.size
