"""Pages: what they say, and what goes wrong with them in a real browser.

Playwright takes a second to import, and only tests with a browser need it.
"""

import re
from html.parser import HTMLParser
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page
    from playwright.sync_api._generated import LocatorAssertions

WAIT_MS = 20_000  # other tests may have the cores
HIDDEN = ("head", "script", "style", "noscript")
INLINE = ("a", "code", "span")
CELLS = ("td", "th")


class _Text(HTMLParser):
    """Collects the text that a page shows, a line for each paragraph and each row of a table."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self._hidden = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Begin a line or a cell, or leave out what nobody sees."""
        del attrs
        self._hidden += tag in HIDDEN
        if tag not in (*INLINE, *CELLS):
            self.parts.append("\n")

    def handle_endtag(self, tag: str) -> None:
        """End it."""
        self._hidden -= tag in HIDDEN
        if tag not in INLINE:
            self.parts.append(" | " if tag in CELLS else "\n")

    def handle_data(self, data: str) -> None:
        """Take text on one line, as a browser does."""
        if not self._hidden:
            self.parts.append(re.sub(r"\s+", " ", data))


def read_page_text(page: str) -> str:
    """Return what a page of HTML says, without what its scripts draw."""
    reader = _Text()
    reader.feed(page)
    lines = (line.strip(" |") for line in "".join(reader.parts).splitlines())
    return "".join(f"{line}\n" for line in lines if line)


def expect(found: "Locator") -> "LocatorAssertions":
    """Return Playwright's assertions on a part of a page, which wait for what they assert."""
    from playwright.sync_api import expect

    expect.set_options(timeout=WAIT_MS)
    return expect(found)


def collect_problems(page: "Page") -> list[str]:
    """Return a list to which every error and warning of a page is added as it happens."""
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on(
        "console",
        lambda told: problems.append(told.text) if told.type in ("error", "warning") else None,
    )
    return problems
