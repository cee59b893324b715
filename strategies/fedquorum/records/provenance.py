"""Record the origin of a run: the commit of a checkout, the versions of packages, the time."""

import subprocess
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from .. import __version__

GIT_TIMEOUT_SECONDS = 10.0


def get_utc_time() -> str:
    """Return the current time in UTC, in ISO 8601, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def get_versions(packages: Iterable[str]) -> dict[str, str | None]:
    """Return the versions of this library and of distributions, None for one not installed.

    The library states its version itself, because an app may bundle it without installing it.
    """
    found: dict[str, str | None] = {"fedquorum": __version__}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found


def find_commit(source: Path, code: Sequence[str] = (".",)) -> str | None:
    """Return the git commit of a checkout, with "-dirty" if code was changed; None outside git.

    Parameters
    ----------
    source : Path
        The root of the checkout.
    code : sequence of str
        The files and folders in it that affect a result.
    """
    if not (source / ".git").exists():
        return None
    git = partial(
        subprocess.run,
        cwd=source,
        capture_output=True,
        text=True,
        check=True,
        timeout=GIT_TIMEOUT_SECONDS,
    )
    try:
        found = git(["git", "rev-parse", "HEAD"]).stdout.strip()
        changed = git(["git", "status", "--porcelain", "--", *code]).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{found}-dirty" if changed else found
