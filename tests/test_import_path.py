"""Tests that the app imports its own packages, even if the path has others of their names."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import fedquorum
import pytest

ROOT = Path(__file__).resolve().parent.parent
LOADED = """
import conf, fedquorum, fedquorum.errors, conf.compose
print(conf.__file__, fedquorum.__file__, sep="\\n")
"""


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """Return a folder with an older library, and with packages and modules of the app's names."""
    folder = tmp_path / "foreign"
    for package in ("fedquorum", "conf", "strategies"):
        (folder / package).mkdir(parents=True)
        (folder / package / "__init__.py").write_text("")
    (folder / "fedquorum" / "__init__.py").write_text('__version__ = "0.0.1"\n')
    return folder


def run_python(code: str, cwd: Path, *path: Path, status: int = 0) -> str:
    """Run code with these folders first on Python's path; return what it prints, or its error."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stderr
    return done.stderr if status else done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("app", ["client_app", "server_app"])
def test_the_app_imports_its_own_packages(app: str, foreign: Path, tmp_path: Path) -> None:
    """Foreign packages come first on the path, and are ignored."""
    for module in ("client_app", "server_app"):
        if module != app:  # the app that Python is asked for must be found at all
            (foreign / f"{module}.py").write_text("")
    printed = run_python(f"import {app}" + LOADED, tmp_path, foreign, ROOT)
    assert printed.splitlines() == [
        str(ROOT / "conf" / "__init__.py"),
        str(ROOT / "strategies" / "fedquorum" / "__init__.py"),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("app", ["client_app", "server_app"])
def test_flower_loads_the_apps_own_packages(app: str, foreign: Path, tmp_path: Path) -> None:
    """Flower checks and loads an unpacked bundle with its own functions."""
    load = f"""
from flwr.supercore.object_ref import load_app, validate
assert validate("{app}.app:app", True, {str(ROOT)!r}) == (True, None)
load_app("{app}.app:app", ValueError, {str(ROOT)!r})
"""
    printed = run_python(load + LOADED, tmp_path, foreign)
    assert set(printed.splitlines()[-2:]) == {
        str(ROOT / "conf" / "__init__.py"),
        str(ROOT / "strategies" / "fedquorum" / "__init__.py"),
    }


@pytest.mark.parametrize("app", ["client_app", "server_app"])
@pytest.mark.parametrize("package", ["fedquorum", "conf"])
def test_a_foreign_copy_is_refused(app: str, package: str, foreign: Path, tmp_path: Path) -> None:
    """If it is already imported, the error names both versions and both folders."""
    message = run_python(f"import {package}, {app}", tmp_path, foreign, ROOT, status=1)
    ours, theirs = {
        "fedquorum": (f"fedquorum {fedquorum.__version__}", "fedquorum 0.0.1"),
        "conf": ("conf", "conf"),
    }[package]
    folder = ROOT / "strategies" if package == "fedquorum" else ROOT
    expected = (
        f"ImportError: {ours} must be imported from {folder / package}, "
        f"got {theirs} from {foreign / package}: "
    )
    assert expected in message


def test_a_link_to_the_app_is_the_app(tmp_path: Path) -> None:
    """The library imported by its path is accepted by an app imported through a link."""
    (tmp_path / "link").symlink_to(ROOT)
    code = "import fedquorum, client_app, server_app"
    run_python(code, tmp_path, ROOT / "strategies", tmp_path / "link")


@pytest.mark.parametrize("app", ["client_app", "server_app"])
def test_an_installed_app_leaves_the_path_unchanged(app: str, tmp_path: Path) -> None:
    """In a wheel, the library is beside the app."""
    for package in ("client_app", "server_app"):
        (tmp_path / package).mkdir()
        shutil.copy(ROOT / package / "__init__.py", tmp_path / package)
    shutil.copy(ROOT / "client_app" / "import_path.py", tmp_path / "client_app")
    code = f"import sys; before = [*sys.path]; import {app}; assert sys.path == before"
    run_python(code, tmp_path, tmp_path)


def test_importing_the_folder_of_the_library_is_a_lint_error(tmp_path: Path) -> None:
    """``strategies`` is a folder; the package is ``fedquorum``."""
    snippet = tmp_path / "snippet.py"
    for line in (
        "import strategies",
        "from strategies import FedAU",
        "from strategies.fedquorum import FedAU",
        "import strategies.fedquorum.errors",
        "from fedquorum import FedAU",
    ):
        snippet.write_text(line + "\n")
        arguments = ["check", "--no-cache", "--config", str(ROOT / "pyproject.toml"), str(snippet)]
        command = [sys.executable, "-m", "ruff", *arguments, "--select", "TID251"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        banned = re.search(r"TID251 .*The library's package is fedquorum", done.stdout)
        assert (banned is not None) == ("strategies" in line), (line, done.stdout, done.stderr)
