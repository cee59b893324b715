"""Tests of the report's page in a real browser, without a network."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from fedquorum.report.cli import main

from tests.fedquorum.records.made import make_round_line, make_run, write_population, write_table
from tests.server_app.pages import collect_problems, expect

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.slow  # a real browser

PLOTS = ("training", "sweep-strategy-epsilon", "participation", "admission", "costs")
MAX_BYTES = 6_000_000


@dataclass
class Opened:
    """The page in a browser, with problems and requests while it opened."""

    page: "Page"
    problems: list[str]
    requests: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the page of two methods, one with two values of a setting and two seeds."""
    folder = tmp_path_factory.mktemp("page")
    for epsilon, third in ((0.1, "declined"), (0.2, "rejected")):
        for seed in (1, 2):
            settings = f"strategy:\n  name: fedalign\n  epsilon: {epsilon}\n"
            rounds = [make_round_line(n, global_loss=seed / n) for n in (1, 2, 3)]
            run = make_run(folder / f"{epsilon}_{seed}", rounds, seed=seed, settings=settings)
            write_table(
                run,
                "clients",
                [
                    {"round": n, "client": k, "priority": k < 2, "status": s, "weight": 0.0}
                    for n in (1, 2, 3)
                    for k, s in enumerate(("trained", "trained", third, "unavailable"))
                ],
            )
            write_population(run, rates=[1.0] * 4, priority=[True, True, False, False])
    rounds = [make_round_line(n, global_loss=2.0) for n in (1, 2, 3)]
    script = "strategy:\n  name: fedavg\n  note: '</script><script>alert(1)</script>'\n"
    make_run(folder / "avg", rounds, settings=script, strategy="fedavg", status="interrupted")
    output = folder / "report"
    assert main([str(folder), "--output", str(output)]) == 0
    return output / "report.html"


@pytest.fixture
def report_page(report: Path, browser: "Browser") -> Iterator[Opened]:
    """Open the page with JavaScript and draw every plot."""
    context = browser.new_context(offline=True)
    page = context.new_page()
    found = Opened(page, collect_problems(page))
    found.page.on("request", lambda request: found.requests.append(request.url))
    found.page.goto(report.as_uri())
    for name in PLOTS:
        plot = found.page.locator(to_selector(name))
        plot.scroll_into_view_if_needed()
        plot.locator(".main-svg").first.wait_for()
        for panel in plot.locator(".plot").all():
            panel.locator(".main-svg").first.wait_for()
    yield found
    context.close()


def to_selector(name: str) -> str:
    """Return the selector of a chart."""
    return f"#fedalign-synth-low_{name}"


def read_curve_colors(page: "Page", panel: int) -> list[str]:
    """Read the colors of the visible curves in a panel of the first chart."""
    lines = (
        page.locator(f"{to_selector('training')} .plot")
        .nth(panel)
        .locator(".scatterlayer .js-line")
    )
    return [str(one.evaluate("node => getComputedStyle(node).stroke")) for one in lines.all()]


@pytest.mark.slow
def test_the_page_opens_offline_without_errors(report_page: Opened, report: Path) -> None:
    """There is no error, no warning, and no request except for the file itself."""
    assert report_page.problems == []
    requested = [url for url in report_page.requests if not url.startswith(("data:", "blob:"))]
    assert requested == [report.as_uri()]


def test_no_button_uploads_the_data(report_page: Opened) -> None:
    """By default Plotly offers to upload the figure to its maker's server."""
    titles = report_page.page.locator(".modebar-btn").evaluate_all(
        "a => a.map(b => b.dataset.title)"
    )
    assert "Download plot as a PNG" in titles
    assert not [title for title in titles if "share" in title.lower() or "cloud" in title.lower()]


def test_a_narrow_window_stacks_panels(report: Path, browser: "Browser") -> None:
    """On a phone only tables scroll sideways, and their first column stays."""
    page = browser.new_page(viewport={"width": 400, "height": 800})
    page.goto(report.as_uri())
    panels = page.locator(f"{to_selector('training')} .plot")
    panels.nth(3).locator(".main-svg").first.wait_for()
    boxes = [box for panel in panels.all() if (box := panel.bounding_box()) is not None]
    assert len(boxes) == 4
    assert all(box["width"] > 350 for box in boxes)
    assert all(one["y"] + one["height"] <= other["y"] + 1 for one, other in pairwise(boxes))
    assert page.evaluate("document.documentElement.scrollWidth") == 400
    table = page.locator(".wide").first
    table.evaluate("node => { node.scrollLeft = 200; }")
    first = table.locator("tbody td").first.bounding_box()
    assert first is not None
    assert first["x"] == pytest.approx(16, abs=1)
    page.close()


