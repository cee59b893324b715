"""The page that follows a run, in a real browser."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from server_app.report.watch.server import WatchServer
from tests.fedquorum.records.made import (
    accuracy,
    append_rounds,
    line,
    make_run,
    write_part,
    write_population,
)
from tests.server_app.pages import problems_of

pytestmark = pytest.mark.slow  # a real browser
expect.set_options(timeout=20_000)  # ms: other tests may have the cores

HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>"
FOLDER_NAME = HOSTILE.replace("/", "")
CURVES = "#chart-training .scatterlayer .js-line"
TOP = "node => node.getBoundingClientRect().top"
X_TITLES = "#chart-training .infolayer [class^=x][class$=title]"


@dataclass
class Followed:
    """A page that follows the newest run of a folder, and what went wrong there."""

    folder: Path
    run: Path
    server: WatchServer
    page: Page
    problems: list[str]

    def go_on(self, number: int) -> None:
        """Let the run end a round in which client 1 fails."""
        end_round(self.run, number)


def end_round(run: Path, number: int) -> None:
    """Write a round in which client 1 fails, and says so with markup."""
    record = line(
        number,
        global_loss=2 / number,
        test=accuracy(1 - 0.5 / number),
        failed=1,
        simulated_seconds=2.5 * number,
    )
    append_rounds(run, record)
    asked = {"round": number, "priority": True}
    failed = {"status": "failed", "reason": f"ValueError: {HOSTILE}"}
    write_part(run, number, [asked | {"client": 0}, asked | {"client": 1} | failed])


@pytest.fixture
def followed(tmp_path: Path, browser: Browser) -> Iterator[Followed]:
    """Serve a folder with a run of two rounds that goes on and an older one, and open the page."""
    run = make_run(
        tmp_path / FOLDER_NAME,
        [],
        status="running",
        rounds=40,
        experiment=HOSTILE,
        started="2026-01-02T00:00:00+00:00",
    )
    write_population(run, rates=[1.0] * 60, priority=[True] * 60)
    for number in (1, 2):
        end_round(run, number)
    make_run(tmp_path / "older", [line(1), line(2)], rounds=2, strategy="fedavg")
    context = browser.new_context(viewport={"width": 1000, "height": 700})
    with WatchServer(tmp_path, 0) as server:
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        serving.start()
        page = context.new_page()
        problems = problems_of(page)
        page.goto(server.url)
        page.locator(CURVES).first.wait_for()
        yield Followed(tmp_path, run, server, page, problems)
        context.close()
        server.shutdown()
        serving.join()


def test_the_page_follows_a_run(followed: Followed) -> None:
    """Numbers, charts and clients change by themselves, and the window stays where it was.

    The names of the experiment and of a folder, and what a client's node says, are shown as text.
    """
    page = followed.page
    dialogs: list[str] = []
    page.on("dialog", lambda dialog: dialogs.append(dialog.message))
    progress = page.locator("#progress")
    expect(progress).to_contain_text("round 2 of 40")
    expect(page.locator("#facts")).to_contain_text("simulated seconds5.0")
    expect(page.locator("#statuses")).to_contain_text("failed12")
    curve = page.locator(CURVES).first.get_attribute("d")
    clients = page.locator("#clients .wide")
    clients.evaluate("node => { node.scrollTop = 150; }")
    page.locator("#clients").scroll_into_view_if_needed()
    assert page.evaluate("window.scrollY") > 0
    height = clients.evaluate(TOP)
    first = page.locator("#clients tbody tr").first
    row = first.element_handle()
    followed.go_on(3)
    expect(progress).to_contain_text("round 3 of 40")
    expect(page.locator("#facts")).to_contain_text("simulated seconds7.5")
    page.wait_for_function(
        "([path, before]) => document.querySelector(path).getAttribute('d') !== before",
        arg=[CURVES, curve],
    )
    expect(first).to_contain_text("0yestrained3")
    assert row is not None
    assert row.evaluate("node => node.isConnected")
    assert clients.evaluate("node => node.scrollTop") == 150
    assert clients.evaluate(TOP) == pytest.approx(height, abs=2)
    assert page.title().startswith("round 3 of 40")
    titles = ["round"] * 3 + ["simulated seconds"]
    assert page.locator(X_TITLES).all_text_contents() == titles
    expect(page.locator("h1")).to_have_text(f"{HOSTILE}, fedalign, seed 1")
    reason = f"ValueError: {HOSTILE}"
    expect(page.get_by_role("cell", name=reason, exact=True)).to_have_count(1)
    expect(page.locator("#runs a").first).to_have_text(FOLDER_NAME)
    assert page.locator("img, td script, h1 script").count() == 0
    assert (dialogs, followed.problems) == ([], [])


def test_another_run_can_be_chosen(followed: Followed) -> None:
    """And the newest again; a run that begins meanwhile is shown then."""
    page = followed.page
    page.locator("#runs a", has_text="older").click()
    expect(page.locator("#status")).to_have_text("completed")
    expect(page.locator("h1")).to_have_text("fedalign/synth_low, fedavg, seed 1")
    expect(page.locator("#facts")).not_to_contain_text("simulated seconds")
    expect(page.locator(X_TITLES)).to_have_count(3)
    later = "2026-01-03T00:00:00+00:00"
    make_run(followed.folder / "later", [], status="running", started=later, seed=5)
    page.get_by_role("link", name="follow the newest").click()
    expect(page.locator("h1")).to_have_text("fedalign/synth_low, fedalign, seed 5")
    expect(page.locator("#progress")).to_have_text("no round yet")
    expect(page.locator("#chart-training")).to_have_count(0)
    page.set_viewport_size({"width": 400, "height": 800})
    page.get_by_role("link", name=FOLDER_NAME).click()
    expect(page.locator(X_TITLES)).to_have_count(4)
    assert page.evaluate("document.documentElement.scrollWidth") == 400
    assert followed.problems == []
    followed.server.shutdown()
    followed.server.server_close()
    expect(page.locator("#lost")).to_contain_text("No answer since ")
    expect(page.locator("#status")).to_have_text("running")
