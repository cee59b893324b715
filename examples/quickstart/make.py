"""Make one of Flower's stock quickstarts, and replace FedAvg() with FedAU().

``python make.py numpy`` makes ``quickstart-numpy`` in the working directory. ``flwr new`` of the
Flower release in ``flower.txt`` writes it; then ``numpy.diff`` is applied. Needs pip and git.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
FORMS = ("numpy", "sklearn", "pytorch")


def make_stock_app(form: str, folder: Path) -> Path:
    """Make Flower's unchanged quickstart in a folder, and return its directory."""
    name = f"quickstart-{form}"
    with tempfile.TemporaryDirectory() as flower:
        pinned = ["--no-deps", "--require-hashes", "--requirement", str(HERE / "flower.txt")]
        _run_module("pip", "install", "--quiet", *pinned, "--target", flower)
        # It uses the requirements of the installed Flower.
        new = ["new", name, "--framework", form, "--username", "you"]
        _run_module("flwr.cli.app", *new, cwd=folder, PYTHONPATH=flower, FLWR_HOME=flower)
    return folder / name


def apply(diff: str, app: Path) -> None:
    """Apply one of this folder's diffs to an app."""
    command = ["git", "apply", "--unidiff-zero", str(HERE / f"{diff}.diff")]
    # Without the ceiling, git would use a repository that contains the app.
    _run(command, cwd=app, GIT_CEILING_DIRECTORIES=str(app.resolve().parent))


def _run_module(*arguments: str, cwd: Path | None = None, **variables: str) -> None:
    _run([sys.executable, "-m", *arguments], cwd=cwd, **variables)


def _run(command: list[str], cwd: Path | None = None, **variables: str) -> None:
    env = {**os.environ, **variables}
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")


def main() -> None:
    """Make the app that the command line selects."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("form", choices=FORMS)
    parser.add_argument("--stock", action="store_true", help="leave FedAvg() in it")
    parser.add_argument(
        "--local-data",
        action="store_true",
        help="read the data from the folder that FEDQUORUM_DATA names, not from Hugging Face",
    )
    given = parser.parse_args()
    app = make_stock_app(given.form, Path.cwd())
    if not given.stock:
        apply(given.form, app)
    if given.local_data and given.form != "numpy":  # the numpy app has no data
        apply(f"{given.form}-data", app)
    print(f"{app.name} is made. Next: cd {app.name} && flwr run . --stream")


if __name__ == "__main__":
    main()
