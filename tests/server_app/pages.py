"""Read the text of pages, and collect their problems in a real browser.

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
    """Collects the visible text of a page, one line for each paragraph and table row."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self._hidden = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Start a line or a cell, or skip a hidden element."""
        del attrs
        self._hidden += tag in HIDDEN
        if tag not in (*INLINE, *CELLS):
            self.parts.append("\n")

    def handle_endtag(self, tag: str) -> None:
        """End a line, a cell or a hidden element."""
        self._hidden -= tag in HIDDEN
        if tag not in INLINE:
            self.parts.append(" | " if tag in CELLS else "\n")

    def handle_data(self, data: str) -> None:
        """Add visible text with its white space collapsed, as in a browser."""
        if not self._hidden:
            self.parts.append(re.sub(r"\s+", " ", data))


def read_page_text(page: str) -> str:
    """Return the text of an HTML page, without the content that its scripts draw."""
    reader = _Text()
    reader.feed(page)
    lines = (line.strip(" |") for line in "".join(reader.parts).splitlines())
    return "".join(f"{line}\n" for line in lines if line)


def expect(found: "Locator") -> "LocatorAssertions":
    """Return Playwright's assertions on a part of a page, which wait until they hold."""
    from playwright.sync_api import expect

    expect.set_options(timeout=WAIT_MS)
    return expect(found)


def collect_problems(page: "Page") -> list[str]:
    """Return a list that collects every error and warning of a page."""
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on(
        "console",
        lambda message: (
            problems.append(message.text) if message.type in ("error", "warning") else None
        ),
    )
    return problems
