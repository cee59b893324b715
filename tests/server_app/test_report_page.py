"""The report's page in a real browser, without a network."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from server_app.report.command_line import main
from tests.fedquorum.records.made import line, make_run, write_population, write_table
from tests.server_app.pages import problems_of

pytestmark = pytest.mark.slow  # a real browser

PLOTS = ("training", "sweep-strategy-epsilon", "participation", "admission", "costs")
MAX_BYTES = 6_000_000


@dataclass
class Opened:
    """The page in a browser, and what went wrong or was asked for while it opened."""

    page: Page
    problems: list[str]
    requests: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the page of two methods, one of them with two values of a setting and two seeds."""
    folder = tmp_path_factory.mktemp("page")
    for epsilon in (0.1, 0.2):
        for seed in (1, 2):
            settings = f"strategy:\n  name: fedalign\n  epsilon: {epsilon}\n"
            rounds = [line(n, global_loss=seed / n) for n in (1, 2, 3)]
            run = make_run(folder / f"{epsilon}_{seed}", rounds, seed=seed, settings=settings)
            write_table(
                run,
                "clients",
                [
                    {"round": n, "client": k, "priority": k < 2, "status": s, "weight": 0.0}
                    for n in (1, 2, 3)
                    for k, s in enumerate(("trained", "trained", "silent", "unavailable"))
                ],
            )
            write_population(run, rates=[1.0] * 4, priority=[True, True, False, False])
    rounds = [line(n, global_loss=2.0) for n in (1, 2, 3)]
    script = "strategy:\n  name: fedavg\n  note: '</script><script>alert(1)</script>'\n"
    make_run(folder / "avg", rounds, settings=script, strategy="fedavg", status="interrupted")
    output = folder / "report"
    assert main([str(folder), "--output", str(output)]) == 0
    return output / "report.html"


@pytest.fixture
def opened(report: Path, browser: Browser) -> Iterator[Opened]:
    """Open the page with JavaScript and draw every plot."""
    context = browser.new_context(offline=True)
    page = context.new_page()
    found = Opened(page, problems_of(page))
    found.page.on("request", lambda request: found.requests.append(request.url))
    found.page.goto(report.as_uri())
    for name in PLOTS:
        plot = found.page.locator(f"#fedalign-synth-low_{name}")
        plot.scroll_into_view_if_needed()
        plot.locator(".main-svg").first.wait_for()
    yield found
    context.close()


def curves(page: Page, name: str) -> list[str]:
    """Return the colours of the curves that a plot shows."""
    lines = page.locator(f"#fedalign-synth-low_{name} .scatterlayer .js-line").all()
    return [str(one.evaluate("node => getComputedStyle(node).stroke")) for one in lines]


@pytest.mark.slow
def test_the_page_opens_alone_and_without_errors(opened: Opened, report: Path) -> None:
    """No error, no warning, and nothing is asked of anybody but the file itself."""
    assert opened.problems == []
    asked = [url for url in opened.requests if not url.startswith(("data:", "blob:"))]
    assert asked == [report.as_uri()]


def test_no_button_sends_the_data_away(opened: Opened) -> None:
    """Plotly's own would offer to upload the figure to a server of its maker."""
    titles = opened.page.locator(".modebar-btn").evaluate_all("a => a.map(b => b.dataset.title)")
    assert "Download plot as a PNG" in titles
    assert not [title for title in titles if "share" in title.lower() or "cloud" in title.lower()]


def test_a_narrow_window_scrolls_the_panels(report: Path, browser: Browser) -> None:
    """On a telephone panels keep their width, so that labels do not lie over each other."""
    page = browser.new_page(viewport={"width": 400, "height": 800})
    page.goto(report.as_uri())
    plot = page.locator("#fedalign-synth-low_training")
    plot.locator(".main-svg").first.wait_for()
    widths = page.locator("#fedalign-synth-low_training .bg").evaluate_all(
        "all => all.map(node => node.getBoundingClientRect().width)"
    )
    assert min(widths[:3]) > 150
    assert page.evaluate("document.documentElement.scrollWidth") == 400
    page.close()


def test_every_plot_is_drawn(opened: Opened) -> None:
    """Each has its axes' names with units in place of the picture that was there before."""
    plots = opened.page.locator("figure[data-plot] .plot")
    drawn = [str(plot.get_attribute("id")) for plot in plots.all()]
    assert drawn == [f"fedalign-synth-low_{name}" for name in PLOTS]
    assert opened.page.locator("figure img").count() == 0
    titles = opened.page.locator("#fedalign-synth-low_training .infolayer text").all_text_contents()
    assert "training loss F(w), nats" in titles
    assert "test accuracy, %, priority clients" in titles


def test_a_click_on_the_legend_hides_a_method_in_all_panels(opened: Opened) -> None:
    """Its curves and bands go, the others stay; a second click brings them back."""
    page = opened.page
    before = curves(page, "training")
    legend = page.locator("#fedalign-synth-low_training .legend .traces").filter(
        has_text="epsilon 0.1"
    )
    toggle = legend.locator(".legendtoggle")
    toggle.click()
    page.wait_for_function(
        "count => document.querySelectorAll("
        "'#fedalign-synth-low_training .scatterlayer .js-line').length < count",
        arg=len(before),
    )
    hidden = curves(page, "training")
    colour = before[0]
    assert colour in before
    assert colour not in hidden
    assert set(before) - set(hidden) == {colour}
    page.wait_for_timeout(600)  # a click soon after another is a double click
    toggle.click()
    page.wait_for_function(
        "count => document.querySelectorAll("
        "'#fedalign-synth-low_training .scatterlayer .js-line').length === count",
        arg=len(before),
    )
    assert curves(page, "training") == before


def test_hovering_tells_what_became_of_a_client(opened: Opened) -> None:
    """The raster names the status, not its number."""
    plot = opened.page.locator("#fedalign-synth-low_participation")
    plot.scroll_into_view_if_needed()
    box = plot.locator(".nsewdrag").bounding_box()
    assert box is not None
    told = []
    for share in (0.1, 0.9):
        opened.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + share * box["height"])
        plot.locator(".hovertext").wait_for()
        opened.page.wait_for_timeout(200)
        told.append(plot.locator(".hovertext").text_content())
    assert told == ["round 2, client 0: trained", "round 2, client 3: unavailable"]


def test_without_javascript_pictures_and_tables_are_there(report: Path, browser: Browser) -> None:
    """Every plot's picture is loaded, every table can be read."""
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
    assert "fedalign/synth_low: test accuracy, %, after the last evaluation" in captions
    assert "interrupted" in " ".join(page.locator(".warning").all_text_contents())
    context.close()


@pytest.mark.slow
def test_the_page_is_small(report: Path) -> None:
    """With Plotly in it, once, and every picture."""
    text = report.read_text()
    assert len(text.encode()) < MAX_BYTES
    assert len(re.findall('id="plotly-gz"', text)) == 1
