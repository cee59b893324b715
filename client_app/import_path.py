"""Import the app's packages and its library from the folder that contains this file.

A checkout and an unpacked Flower bundle hold the app and the library together. A node may have
more on its path: an older ``fedquorum``, or a ``conf`` package of another project. Two copies of
the library in one process make two classes of one name, so a foreign copy is refused.
"""

import re
import sys
from importlib.util import find_spec
from pathlib import Path

APP_ROOT = Path(__file__).absolute().parent.parent
LIBRARY_ROOT = APP_ROOT / "strategies"
PACKAGE_ROOTS = {"fedquorum": LIBRARY_ROOT, "conf": APP_ROOT}


def use_bundled_packages() -> None:
    """Put this folder and its library first on ``sys.path``, and refuse copies from elsewhere.

    A wheel installs the library beside the app, and nothing needs to be done.

    Raises
    ------
    ImportError
        If Python would still import ``fedquorum`` or ``conf`` from elsewhere, usually because that
        copy is already imported.
    """
    if not (LIBRARY_ROOT / "fedquorum").is_dir():
        return
    # Existing entries stay: Flower loads both apps of a simulation in two threads, and each removes
    # the entry that it added.
    sys.path[:0] = [str(APP_ROOT), str(LIBRARY_ROOT)]
    for package, folder in PACKAGE_ROOTS.items():
        found, expected = _find_location(package), folder / package
        if found is None or found.resolve() != expected.resolve():
            raise ImportError(
                f"{_describe_package(package, expected)} must be imported from {expected}, "
                f"got {_describe_package(package, found)} from {found}: import the app before the "
                "other copy, or run it in a separate process"
            )


def _find_location(package: str) -> Path | None:
    """Return the folder, or the file, that a package is or would be imported from."""
    spec = find_spec(package)
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations)))
    return Path(spec.origin) if spec.origin else None


def _describe_package(package: str, location: Path | None) -> str:
    """Return a package's name, with its version where its source states one."""
    source = location / "__init__.py" if location and location.is_dir() else location
    text = source.read_text(errors="replace") if source and source.is_file() else ""
    version = re.search(r"""^__version__ = ["']([^"']*)["']""", text, re.MULTILINE)
    return f"{package} {version[1]}" if version else package
