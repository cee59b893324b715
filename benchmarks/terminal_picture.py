"""Take a picture of a command's output in a terminal.

    python benchmarks/terminal_picture.py PICTURE.png fedquorum rounds=20

runs the command in a terminal of 100 columns, selects the last state of every live line, and draws
the colored text with Rich and a Chromium (the command, or the path in FEDQUORUM_CHROMIUM).
"""

import argparse
import os
import pty
import re
import shutil
import subprocess
from pathlib import Path

from playwright.sync_api import sync_playwright
from rich.console import Console
from rich.text import Text

COLUMNS = 100
REDRAWN = re.compile(r".*(?:\r(?!\n)|\x1b\[2K)")
CURSOR = re.compile(r"\x1b\[(?:\?25[hl]|\d*[ABCDGJ])")


def capture_output(command: list[str]) -> str:
    """Return a command's output in a terminal, with only the last state of live lines.

    Raises
    ------
    subprocess.CalledProcessError
        If the command fails.
    """
    terminal, end = pty.openpty()
    env = {**os.environ, "COLUMNS": str(COLUMNS), "TERM": "xterm-256color"}
    process = subprocess.Popen(command, stdout=end, stderr=end, env=env)
    os.close(end)
    chunks: list[bytes] = []
    while True:
        try:
            chunk = os.read(terminal, 65536)
        except OSError:  # the other end is closed
            break
        if not chunk:
            break
        chunks.append(chunk)
    if process.wait():
        raise subprocess.CalledProcessError(process.returncode, command)
    text = CURSOR.sub("", b"".join(chunks).decode()).replace("\r\n", "\n")
    return "\n".join(REDRAWN.sub("", line) for line in text.split("\n")).strip()


def main() -> None:
    """Run the command, and draw its output."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("picture", type=Path)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    output = capture_output(arguments.command).replace(f"{Path.cwd()}/", "")
    with Path(os.devnull).open("w") as null:
        console = Console(record=True, width=COLUMNS, file=null, force_terminal=True)
        console.print(f"$ {' '.join(arguments.command)}", highlight=False, markup=False)
        console.print(Text.from_ansi(output))
    chromium = shutil.which(os.environ.get("FEDQUORUM_CHROMIUM", "chromium"))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1100, "height": 800})
        page.set_content(console.export_svg(title="fedquorum"))
        page.locator("svg").screenshot(path=arguments.picture)
        browser.close()


if __name__ == "__main__":
    main()
