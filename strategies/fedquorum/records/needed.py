"""Check the packages that the records need: the extra ``audit``."""

from importlib.util import find_spec

from ..errors import RunError

AUDIT_PACKAGES = {"pyarrow": "pyarrow", "safetensors": "safetensors", "yaml": "pyyaml"}
"""The modules that the extra brings, and the packages that provide them."""


def check_audit_packages() -> None:
    """Raise an error if the packages for writing and reading records are missing.

    Raises
    ------
    RunError
        If a package is missing; the message says what to install.
    """
    missing = [package for module, package in AUDIT_PACKAGES.items() if find_spec(module) is None]
    if missing:
        raise RunError(
            f"run records need {', '.join(missing)}, which the extra audit brings: "
            f"pip install {' '.join(missing)}"
        )
