"""Tests of a study's page: escaping, content, and a real browser without a network."""

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from server_app.study.page import render_study_page, write_page
from server_app.study.result import StudyResult, Trial
from tests.builders_study import (
    BASE,
    DIVIDED_ANEW,
    SAME_TEST_ROWS,
    add_to_baseline,
    make_curve,
    make_method_result,
    make_study_answer,
)
from tests.server_app.pages import collect_problems, read_page_text
from tests.snapshot import Snapshot

if TYPE_CHECKING:
    from playwright.sync_api import Browser

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
SCORES = {"fedavg": BASE, EVIL: add_to_baseline(2.0, 3.0, 1.8, 2.2, 2.4)}
CHARTS = ("differences", "trade-off", "scores", "leads", "tuning-0", "tuning-1")


@pytest.fixture(scope="module")
def hostile() -> StudyResult:
    """Return a result with HTML in every external text."""
    trials = (
        Trial((), "completed", 0.6, make_curve(0.6, 0.1)),
        Trial((f"client.lr={EVIL}",), "completed", 0.7, make_curve(0.7, 0.1)),
    )
    methods = [
        make_method_result(name, scores, trials=trials, tuned=words)
        for (name, scores), words in zip(SCORES.items(), ((), trials[1].words), strict=True)
    ]
    return make_study_answer(
        SCORES, methods=methods, left_out={f"{EVIL}2": EVIL}, caveats=(EVIL,), data=EVIL
    )


def test_nothing_from_outside_is_html(hostile: StudyResult) -> None:
    """External HTML is escaped in the text and in the charts' data."""
    text = render_study_page(hostile, engine=EVIL)
    assert "<img" not in text
    assert "alert(1)" in text
    assert len(re.findall("<script", text)) == 2 + len(CHARTS)


def test_the_page_says_how_it_was_done(hostile: StudyResult, snapshot: Snapshot) -> None:
    """It names seeds, budget, confidence, margin, command, and the engine if known."""
    trials = (
        Trial((), "completed", 0.6, make_curve(0.6, 0.1)),
        Trial(("client.lr=0.1",), "completed", 0.7, make_curve(0.7, 0.1)),
    )
    scores = {"fedavg": BASE, "mifa": add_to_baseline(0, 0.1, 0, 0, 0.1)}
    methods = [
        make_method_result(name, scores[name], trials=trials, tuned=trials[1].words)
        for name in scores
    ]
    result = make_study_answer(
        scores,
        methods=methods,
        left_out={"maxfl": "it needs more"},
        caveats=("Few seeds.",),
        guessing=[0.2] * len(BASE),
        draws=DIVIDED_ANEW,
    )
    snapshot("study/page.txt", read_page_text(render_study_page(result, engine="in process")))
    assert "<dt>Engine</dt>" not in render_study_page(hostile)


def test_the_page_says_for_which_rows_the_intervals_hold() -> None:
    """All seeds test the same rows: for new ones if row weights tell how much these matter."""
    scores = {"fedavg": BASE, "mifa": add_to_baseline(2, 3, 1.8, 2.2, 2.4)}
    these, new = (
        render_study_page(make_study_answer(scores, draws=SAME_TEST_ROWS, row_weights=count))
        for count in (0, 100)
    )
    assert "by Student's t, for these test rows" in read_page_text(these)
    assert "100 sets of Poisson weights" in read_page_text(new)
    assert ("on these test rows" in these, "on these test rows" in new) == (True, False)
    assert ("on new rows of these clients" in these, "on new rows of these clients" in new) == (
        False,
        True,
    )


def test_the_page_says_that_nothing_was_tuned() -> None:
    """The study has no trials; the page in the snapshot has some."""
    result = make_study_answer({"fedavg": [0.7] * 5, "mifa": [0.8] * 5})
    untuned = replace(result, methods=tuple(replace(one, trials=()) for one in result.methods))
    text = read_page_text(render_study_page(untuned))
    assert "none: no scores chose a method's values" in text
    assert "the same budget for each method" not in text


def test_a_study_without_runs_has_a_page() -> None:
    """The page of an interrupted study has no charts and no claims."""
    text = render_study_page(make_study_answer({"fedavg": [], "mifa": []}))
    assert "0 seeds" in text
    assert "<figure" not in text


@pytest.mark.slow
def test_the_page_in_a_browser(hostile: StudyResult, tmp_path: Path, browser: "Browser") -> None:
    """It opens offline and without errors on a narrow screen, and prints completely."""
    path = write_page(hostile, tmp_path)
    page = browser.new_context(offline=True, viewport={"width": 420, "height": 800}).new_page()
    problems, requested = collect_problems(page), []
    page.on("request", lambda request: requested.append(request.url))
    page.goto(path.as_uri())
    first = page.locator("#chart-differences")
    first.scroll_into_view_if_needed()
    first.locator(".main-svg").first.wait_for()
    assert EVIL in (page.locator(".verdict").text_content() or "")
    assert EVIL in " ".join(first.locator(".annotation").all_text_contents())
    assert page.evaluate("document.documentElement.scrollWidth") == 420
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    drawings = page.locator("figure .main-svg:first-child")
    widths = drawings.evaluate_all("all => all.map(one => one.clientWidth)")
    assert widths == [330 if name.startswith("tuning") else 680 for name in CHARTS]
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert drawings.first.evaluate("one => one.clientWidth") < 420
    assert problems == []
    assert [url for url in requested if not url.startswith(("data:", "blob:"))] == [path.as_uri()]
    page.context.close()


@pytest.mark.slow
def test_the_page_marks_the_winner() -> None:
    """Without a winner, no row is marked."""
    won = render_study_page(
        make_study_answer({"fedavg": BASE, "mifa": add_to_baseline(2.0, 3.0, 1.8, 2.2, 2.4)})
    )
    assert re.search(r'class="marked"><th scope="row"><span[^>]*></span>MIFA<', won)
    undecided = make_study_answer({"fedavg": BASE, "mifa": add_to_baseline(0, 0.1, 0, 0, 0.1)})
    assert 'class="marked"' not in render_study_page(undecided)
    assert 'class="marked"' not in render_study_page(replace(undecided, decision=None))
