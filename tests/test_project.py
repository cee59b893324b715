"""What the project says of itself, in files that nothing else reads."""

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import fedquorum
import pytest
import yaml
from fedquorum.records.provenance import AUDIT_PACKAGES, REPORT_PACKAGES
from hatchling.builders.wheel import WheelBuilder
from packaging.requirements import Requirement
from packaging.version import Version

import fedquorum_app

ROOT = Path(__file__).parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
LIBRARY = tomllib.loads((ROOT / "strategies" / "pyproject.toml").read_text())["project"]
EXTRAS = ("audit", "report")
TYPED = "Typing :: Typed"
MAX_WORDS = 60
"""The longest entry of the changelog; details are in the documents."""

VERSION_FILES = {"strategies/fedquorum/__init__.py", "pyproject.toml"}


def test_library_and_app_have_one_version() -> None:
    """The library's source and the app's project state it, and the changelog's first heading."""
    version = fedquorum.__version__
    assert PROJECT["version"] == version
    tracked = subprocess.check_output(
        ["git", "-C", str(ROOT), "ls-files", "*.py", "*.cff", "*.sh", "*.toml"]
    )
    stating = {
        name
        for name in tracked.decode().splitlines()
        if re.search(rf"version_*\W+{re.escape(version)}(?!\w)", (ROOT / name).read_text())
    }
    assert stating == VERSION_FILES
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0].startswith(f"[{version.partition('.dev')[0]}] - ")


def test_the_changelog_has_the_form_of_keep_a_changelog() -> None:
    """Newest version first, each with a date or none yet; its kinds of changes in their order."""
    text = (ROOT / "CHANGELOG.md").read_text()
    first, *versions = re.split(r"^## ", text, flags=re.MULTILINE)
    assert first.startswith("# Changelog\n")
    heads = [
        re.match(r"\[(\d+\.\d+\.\d+)\] - (unreleased|\d{4}-\d\d-\d\d)\n", one) for one in versions
    ]
    numbers = [Version(head[1]) for head in heads if head]
    assert len(numbers) == len(versions)
    assert numbers == sorted(set(numbers), reverse=True)
    assert all(head and head[2] != "unreleased" for head in heads[1:])
    kinds = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]
    for one in versions:
        found = re.findall(r"^### (.*)$", one, re.MULTILINE)
        assert found == [kind for kind in kinds if kind in found]
        for entry in re.findall(r"^- (?:.|\n  )*", one, re.MULTILINE):
            assert len(entry.split()) <= MAX_WORDS, entry


def get_ranges(requirements: list[str]) -> dict[str, str]:
    """Return the version range of each requirement by its name."""
    parsed = [Requirement(requirement) for requirement in requirements]
    return {requirement.name: str(requirement.specifier) for requirement in parsed}


def test_the_app_repeats_the_librarys_requirements() -> None:
    """Same ranges, those of the extras too; the app does not require the library."""
    app = get_ranges(PROJECT["dependencies"])
    library = get_ranges(LIBRARY["dependencies"])
    assert library.keys() == {
        *("cryptography", "filelock", "flwr", "numpy", "piqp", "pycryptodome", "scipy")
    }
    extras = {name: get_ranges(LIBRARY["optional-dependencies"][name]) for name in EXTRAS}
    assert extras["report"].pop("fedquorum") == ""
    assert extras["audit"].keys() == set(AUDIT_PACKAGES.values())
    assert (extras["audit"] | extras["report"]).keys() == set(REPORT_PACKAGES.values())
    needed = library | extras["audit"] | extras["report"]
    assert {name: app.get(name) for name in needed} == needed
    assert "fedquorum" not in app
    assert (PROJECT["name"], LIBRARY["name"]) == ("fedquorum-app", "fedquorum")


def test_each_project_has_its_commands() -> None:
    """The app's audit is ``fedquorum audit``; ``server_app`` is a name that users' apps have."""
    assert LIBRARY["scripts"] == {
        f"fedquorum-{name}": f"fedquorum.{name}.cli:main" for name in EXTRAS
    }
    assert PROJECT["scripts"] == {"fedquorum": "fedquorum_app:main"}
    assert callable(fedquorum_app.main)


