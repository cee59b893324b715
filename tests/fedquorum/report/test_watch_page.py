"""Tests of the page of watched runs in a real browser."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from fedquorum.report.watch_server import WatchServer

from tests.fedquorum.records.made import (
    add_rounds,
    make_accuracy,
    make_round_line,
    make_run,
    write_part,
    write_population,
)
from tests.server_app.pages import collect_problems, expect

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.slow  # a real browser

HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>"
ANCHOR = "img-src-x-onerror-alert-1-script-alert-2-script"
TRAINING = f"#{ANCHOR}_training"
CURVES = f"{TRAINING} .scatterlayer .js-line"
TOP = "node => node.getBoundingClientRect().top"
RANGE = "node => node.layout.xaxis.range"


@dataclass
class WatchedPage:
    """A page with the runs of a folder, and its problems."""

    folder: Path
    run: Path
    server: WatchServer
    page: "Page"
    problems: list[str]

    def advance_to_round(self, number: int) -> None:
        """Write a round in which client 1 fails, and draw it."""
        write_round(self.run, number)
        self.server.watch.draw()


def write_round(run: Path, number: int) -> None:
    """Write a round in which client 1 fails with markup in its reason."""
    record = make_round_line(
        number,
        global_loss=2 / number,
        test=make_accuracy(1 - 0.5 / number),
        failed=1,
        simulated_seconds=2.5 * number,
    )
    add_rounds(run, record)
    row = {"round": number, "priority": True}
    failed = {"status": "failed", "reason": f"ValueError: {HOSTILE}"}
    write_part(run, number, [row | {"client": 0}, row | {"client": 1} | failed])


@pytest.fixture
def watched_page(tmp_path: Path, browser: "Browser") -> Iterator[WatchedPage]:
    """Serve a folder with a running run of two rounds and an older one, and open the page."""
    run = make_run(
        tmp_path / "newest",
        [],
        status="running",
        rounds=40,
        experiment=HOSTILE,
        started="2026-01-02T00:00:00+00:00",
    )
    write_population(run, rates=[1.0] * 60, priority=[True] * 60)
    for number in (1, 2):
        write_round(run, number)
    make_run(
        tmp_path / "older", [make_round_line(1), make_round_line(2)], rounds=2, strategy="fedavg"
    )
    context = browser.new_context(viewport={"width": 1000, "height": 700})
    with WatchServer(tmp_path, 0) as server:
        server.watch.draw()
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        serving.start()
        page = context.new_page()
        problems = collect_problems(page)
        page.goto(server.url)
        page.locator(CURVES).first.wait_for()
        yield WatchedPage(tmp_path, run, server, page, problems)
        context.close()
        server.shutdown()
        serving.join()


def test_the_page_follows_a_run(watched_page: WatchedPage) -> None:
    """Numbers, charts and clients update, and the reader's view of the page does not change.

    The experiment's name and a node's text are escaped.
    """
    page = watched_page.page
    dialogs: list[str] = []
    page.on("dialog", lambda dialog: dialogs.append(dialog.message))
    progress = page.locator(".progress")
    expect(progress).to_have_text(
        f"{HOSTILE}, FedALIGN, seed 1: round 2 of 40, 0.1 s a round, about 0:00:04 left"
    )
    curve = page.locator(CURVES).first.get_attribute("d")
    runs = page.locator("details", has_text="Runs (1)").first
    runs.locator("summary").click()
    clients = page.locator("#clients-now .wide")
    clients.evaluate("node => { node.scrollTop = 150; }")
    page.locator("#clients-now").scroll_into_view_if_needed()
    assert page.evaluate("window.scrollY") > 0
    height = clients.evaluate(TOP)
    first = page.locator("#clients-now tbody tr").first
    row = first.element_handle()
    watched_page.advance_to_round(3)
    expect(progress).to_contain_text("round 3 of 40")
    page.wait_for_function(
        "([path, before]) => document.querySelector(path).getAttribute('d') !== before",
        arg=[CURVES, curve],
    )
    expect(first).to_have_text("0trained33")
    assert row is not None
    assert row.evaluate("node => node.isConnected")
    assert runs.evaluate("node => node.open")
    assert clients.evaluate("node => node.scrollTop") == 150
    assert clients.evaluate(TOP) == pytest.approx(height, abs=2)
    expect(page.get_by_role("heading", name=HOSTILE, exact=True)).to_have_count(1)
    reason = f"ValueError: {HOSTILE}"
    expect(page.get_by_role("cell", name=reason, exact=True)).to_have_count(1)
    assert page.locator("main img, td script, h2 script").count() == 0
    assert (dialogs, watched_page.problems) == ([], [])


def test_a_zoom_and_a_hidden_method_stay(watched_page: WatchedPage) -> None:
    """They stay until the reader changes them; a new method is drawn beside the others."""
    page = watched_page.page
    panel = page.locator(f"{TRAINING} .plot").first
    panel.scroll_into_view_if_needed()
    box = panel.locator(".nsewdrag").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 4, box["y"] + box["height"] / 4)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2, steps=5)
    page.mouse.up()
    zoomed = panel.evaluate(RANGE)
    legend = page.locator(f"{TRAINING} .legend button")
    expect(legend).to_have_count(1)
    make_run(
        watched_page.folder / "other",
        [make_round_line(1), make_round_line(2)],
        status="running",
        experiment=HOSTILE,
        strategy="fedavg",
        settings="strategy:\n  name: fedavg\n",
    )
    watched_page.advance_to_round(3)
    expect(legend).to_have_count(2)
    assert panel.evaluate(RANGE) == zoomed
    entry = page.locator(f"{TRAINING} .legend").get_by_role("button", name="FedAvg")
    entry.click()
    expect(entry).to_have_attribute("aria-pressed", "false")
    watched_page.advance_to_round(4)
    expect(page.locator(".progress").first).to_contain_text("round 4 of 40")
    expect(entry).to_have_attribute("aria-pressed", "false")
    assert watched_page.problems == []


def test_runs_that_start_later_are_shown(watched_page: WatchedPage) -> None:
    """Another experiment has its section; the clients are those of the newest run."""
    page = watched_page.page
    sections = page.locator("main > section > h2")
    expect(sections).to_have_text([HOSTILE, "fedalign/synth_low", "Clients now"])
    started = "2026-01-03T00:00:00+00:00"
    later = make_run(
        watched_page.folder / "later",
        [],
        status="running",
        started=started,
        seed=5,
        experiment="zeta",
    )
    watched_page.server.watch.draw()
    expect(sections).to_have_text([HOSTILE, "fedalign/synth_low", "zeta"])
    add_rounds(later, make_round_line(1))
    write_part(later, 0, [{"round": 1, "client": 0}])
    watched_page.server.watch.draw()
    expect(sections).to_have_text([HOSTILE, "fedalign/synth_low", "zeta", "Clients now"])
    expect(page.locator("#clients-now caption")).to_contain_text("zeta, FedALIGN, seed 5: 1 of 1")
    chart = page.locator("#zeta_training")
    chart.scroll_into_view_if_needed()
    expect(chart.locator(".main-svg").first).to_be_visible()
    page.set_viewport_size({"width": 400, "height": 800})
    page.wait_for_function("() => document.documentElement.scrollWidth === 400")
    assert watched_page.problems == []
    watched_page.server.shutdown()
    watched_page.server.server_close()
    expect(page.locator("#lost")).to_contain_text("No answer since ")
    expect(sections).to_have_count(4)
