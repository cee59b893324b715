"""Record the origin of a run: the commit of a checkout, the versions of packages, the time."""

import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .. import __version__
from ..errors import RunError

GIT_TIMEOUT_SECONDS = 10.0
"""A run starts without its commit rather than wait for a checkout on a slow network disk."""


def get_utc_time() -> str:
    """Return the current time in UTC, in ISO 8601, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def get_versions(packages: Iterable[str]) -> dict[str, str | None]:
    """Return the versions of this library and of distributions, None for one not installed.

    The library states its version itself, because an app may bundle it without installing it.
    """
    return {"fedquorum": __version__, **{package: _get_version(package) for package in packages}}


@cache  # each one is a search of all folders that Python imports from
def _get_version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


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


@dataclass(frozen=True)
class RunInfo:
    """The identity of a run, and of its code.

    Parameters
    ----------
    experiment : str
        The name of the preset.
    overrides : tuple of str
        The overrides of the experiment's settings, each as ``key=value``.
    strategy : str
        The name of the strategy.
    seed : int
    engine : str
        The carrier of the messages: ``in-process``, ``ray`` or ``flower``.
    device : str
        Where the clients train, as configured.
    rounds : int
        The planned number of rounds.
    source : str
        The folder of the code.
    commit : str or None
        The code's git commit; None outside git.
    packages : mapping
        The versions of the packages that affect a result, None for one that is not installed.
    arithmetic : mapping
        The facts beside the settings that affect the last bits, as JSON; empty if not given.
    data : mapping
        How the data was interpreted, as JSON; empty if not given.
    """

    experiment: str
    overrides: tuple[str, ...]
    strategy: str
    seed: int
    engine: str
    device: str
    rounds: int
    source: str
    commit: str | None
    packages: Mapping[str, str | None]
    arithmetic: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)


AUDIT_PACKAGES = {"pyarrow": "pyarrow", "safetensors": "safetensors", "yaml": "pyyaml"}
REPORT_PACKAGES = AUDIT_PACKAGES | {
    "jinja2": "jinja2",
    "matplotlib": "matplotlib",
    "pandas": "pandas",
    "PIL": "pillow",
    "plotly": "plotly",
    "rich": "rich",
}
"""The modules that an extra brings, and the packages that provide them."""


def check_audit_packages() -> None:
    """Raise an error if the packages for writing and reading records are missing.

    Raises
    ------
    RunError
        If a package is missing; the message says what to install.
    """
    _check_packages("run records need", "audit", AUDIT_PACKAGES)


def check_report_packages() -> None:
    """Raise an error if the packages for drawing records are missing.

    Raises
    ------
    RunError
        If a package is missing; the message says what to install.
    """
    _check_packages("a report needs", "report", REPORT_PACKAGES)


def _check_packages(need: str, extra: str, packages: Mapping[str, str]) -> None:
    missing = [package for module, package in packages.items() if find_spec(module) is None]
    if missing:
        raise RunError(
            f"{need} {', '.join(missing)}, which the extra {extra} brings: "
            f"pip install {' '.join(missing)}"
        )