def test_library_and_app_say_the_same_of_themselves() -> None:
    """Python, authors, addresses and classifiers; one license, for Flower's Hub as a file."""
    for key in ("requires-python", "authors", "urls"):
        assert PROJECT[key] == LIBRARY[key], key
    named = {"License :: OSI Approved :: Apache Software License"}
    assert set(PROJECT["classifiers"]) - named == set(LIBRARY["classifiers"]) - {TYPED}
    assert (PROJECT["license"], LIBRARY["license"]) == ({"file": "LICENSE"}, "Apache-2.0")
    assert (ROOT / "LICENSE").read_text() == (ROOT / "strategies" / "LICENSE").read_text()


@pytest.mark.parametrize(("folder", "project"), [("strategies", LIBRARY), (".", PROJECT)])
def test_a_wheel_is_typed_if_it_says_so(
    folder: str, project: dict[str, Any], tmp_path: Path
) -> None:
    """Each of its packages has the mark ``py.typed``; a module alone, as the app has, cannot."""
    [wheel] = WheelBuilder(str(ROOT / folder)).build(directory=str(tmp_path))
    names = zipfile.ZipFile(wheel).namelist()
    shipped = {name.partition("/")[0] for name in names if ".dist-info/" not in name}
    marked = {name.partition("/")[0] for name in names if name.endswith("/py.typed")}
    assert shipped >= marked == {"fedquorum"}
    assert (TYPED in project["classifiers"]) == (shipped == marked)


def test_every_tool_finds_the_library_in_its_folder() -> None:
    """Editable installs, wheels, bundles, mypy and pytest."""
    tools = PYPROJECT["tool"]
    wheel = tools["hatch"]["build"]["targets"]["wheel"]
    assert "strategies" in wheel["dev-mode-dirs"]
    assert "strategies/fedquorum" in wheel["packages"]
    assert "strategies/fedquorum/**/*.py" in tools["flwr"]["app"]["fab-include"]
    assert "fedquorum_app.py" in wheel["packages"]
    assert "/fedquorum_app.py" in tools["flwr"]["app"]["fab-include"]
    assert "fedquorum_app" in tools["mypy"]["modules"]
    assert "strategies" in tools["mypy"]["mypy_path"].split(":")
    assert "strategies" in tools["pytest"]["ini_options"]["pythonpath"]
    assert not (ROOT / "strategies" / "__init__.py").exists()


def test_the_librarys_readme_is_read_anywhere() -> None:
    """Its links are addresses, and lead to files of the repository."""
    repository = LIBRARY["urls"]["Repository"]
    text = (ROOT / "strategies" / "README.md").read_text()
    for link in re.findall(r"\[[^]]*\]\(([^)]+)\)", text):
        path = link.removeprefix(f"{repository}/blob/main/").partition("#")[0]
        assert path.startswith("https://flower.ai") or (ROOT / path).is_file(), link


def test_no_document_installs_a_name_that_a_stranger_may_own() -> None:
    """Neither name is reserved on the package index: the repository is what can be installed."""
    tracked = subprocess.check_output(
        ["git", "-C", str(ROOT), "ls-files", "*.md", "*.py", "*.sh"], text=True
    )
    by_name = re.compile(r"(?:pip|uv) (?:install|add)\W+fedquorum\b(?! @)")
    for name in set(tracked.split()) - {"CHANGELOG.md"}:
        found = by_name.search((ROOT / name).read_text())
        assert found is None, (name, found)


def test_the_papers_are_cited() -> None:
    """The three methods' papers, where the README links them."""
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["license"] == LIBRARY["license"]
    assert [r["notes"] for r in citation["references"]] == ["FedALIGN", "FedAU", "AAggFF"]
    readme = (ROOT / "README.md").read_text()
    for reference in citation["references"]:
        assert reference["url"] in readme
        assert all(author["given-names"] for author in reference["authors"])


def test_a_commit_and_ci_check_the_same() -> None:
    """Every tool that runs before a commit runs in .ci/run too."""
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    ci = (ROOT / ".ci" / "run").read_text()
    assert [hook["id"] for hook in hooks] == ["ruff-check", "ruff-format", "mypy", "lint-imports"]
    for hook in hooks:
        assert hook["entry"].removesuffix(" --force-exclude") in ci


