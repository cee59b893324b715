"""Take a picture of a page of a report or of the documentation in a browser.

    python benchmarks/page_picture.py PAGE.html PICTURE.png [--width 1200 --height 1600]

needs Playwright and a Chromium (the command, or the path in FEDQUORUM_CHROMIUM).
"""

import argparse
import os
import shutil
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

COLORS = 256


def main() -> None:
    """Open the page, draw every plot, and save a small PNG of its visible part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--width", type=int, default=1200)
    parser.add_argument(
        "--height", type=int, default=1600, help="height of the picture, from the top of the page"
    )
    arguments = parser.parse_args()
    chromium = shutil.which(os.environ.get("FEDQUORUM_CHROMIUM", "chromium"))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        size = {"width": arguments.width, "height": arguments.height}
        page = browser.new_page(viewport=size)  # type: ignore[arg-type]
        page.goto(arguments.page.absolute().as_uri())
        for plots in page.locator("figure[data-plot] .plots").all():
            plots.scroll_into_view_if_needed()
            for plot in plots.locator(".plot").all():
                plot.locator(".main-svg").first.wait_for()
        page.evaluate("window.scrollTo(0, 0)")
        page.screenshot(path=arguments.picture)
        browser.close()
    with Image.open(arguments.picture) as screenshot:
        # The median cut, Pillow's default, merges colors of few pixels, such as those of methods.
        small = screenshot.convert("RGB").quantize(
            COLORS, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE
        )
    small.save(arguments.picture, optimize=True)


if __name__ == "__main__":
    main()
