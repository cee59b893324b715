"""What the project says of itself, in files that nothing else reads."""

import re
import subprocess
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_version_is_in_one_place() -> None:
    """Besides pyproject.toml only the changelog's headings have it; there the newest is it."""
    version = PROJECT["version"]
    tracked = subprocess.check_output(["git", "-C", str(ROOT), "ls-files", "*.py", "*.cff", "*.sh"])
    for name in tracked.decode().splitlines():
        for line in (ROOT / name).read_text().splitlines():
            assert not re.search(rf"version\W+{re.escape(version)}\b", line), (name, line)
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == version


def test_the_papers_are_cited() -> None:
    """The three methods' papers, where the README links them."""
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["license"] == PROJECT["license"]
    assert [r["notes"] for r in citation["references"]] == ["FedALIGN", "FedAU", "AAggFF"]
    readme = (ROOT / "README.md").read_text()
    for reference in citation["references"]:
        assert reference["url"] in readme
        assert all(author["given-names"] for author in reference["authors"])


def test_a_commit_and_ci_check_the_same() -> None:
    """Every tool that runs before a commit runs in .ci/run too."""
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    ci = (ROOT / ".ci" / "run").read_text()
    assert [hook["id"] for hook in hooks] == ["ruff-check", "ruff-format", "mypy"]
    for hook in hooks:
        assert hook["entry"].removesuffix(" --force-exclude") in ci