def test_every_plot_is_drawn(report_page: Opened) -> None:
    """Each replaces its picture and has axis names with units."""
    plots = report_page.page.locator("figure[data-plot] .plots")
    drawn = [str(plot.get_attribute("id")) for plot in plots.all()]
    assert drawn == [f"fedalign-synth-low_{name}" for name in PLOTS]
    assert report_page.page.locator("figure img").count() == 0
    titles = report_page.page.locator(
        f"{to_selector('training')} .infolayer text"
    ).all_text_contents()
    assert "training loss F(w), nats" in titles
    assert "test accuracy, %" in titles
    assert "priority clients" in titles


def test_a_click_on_the_legend_hides_a_method_in_all_panels(report_page: Opened) -> None:
    """Its curves, bands and names disappear; a second click restores them."""
    page = report_page.page
    before = [read_curve_colors(page, panel) for panel in range(4)]
    names = page.locator(f"{to_selector('training')} .annotation")
    written = names.count()
    entry = page.locator(f"{to_selector('training')} .legend").get_by_role(
        "button", name="epsilon 0.1"
    )
    entry.click()
    expect(entry).to_have_attribute("aria-pressed", "false")
    expect(names).to_have_count(written - 4)
    hidden = [read_curve_colors(page, panel) for panel in range(4)]
    (color,) = {color for one in before for color in one} - {c for one in hidden for c in one}
    assert hidden == [[one for one in panel if one != color] for panel in before]
    entry.click()
    expect(entry).to_have_attribute("aria-pressed", "true")
    expect(names).to_have_count(written)
    assert [read_curve_colors(page, panel) for panel in range(4)] == before


def test_a_double_click_hides_all_others(report_page: Opened) -> None:
    """Another double click shows them again."""
    legend = report_page.page.locator(f"{to_selector('training')} .legend")
    entry = legend.get_by_role("button", name="epsilon 0.2")
    shown = legend.locator("[aria-pressed=true]")
    entry.dblclick()
    expect(shown).to_have_count(1)
    expect(shown).to_have_text("FedALIGN, epsilon 0.2")
    entry.dblclick()
    expect(shown).to_have_count(3)


def test_hovering_shows_the_status_of_a_client(report_page: Opened) -> None:
    """The raster of the chosen method names the status, not its code."""
    plot = report_page.page.locator(to_selector("participation"))
    choice = plot.locator("select")
    names = choice.locator("option").all_text_contents()
    assert names == ["FedALIGN, epsilon 0.1, seed 1", "FedALIGN, epsilon 0.2, seed 1"]
    for name, fraction, text in (
        (names[0], 0.1, "round 2, client 0: trained"),
        (names[0], 0.6, "round 2, client 2: declined"),
        (names[1], 0.9, "round 2, client 3: unavailable"),
        (names[1], 0.6, "round 2, client 2: rejected"),
    ):
        choice.select_option(name)
        plot.scroll_into_view_if_needed()
        box = plot.locator(".nsewdrag").bounding_box()
        assert box is not None
        report_page.page.mouse.move(
            box["x"] + box["width"] / 2, box["y"] + fraction * box["height"]
        )
        expect(plot.locator(".hovertext")).to_have_text(text)


def test_print_cuts_nothing(report: Path, browser: "Browser") -> None:
    """All plots are drawn, two side by side, and tables fit the page's width."""
    page = browser.new_page(viewport={"width": 700, "height": 1000})  # A4 with margins
    page.goto(report.as_uri())
    page.locator(f"{to_selector('training')} .main-svg").first.wait_for()
    page.emulate_media(media="print")
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    for name in PLOTS:
        expect(page.locator(f"{to_selector(name)} .main-svg").first).to_be_visible()
    first, second = (
        page.locator(f"{to_selector('training')} .plot").nth(n).bounding_box() for n in (0, 1)
    )
    assert first is not None
    assert second is not None
    assert first["y"] == second["y"]
    assert second["x"] >= first["x"] + first["width"]
    assert second["x"] + second["width"] <= 700
    widths = page.locator("table").evaluate_all("all => all.map(one => one.clientWidth)")
    assert max(widths) <= 700
    assert page.evaluate("document.documentElement.scrollWidth") == 700
    page.close()


def test_without_javascript_pictures_and_tables_remain(report: Path, browser: "Browser") -> None:
    """Every plot's picture is loaded, and every table is readable."""
    context = browser.new_context(java_script_enabled=False, offline=True)
    page = context.new_page()
    page.goto(report.as_uri())
    for name in PLOTS:
        picture = page.locator(f"#fedalign-synth-low_{name} img")
        box = picture.bounding_box()
        assert box is not None
        assert box["width"] > 300
        assert box["height"] > 150
    captions = page.locator("caption").all_text_contents()
    assert any("test accuracy, %" in caption for caption in captions)
    assert "interrupted" in " ".join(page.locator(".warning").all_text_contents())
    context.close()


@pytest.mark.slow
def test_the_page_is_small(report: Path) -> None:
    """It contains Plotly once, and every picture."""
    text = report.read_text()
    assert len(text.encode()) < MAX_BYTES
    assert len(re.findall('id="plotly-gz"', text)) == 1
