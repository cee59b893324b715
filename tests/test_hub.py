"""What Flower's Hub asks of an app, by the functions of ``flwr app publish`` and ``flwr build``."""

import re
import subprocess
import tomllib
import zipfile
from io import BytesIO
from pathlib import Path

import pytest
from flwr.cli.app_cmd.publish import (
    _get_declared_license_file,
    _validate_app_name,
    _validate_description,
    _validate_files,
)
from flwr.cli.build import build_fab_from_files
from flwr.cli.utils import filter_paths_for_publish
from flwr.supercore.constant import APP_ID_PATTERN, APP_VERSION_PATTERN

# Flower's patterns of files, with a newer pathspec.
pytestmark = pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")

ROOT = Path(__file__).parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT, APP = PYPROJECT["project"], PYPROJECT["tool"]["flwr"]["app"]
IN_A_BUNDLE = ("client_app/", "conf/", "server_app/", "strategies/fedquorum/")
NOT_READ = ("strategies/fedquorum/py.typed", "strategies/fedquorum/report/templates/")
"""What type checkers read, and what ``templates_generated.py`` is made of."""


@pytest.fixture(scope="module")
def sources() -> dict[str, Path]:
    """Return the files that ``git archive`` of docs/releasing.md takes from a clean checkout."""
    words = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    words += ["--", ".", ":!tests", ":!benchmarks"]
    assert "':!tests' ':!benchmarks'" in (ROOT / "docs" / "releasing.md").read_text()
    names = subprocess.check_output(words, text=True).split("\0")
    return {name: ROOT / name for name in names if (ROOT / name).is_file()}


@pytest.fixture(scope="module")
def published_files(sources: dict[str, Path]) -> dict[str, Path]:
    """Return the files that ``flwr app publish`` uploads, which does not read ``fab-include``."""
    return {name: Path(str(path)) for name, path in filter_paths_for_publish(sources).items()}


def test_the_hub_takes_the_files(published_files: dict[str, Path]) -> None:
    """Their number, their sizes, all of them together, and their encoding."""
    _validate_files(list(published_files.values()))


def test_the_hub_takes_what_the_project_says() -> None:
    """Name, description, license as a file; a release's version."""
    _validate_app_name(PROJECT["name"], "name")
    _validate_description(PROJECT["description"])
    assert len(PROJECT["description"]) <= 200
    assert _get_declared_license_file(ROOT) == ROOT / "LICENSE"
    assert re.match(APP_ID_PATTERN, f"@{APP['publisher']}/{PROJECT['name']}")
    assert re.match(APP_VERSION_PATTERN, PROJECT["version"].partition(".dev")[0])


def test_a_bundle_of_what_is_published_has_all_files(
    sources: dict[str, Path], published_files: dict[str, Path]
) -> None:
    """No file that the app reads is of a type that the Hub leaves out."""
    bundle, metadata = build_fab_from_files(published_files)
    assert metadata.fab_format_version == 1
    assert metadata.flwr_version_target == APP["flwr-version-target"]
    names = set(zipfile.ZipFile(BytesIO(bundle)).namelist())
    needed = {name for name in sources if name.startswith(IN_A_BUNDLE)}
    assert {name for name in needed if not name.startswith(NOT_READ)} <= names
    assert {"README.md", "LICENSE"} <= names
