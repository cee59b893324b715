"""What produced a run: sources, commit, versions, when."""

import subprocess
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = (
    "fedquorum",
    "flwr",
    "torch",
    "numpy",
    "hydra-core",
    "ray",
    "torchvision",
    "flwr-datasets",
)
CODE = ("strategies", "client_app", "server_app", "conf", "hydra_plugins", "pyproject.toml")
GIT_SECONDS = 10.0
SOURCE = Path(__file__).resolve().parents[2]


def now() -> str:
    """Return the time in UTC, ISO 8601, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def versions() -> dict[str, str | None]:
    """Return the versions of the packages that shape a result, None where one is not installed."""
    found: dict[str, str | None] = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found


def commit() -> str | None:
    """Return the source's git commit, with "-dirty" if code was changed; None outside git.

    A bundle installed by Flower is no checkout; its folder, which carries the bundle's hash, is
    the manifest's ``source``.
    """
    if not (SOURCE / ".git").exists():
        return None
    git = partial(
        subprocess.run,
        cwd=SOURCE,
        capture_output=True,
        text=True,
        check=True,
        timeout=GIT_SECONDS,
    )
    try:
        found = git(["git", "rev-parse", "HEAD"]).stdout.strip()
        changed = git(["git", "status", "--porcelain", "--", *CODE]).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{found}-dirty" if changed else found
