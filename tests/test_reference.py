"""The API reference and the pages of the documentation: every link leads somewhere."""

import re
import shlex
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import fedquorum
import pytest
from fedquorum.flower.drop_in import DropIn

from tests.cases import is_long

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    path.relative_to(ROOT)
    for folder in (".", "docs", "deploy", "examples/quickstart", "strategies")
    for path in (ROOT / folder).glob("*.md")
)


class Page(HTMLParser):
    """Where a page can be jumped to, and where it links to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors = {""}
        self.links: list[str] = []
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.anchors.add(found.get("id") or "")
        if tag == "a" and found.get("href"):
            self.links.append(str(found["href"]))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the reference with the command of docs/reference.md."""
    text = (ROOT / "docs" / "reference.md").read_text()
    (command,) = re.findall(r"```bash\n(.*?)\n```", text, re.DOTALL)
    folder = tmp_path_factory.mktemp("reference")
    words = shlex.split(command)
    assert words[0] == "pdoc"
    words[words.index("-o") + 1] = str(folder)
    done = subprocess.run(
        [sys.executable, "-m", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.skipif(not is_long(), reason="builds all pages; see --long")
def test_every_link_of_the_reference_leads_somewhere(site: Path) -> None:
    """Pages and anchors; links to the network are not followed."""
    pages = {path: Page(path) for path in site.rglob("*.html")}
    assert len(pages) > 20
    broken = []
    for path, page in pages.items():
        for link in page.links:
            target, _, anchor = link.partition("#")
            to = (path.parent / target).resolve() if target else path
            if "://" not in link and (to not in pages or anchor not in pages[to].anchors):
                broken.append((path.relative_to(site), link))
    assert broken == []


@pytest.mark.slow
@pytest.mark.skipif(not is_long(), reason="builds all pages; see --long")
def test_the_reference_has_the_public_names(site: Path) -> None:
    """All that ``fedquorum`` exports has a place, and the strategies have their parameters."""
    assert set(fedquorum.__all__) <= Page(site / "fedquorum.html").anchors
    # The exports are lazy, so pdoc describes the strategies where they are defined.
    # Other tests define strategies of their own.
    defined = [made for made in DropIn.__subclasses__() if made.__module__ == DropIn.__module__]
    strategies = {f"{strategy.__name__}.__init__" for strategy in defined}
    assert len(strategies) > 10
    assert strategies <= Page(site / "fedquorum" / "flower" / "drop_in.html").anchors


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


def test_the_tests_that_the_drop_in_page_names_are_there() -> None:
    """Every ``file::test`` of its table is a test in that file."""
    text = (ROOT / "docs" / "drop-in.md").read_text()
    named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", text)
    assert len(named) > 20
    for file, name in named:
        source = (ROOT / "tests" / "fedquorum" / "flower" / file).read_text()
        assert f"def {name}(" in source, (file, name)
