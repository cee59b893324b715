"""The documentation, as a site and as files: every link leads somewhere."""

import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pytest
import yaml
from fedquorum.flower.strategies import DropInStrategy
from markdown_it import MarkdownIt

if TYPE_CHECKING:
    from playwright.sync_api import Browser

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    path.relative_to(ROOT)
    for folder in (".", "docs", "docs/api", "deploy", "examples/quickstart", "strategies")
    for path in (ROOT / folder).glob("*.md")
)
OUTSIDE = {
    "CHANGELOG.md": "changelog",
    "CONTRIBUTING.md": "contributing",
    "SECURITY.md": "security",
    "examples/quickstart/README.md": "quickstart",
}
"""Files that are pages of the site though they are not in docs."""

REPOSITORY = "https://github.com/fedquorum/fedquorum"
BLOCKS = {"h1", "h2", "h3", "h4", "ol", "ul", "li", "table", "tr", "th", "td", "pre", "img"}
INLINE = {"code", "em", "strong"}


class Page(HTMLParser):
    """Where a page can be jumped to, where it links to, and what it loads."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors = {""}
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.anchors.add(found.get("id") or "")
        if tag == "a" and found.get("href"):
            self.links.append(str(found["href"]))
        elif tag != "a":
            self.loads += [str(found[key]) for key in ("src", "srcset", "href") if found.get(key)]


class Structure(HTMLParser):
    """What a text is made of: its headings, lists, tables, code and words, in their order."""

    def __init__(self, text: str, *, within: str = "") -> None:
        super().__init__()
        self.parts = [""]
        self._within, self._inside, self._left_out = within, not within, 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._inside |= tag == self._within
        # The way to the page, and the marks behind its headings.
        if self._inside and (tag == "nav" or dict(attrs).get("class") == "headerlink"):
            self._left_out += 1
        elif self._inside and tag in BLOCKS | INLINE:
            self.parts += [f"<{tag}>", ""]

    def handle_endtag(self, tag: str) -> None:
        if tag == self._within:
            self._inside = False
        elif self._left_out and tag in ("nav", "a"):
            self._left_out -= 1

    def handle_data(self, data: str) -> None:
        if self._inside and not self._left_out:
            self.parts[-1] += "".join(data.split())  # highlighting may split code anywhere


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site where nothing but this machine can be reached; any warning is an error."""
    folder = tmp_path_factory.mktemp("site")
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "all_proxy"), "http://127.0.0.1:9")
    # As of pytest in pyproject.toml.
    python = [sys.executable, "-W", "error", "-W", "ignore:'click.utils:DeprecationWarning"]
    done = subprocess.run(
        # Not --quiet, with which --strict counts no warnings.
        [*python, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        # The theme's news of itself is no warning.
        env={**os.environ, **nowhere, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not re.search("^(WARNING|ERROR)", done.stderr, re.MULTILINE), done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    """Read all pages of the site."""
    return {path: Page(path) for path in site.rglob("*.html")}


@pytest.mark.slow
def test_every_link_of_the_site_leads_somewhere(site: Path, pages: dict[Path, Page]) -> None:
    """To an anchor of a page, a picture, or a file of this repository."""
    assert len(pages) > 30
    broken = []
    for path, page in pages.items():
        for link in page.links:
            target, _, anchor = unquote(link).partition("#")
            if target.startswith(REPOSITORY):
                there = target == REPOSITORY or (ROOT / target.split("/main/")[1]).exists()
            elif "://" in target:
                continue
            else:
                # What is not found is answered with one page, from any folder.
                to = site / target[1:] if target.startswith("/") else path.parent / target
                to = (to / "index.html" if to.is_dir() else to).resolve() if target else path
                there = to.is_file() and (not anchor or anchor in pages[to].anchors)
            if not there:
                broken.append((path.relative_to(site).as_posix(), link))
    assert broken == []


@pytest.mark.slow
def test_the_site_loads_nothing_from_elsewhere(site: Path, pages: dict[Path, Page]) -> None:
    """No script, style, font or picture; links are another matter."""
    loaded = {url for page in pages.values() for url in page.loads}
    for path in site.rglob("*.css"):
        loaded |= set(re.findall(r"url\(['\"]?([^)'\"]+)", path.read_text()))
    assert any(url.endswith(".css") for url in loaded)
    assert [url for url in loaded if "//" in url and not url.startswith("data:")] == []


@pytest.mark.slow
def test_the_reference_has_the_public_names(site: Path, pages: dict[Path, Page]) -> None:
    """All that the packages export has a place, and the strategies have their parameters."""
    known = {anchor for path in (site / "api").glob("*.html") for anchor in pages[path].anchors}
    kinds = ("selection", "weighting", "participation", "server_optimizer")
    packages = [f"fedquorum.rules.{kind}" for kind in kinds]
    packages += ["fedquorum.client.availability", "fedquorum.flower.mods"]
    for package in ("fedquorum", "fedquorum_app", *packages):
        exported = importlib.import_module(package).__all__
        assert {f"{package}.{name}" for name in exported} <= known, package
    # Other tests define strategies of their own.
    defined = [
        made
        for made in DropInStrategy.__subclasses__()
        if made.__module__ == DropInStrategy.__module__
    ]
    declared = {
        f"fedquorum.{strategy.__name__}({parameter.name})"
        for strategy in defined
        for parameter in strategy.entry.parameters
    }
    assert len(declared) > 10
    assert declared <= known


@pytest.mark.slow
def test_every_page_can_be_searched(site: Path, pages: dict[Path, Page]) -> None:
    """The index has each of them, with words."""
    index = json.loads((site / "search" / "search_index.json").read_text())
    found = {entry["location"].partition("#")[0] for entry in index["docs"] if entry["text"]}
    assert found == {path.relative_to(site).as_posix() for path in pages} - {"404.html"}


@pytest.mark.slow
def test_every_page_reads_the_same_on_github(site: Path) -> None:
    """The parsers of both see the same headings, lists, tables, code and words."""
    sources = {page: path for path, page in OUTSIDE.items()}
    sources |= {path.stem: f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")}
    github = MarkdownIt("commonmark").enable("table")
    for page, source in sources.items():
        there = Structure(github.render((ROOT / source).read_text()))
        here = Structure((site / f"{page}.html").read_text(), within="article")
        assert len(there.parts) > 50, source
        assert here.parts == there.parts, source


def test_the_navigation_is_by_task() -> None:
    """Not by module; a page that is left out is a warning."""

    class Loader(yaml.SafeLoader):
        pass

    Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)
    tasks = yaml.load((ROOT / "mkdocs.yml").read_text(), Loader)["nav"]  # noqa: S506
    assert [task for entry in tasks for task in entry] == [
        "Home",
        "Use it in my app",
        "Compare methods on my data",
        "Deploy",
        "Add a rule",
        "Read the records",
        "What the papers claim and what we measured",
        "Reference",
    ]


@pytest.fixture
def address(site: Path) -> Iterator[str]:
    """Serve the site."""

    class Silent(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Silent, directory=site)) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize("width", [1400, 390])
def test_a_browser_finds_what_it_looks_for(address: str, browser: "Browser", width: int) -> None:
    """On a wide window and on a phone's; it asks nobody but the site, and no page is wider."""
    page = browser.new_page(viewport={"width": width, "height": 900})
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    for name in ("index", "results", "deployment", "api/weighting"):
        page.goto(f"{address}/{name}.html")
        wide = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
        assert page.evaluate(wide) is False, name
    if width < 1000:
        page.locator("label.md-header__button[for=__search]").click()
    # The page listens to keys.
    page.locator("input[name=query]").press_sequentially("EpsilonGate")
    page.locator(".md-search-result__link", has_text="EpsilonGate").first.click()
    page.wait_for_url(f"{address}/api/*.html?h=epsilongate#*")
    assert [url for url in asked if not url.startswith((address, "data:", "blob:"))] == []
    page.close()


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_every_relative_link_of_the_documentation_leads_somewhere(page: Path) -> None:
    """Files, and headings in them."""
    for link in re.findall(r"\]\(([^)\s]+)\)", (ROOT / page).read_text()):
        target, _, anchor = link.partition("#")
        if "://" in link:
            continue
        to = (ROOT / page).parent / target if target else ROOT / page
        assert to.exists(), link
        if anchor:
            headings = re.findall(r"^#+ (.*)$", to.read_text(), re.MULTILINE)
            assert anchor in {
                re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings
            }, link


@pytest.mark.slow
def test_the_tests_that_the_drop_in_page_names_are_there() -> None:
    """Every ``file::test`` of its table is a test in that file."""
    text = (ROOT / "docs" / "drop-in.md").read_text()
    named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", text)
    assert len(named) > 20
    for file, name in named:
        source = (ROOT / "tests" / "fedquorum" / "flower" / file).read_text()
        assert f"def {name}(" in source, (file, name)