@pytest.mark.slow
def test_one_resolution_holds_all_extras(tmp_path: Path) -> None:
    """``flwr run .`` installs the app with uv, which resolves the extras together, on all systems.

    Where the package index is out of reach, nothing says whether they fit.
    """
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "strategies", tmp_path / "strategies")
    process = subprocess.run(
        [sys.executable, "-m", "uv", "lock", "--dry-run", "--no-progress"],
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
    )
    if "Failed to fetch" in process.stderr:
        pytest.skip("uv needs the package index")
    assert process.returncode == 0, process.stderr


def test_badge_classifiers_and_ci_name_the_same_pythons() -> None:
    """Those that the whole suite passed on."""
    prefix = "Programming Language :: Python :: "
    tested = [c.removeprefix(prefix) for c in PROJECT["classifiers"] if c.startswith(prefix)]
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    assert workflow["jobs"]["checks"]["strategy"]["matrix"]["python"] == tested
    (badge,) = re.findall(r"badge/python-(.*?)-blue", (ROOT / "README.md").read_text())
    assert badge.split("%20%7C%20") == tested
    assert f"[Python {tested[0]} to {tested[-1]}]" in (ROOT / "README.md").read_text()
    assert PROJECT["requires-python"] == LIBRARY["requires-python"] == f">={tested[0]}"


def test_who_works_here_finds_the_commands_and_the_forms() -> None:
    """What the guides and the public workflow call exists, and every form asks for something."""
    for guide in ("AGENTS.md", "CONTRIBUTING.md"):
        text = (ROOT / guide).read_text()
        for link in re.findall(r"\]\(([^)#:]+)\)", text):
            assert (ROOT / link).exists(), (guide, link)
        assert "bash .ci/run" in text
    folder = ROOT / ".github"
    workflow = yaml.safe_load((folder / "workflows" / "ci.yml").read_text())
    assert "bash .ci/run" in workflow["jobs"]["checks"]["steps"][-1]["run"]
    forms = [path for path in folder.glob("ISSUE_TEMPLATE/*.yml") if path.name != "config.yml"]
    assert len(forms) == len({yaml.safe_load(path.read_text())["name"] for path in forms}) == 2
    for path in forms:
        form = yaml.safe_load(path.read_text())
        assert form.keys() == {"name", "description", "labels", "body"}
        fields = [field for field in form["body"] if field["type"] == "textarea"]
        assert all(field["attributes"]["label"] for field in fields)
        assert any(field.get("validations", {}).get("required") for field in fields)


@pytest.mark.parametrize("page", ["AGENTS.md", "CONTRIBUTING.md", "docs/architecture.md"])
def test_the_files_that_a_guide_names_are_there(page: str) -> None:
    """Modules, folders and other files; below the library or a part of the app, or whole paths."""
    text = re.sub(r"```.*?```", "", (ROOT / page).read_text(), flags=re.DOTALL)
    words = {word for code in re.findall(r"`([^`\n]+)`", text) for word in code.split()}
    paths = {word for word in words if re.fullmatch(r"[\w./-]+(\.(py|yaml|md|toml)|/)", word)}
    roots = [ROOT, *(ROOT / name for name in ("strategies/fedquorum", "client_app", "server_app"))]
    rules = ROOT / "strategies/fedquorum/rules"
    roots += [rules, rules / "weighting"]  # for base.py, of which each kind has one
    assert not [path for path in paths if not any((root / path).exists() for root in roots)]


def test_the_functions_on_the_way_of_a_round_are_there() -> None:
    """Each function and class that the page of how it works names is defined."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    named = {name.rpartition(".")[2] for name in re.findall(r"`([A-Z]\w+\.\w+|\w+_round)`", text)}
    folders = ("strategies/fedquorum", "client_app", "server_app")
    sources = [path.read_text() for folder in folders for path in (ROOT / folder).rglob("*.py")]
    assert len(named) > 5
    assert not [name for name in named if not any(f"def {name}(" in text for text in sources)]
