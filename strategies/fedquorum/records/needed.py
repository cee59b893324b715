"""What the records need beside the library: the packages of the extra ``audit``."""

from importlib.util import find_spec

from ..errors import RunError

MODULES = ("pyarrow", "safetensors", "yaml")


def check_installed() -> None:
    """Refuse to go on where records can be neither written nor read.

    Raises
    ------
    RunError
        With what to install.
    """
    missing = [name for name in MODULES if find_spec(name) is None]
    if missing:
        raise RunError(
            f'run records need {", ".join(missing)}: pip install "fedquorum[audit]", from a '
            'checkout pip install "./strategies[audit]"'
        )
