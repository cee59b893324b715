"""Which code this is: the app's own folder, its commit, and the packages it stands on."""

from pathlib import Path

import fedquorum
from fedquorum.records import provenance

PACKAGES = ("flwr", "torch", "numpy", "hydra-core", "ray", "torchvision", "flwr-datasets")
CODE = ("strategies", "client_app", "server_app", "conf", "hydra_plugins", "pyproject.toml")
SOURCE = Path(__file__).resolve().parents[1]


def versions() -> dict[str, str | None]:
    """Return the versions of what shapes a result, None where a package is not installed.

    The library's is its own word: the app carries it along, installed or not.
    """
    return {"fedquorum": fedquorum.__version__, **provenance.versions(PACKAGES)}


def commit() -> str | None:
    """Return the commit of the app's code, with "-dirty" if code was changed; None outside git.

    A bundle installed by Flower is no checkout; its folder, which carries the bundle's hash, is
    the manifest's ``source``.
    """
    return provenance.commit(SOURCE, CODE)
