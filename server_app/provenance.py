"""Identify the code of a run: the app's folder, its commit, and the packages it needs."""

import hashlib
import platform
from collections.abc import Mapping
from pathlib import Path

import fedquorum
from fedquorum.errors import RunError
from fedquorum.records.provenance import get_versions

PACKAGES = ("flwr", "torch", "numpy", "hydra-core", "ray", "torchvision", "flwr-datasets")
CODE_PATHS = ("strategies", "client_app", "server_app", "conf", "hydra_plugins", "pyproject.toml")
APP_PACKAGES = ("client_app", "server_app", "conf")
SOURCE_ROOT = Path(__file__).resolve().parents[1]
"""A checkout, or the folder of a bundle that Flower installed; its name holds the bundle's hash."""


def collect_code_facts() -> dict[str, str | None]:
    """Return the facts that all processes of a run must share: Python, packages and the source."""
    return {
        "python": platform.python_version(),
        **get_versions(PACKAGES),
        "source": compute_source_digest(),
    }


def check_same_code(expected: Mapping[str, str | None]) -> None:
    """Compare the code of this process with the code of another one.

    Parameters
    ----------
    expected : mapping
        The result of ``collect_code_facts`` in the other process.

    Raises
    ------
    RunError
        If a fact differs; the message names the first one.
    """
    for name, found in collect_code_facts().items():
        if found != expected.get(name):
            raise RunError(
                f"all workers must have the code of the run's process: {name} is {found} on "
                f"{platform.node()}, and {expected.get(name)} there (docs/clusters.md)"
            )


def compute_source_digest() -> str:
    """Return the SHA-256 of all Python and YAML files of the library and the app, 12 digits."""
    library = Path(fedquorum.__file__).parent
    digest = hashlib.sha256()
    for folder in (library, *(SOURCE_ROOT / name for name in APP_PACKAGES)):
        for path in sorted(folder.rglob("*")):
            if path.suffix in (".py", ".yaml"):
                digest.update(path.relative_to(folder.parent).as_posix().encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
