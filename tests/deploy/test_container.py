"""The container image: one index, every package with its hash, and an app that is complete."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.builders_kubernetes import ROOT, read_containerfile

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
BUILD = [
    line
    for line in (ROOT / "deploy" / "build.in").read_text().splitlines()
    if not line.startswith("#")
]
LOCKS = {
    "build.lock": [*BUILD, *PROJECT["build-system"]["requires"]],
    "requirements.lock": [
        *PROJECT["project"]["dependencies"],
        *PROJECT["project"]["optional-dependencies"]["privacy"],
    ],
}
"""The lock files, and what each must have."""

SWEEP = """
import sys
app = sys.argv.pop(1)
repository = sys.argv.pop(1)
sys.path = [path for path in sys.path if not path.startswith(repository)]
sys.path[:0] = [app, f"{app}/strategies"]
from server_app.cli.fedquorum import main
main()
"""


def pip_commands() -> list[list[str]]:
    """Return the words of every call of pip in the Containerfile."""
    text = (ROOT / "deploy" / "Containerfile").read_text().replace("\\\n", " ")
    lines = [line.removeprefix("RUN ") for line in text.splitlines() if line.startswith("RUN ")]
    commands = [shlex.split(command) for line in lines for command in line.split("&&")]
    return [command for command in commands if command[0] == "pip"]


def test_everything_comes_from_one_index_or_from_none() -> None:
    """And is compared with a hash; what the repository has needs neither."""
    commands = pip_commands()
    assert len(commands) == 3
    assert not [word for command in commands for word in command if "extra-index" in word]
    indexes = {command[command.index("--index-url") + 1] for command in commands[:2]}
    assert indexes == {"https://pypi.org/simple"}
    for command, lock in zip(commands[:2], LOCKS, strict=True):
        assert "--require-hashes" in command
        assert command[-2:] == ["-r", f"deploy/{lock}"]
        assert (
            str(Path(read_containerfile().workdir, "deploy", lock)) in read_containerfile().copied
        )
    # Without isolation, a package that is built asks no index for what builds it.
    assert all("--no-build-isolation" in command for command in commands[1:])
    assert {"--no-index", "--no-deps"} <= set(commands[2])


def read_locked_versions(name: str) -> dict[str, str]:
    """Return the versions in a lock file, in which each has at least one hash."""
    text = (ROOT / "deploy" / name).read_text()
    versions: dict[str, str] = {}
    for entry in re.split(r"\n(?=\S)", text):
        line, *rest = [line.strip() for line in entry.splitlines()]
        if line.startswith("#"):
            continue
        found = re.fullmatch(r"([A-Za-z0-9._-]+)==(\S+)( ; .*)? \\", line)
        assert found, line
        assert re.match(r"--hash=sha256:[0-9a-f]{64}", rest[0]), line
        versions[canonicalize_name(found[1])] = found[2]
    return versions


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_has_what_the_project_needs(name: str) -> None:
    """After a change in pyproject.toml the locks are made again: docs/deployment.md says how."""
    versions = read_locked_versions(name)
    for requirement in map(Requirement, LOCKS[name]):
        assert versions[canonicalize_name(requirement.name)] in requirement.specifier, requirement


def test_the_guide_says_how_locks_are_made() -> None:
    """By the commands at their tops."""
    guide = (ROOT / "docs" / "deployment.md").read_text()
    for name in LOCKS:
        top = (ROOT / "deploy" / name).read_text().splitlines()[1]
        assert f"\n{top.removeprefix('#').strip()}\n" in guide


@pytest.mark.slow
def test_a_sweep_runs_with_what_the_image_has(tmp_path: Path) -> None:
    """``-m`` needs the plugins of Hydra, which nothing imports."""
    made = read_containerfile()
    for inside, source in made.copied.items():
        if Path(inside).is_relative_to(made.workdir):
            target = tmp_path / "app" / Path(inside).relative_to(made.workdir)
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, target)
    words = "-m experiment=custom strategy=fedavg,fedau rounds=1 data=synth data.num_clients=2"
    words += " data.num_priority=1 client.local_epochs=1"
    places = [str(tmp_path / "app"), str(ROOT)]
    done = subprocess.run(
        [sys.executable, "-c", SWEEP, *places, *words.split()],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}/app{os.pathsep}{tmp_path}/app/strategies"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 of 2 jobs completed" in done.stdout
