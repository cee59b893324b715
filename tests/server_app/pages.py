"""Pages in a real browser."""

from playwright.sync_api import Page


def problems_of(page: Page) -> list[str]:
    """Return a list to which every error and warning of a page is added as it happens."""
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on(
        "console",
        lambda told: problems.append(told.text) if told.type in ("error", "warning") else None,
    )
    return problems
