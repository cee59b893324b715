"""The library alone: its wheel, and another project's app in an environment without ours."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.integration.conftest import BIN, ROOT
from tests.reference.fedau import compute_omegas

LIBRARY = ROOT / "strategies"
TEMPLATES = LIBRARY / "fedquorum" / "report" / "templates"
REQUIRED = ("cryptography", "filelock", "flwr", "numpy", "piqp", "scipy")
ABSENT = ("torch", "hydra", "omegaconf", "pyarrow", "safetensors", "pandas", "ray")
SOURCES = {path.relative_to(LIBRARY).as_posix() for path in (LIBRARY / "fedquorum").rglob("*.py")}
SOURCES.add("fedquorum/report/published.yaml")
MOST_BYTES_OF_A_BUNDLE = 10 * 2**20
ROUNDS, CLIENTS = 12, 4
# A ClientApp and a ServerApp written for Flower's FedAvg; every update adds 1 to every number.
FOREIGN_APP = {
    "conf/__init__.py": f"ROUNDS, CLIENTS = {ROUNDS}, {CLIENTS}\n",
    "strategies/__init__.py": """
from fedquorum import FedAU

def make():
    return FedAU()
""",
    "client_app.py": """
from fedquorum.client.availability import Bernoulli
from fedquorum.flower.mods import AvailabilityMod, NodeAvailability
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

trained = []

def availability(context):
    client = context.node_config["partition-id"]
    return NodeAvailability(seed=1, hosted=[client], process=lambda client: Bernoulli(0.5))

app = ClientApp(mods=[AvailabilityMod(availability)])

@app.train()
def train(message, context):
    server_round = message.content["config"]["server-round"]
    trained.append([server_round, context.node_config["partition-id"]])
    arrays = message.content["arrays"]
    moved = {name: Array(array.numpy() + 1.0) for name, array in arrays.items()}
    metrics = MetricRecord({"num-examples": 10, "train_loss": 1.0})
    content = RecordDict({"arrays": ArrayRecord(moved), "metrics": metrics})
    return Message(content, reply_to=message)

@app.evaluate()
def evaluate(message, context):
    metrics = MetricRecord({"num-examples": 10, "eval_loss": 1.0})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
""",
    "server_app.py": """
import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.serverapp import ServerApp

import conf
import strategies

app = ServerApp()
results = []

@app.main()
def main(grid, context):
    start = ArrayRecord({"w": Array(np.zeros(3))})
    results.append(strategies.make().start(grid, start, num_rounds=conf.ROUNDS))
""",
    "run.py": """
import json

from flwr.app import Context, RecordDict

import client_app
import conf
import fedquorum
import server_app
import strategies
from grid import InProcessGrid

grid = InProcessGrid(client_app.app, {}, conf.CLIENTS)
server_app.app(grid, Context(0, 0, {}, RecordDict(), {}))
[result] = server_app.results
modules = [client_app, server_app, strategies, conf, fedquorum]
print(json.dumps({
    "files": [module.__file__ for module in modules],
    "version": fedquorum.__version__,
    "trained": client_app.trained,
    "evaluated": sorted(result.evaluate_metrics_clientapp),
    "model": result.arrays["w"].numpy().tolist(),
}))
""",
}


def build_wheel(source: Path, folder: Path) -> Path:
    """Build a wheel as ``pip wheel`` does, without a download where the build tool is installed."""
    words = ["wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(source)]
    isolated = [] if find_spec("hatchling") is None else ["--no-build-isolation"]
    command = [sys.executable, "-m", "pip", *words, *isolated]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (built,) = folder.glob("*.whl")
    return built


def build_all(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the command that builds what is published."""
    return subprocess.run(
        ["bash", str(ROOT / ".ci" / "build"), str(folder)],
        env={**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder with what is published; the command has checked it."""
    folder = tmp_path_factory.mktemp("built")
    done = build_all(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("PASSED") == 2  # of twine check
    assert f"{next(folder.glob('*.whl'))}: OK" in done.stdout  # of check-wheel-contents
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    """Return the library's wheel."""
    return next(built.glob("*.whl"))


@pytest.fixture(scope="module")
def app_wheel(clone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the app's wheel from a checkout."""
    return build_wheel(clone, tmp_path_factory.mktemp("app"))


def in_library(names: Iterable[str]) -> set[str]:
    """Return those names of an archive that are of the package ``fedquorum``."""
    return {name for name in names if name.startswith("fedquorum/")}


def find_requirements(names: tuple[str, ...]) -> Iterator[Distribution]:
    """Yield these distributions of this environment, and all that they require."""
    found: dict[str, Distribution] = {}
    waiting = [*names]
    while waiting:
        name = canonicalize_name(waiting.pop())
        if name in found:
            continue
        found[name] = distribution(name)
        requirements = map(Requirement, found[name].requires or [])
        waiting += [
            r.name for r in requirements if not r.marker or r.marker.evaluate({"extra": ""})
        ]
    yield from found.values()


@pytest.fixture(scope="module")
def bare_python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a Python that has the library's wheel and its requirements, and nothing else."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    for installed in find_requirements(REQUIRED):
        for name in {file.parts[0] for file in installed.files or []} - {"..", "__pycache__"}:
            link = packages / name
            if not link.exists():
                link.symlink_to(Path(str(installed.locate_file(name))))
    shutil.unpack_archive(wheel, packages, "zip")
    return folder / "bin" / "python"


@pytest.mark.slow
def test_the_wheel_has_the_package_and_nothing_else(wheel: Path) -> None:
    """Every module, the published results, the mark that it is typed, the license; no template."""
    names = zipfile.ZipFile(wheel).namelist()
    assert in_library(names) == SOURCES | {"fedquorum/py.typed"}
    others = set(names) - in_library(names)
    assert all(".dist-info/" in name for name in others)
    assert [name for name in others if name.endswith("/licenses/LICENSE")]


@pytest.mark.slow
def test_the_source_archive_has_what_a_wheel_is_built_from(built: Path) -> None:
    """And the templates, from which a module is generated."""
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    templates = {path.relative_to(LIBRARY).as_posix() for path in TEMPLATES.iterdir()}
    assert len(templates) > 5
    assert SOURCES | templates <= names


@pytest.mark.slow
@pytest.mark.parametrize(("command", "extra"), [("audit", "audit"), ("report", "report")])
def test_a_command_without_its_extra_is_one_line(
    bare_python: Path, tmp_path: Path, command: str, extra: str
) -> None:
    """It names the extra, and the packages that are missing."""
    code = f"import sys; from fedquorum.{command}.cli import main; sys.exit(main(['.']))"
    done = subprocess.run(
        [str(bare_python), "-I", "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    (line,) = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (1, "")
    assert line.startswith(f"fedquorum-{command}: ")
    assert f"which the extra {extra} brings: pip install pyarrow safetensors" in line


@pytest.mark.slow
def test_the_apps_wheel_has_the_same_package(app_wheel: Path, wheel: Path) -> None:
    """At the same place: the app does not require the library's distribution."""
    archives = [zipfile.ZipFile(path) for path in (app_wheel, wheel)]
    app, library = ({n: z.read(n) for n in in_library(z.namelist())} for z in archives)
    assert app == library
    folders = {name.partition("/")[0] for name in archives[0].namelist()}
    assert {"client_app", "conf", "fedquorum", "fedquorum_app.py", "server_app"} <= folders
    assert not folders & {"strategies", "tests", "benchmarks"}


@pytest.mark.slow
def test_only_an_empty_folder_is_built_into(built: Path) -> None:
    """What an earlier version left would be published with it."""
    done = build_all(built)
    assert done.returncode == 2
    assert done.stderr == f"the folder to build into must be empty, got {built}\n"


@pytest.mark.slow
def test_the_bundle_has_the_library(built: Path) -> None:
    """All its modules, in its folder, in a bundle that Flower accepts."""
    (bundle,) = built.glob("*.fab")
    assert bundle.stat().st_size < MOST_BYTES_OF_A_BUNDLE
    names = zipfile.ZipFile(bundle).namelist()
    assert {name for name in names if name.startswith("strategies/")} == {
        f"strategies/{name}" for name in SOURCES
    }
    assert [name for name in names if name.endswith(".toml")] == ["pyproject.toml"]


@pytest.mark.slow
@pytest.mark.parametrize("package", ABSENT)
def test_the_bare_environment_is_bare(bare_python: Path, package: str) -> None:
    """So that the next test shows what it says."""
    command = [str(bare_python), "-I", "-c", f"import {package}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert f"No module named '{package}'" in done.stderr


@pytest.mark.slow
def test_a_foreign_app_runs_in_a_bare_environment(bare_python: Path, tmp_path: Path) -> None:
    """Its modules are named as ours, its ClientApp is written for FedAvg, and FedAU is right.

    Each update adds 1, so FedAU's model is the sum of omega_n / N over all updates.
    """
    for name, text in FOREIGN_APP.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    shutil.copy(ROOT / "server_app" / "engines" / "in_process.py", tmp_path / "grid.py")
    done = subprocess.run(
        [bare_python, "run.py"],
        cwd=tmp_path,
        env={"FLWR_TELEMETRY_ENABLED": "0", "FLWR_HOME": str(tmp_path / "flwr"), "HOME": "/"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "rejected" not in done.stderr  # unavailable clients are not taken for faulty ones
    printed: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    *modules, library = map(Path, printed["files"])
    assert all(path.is_relative_to(tmp_path) for path in modules)
    assert library.is_relative_to(bare_python.parents[1])
    assert printed["evaluated"] == list(range(1, ROUNDS + 1))
    trained = {tuple(pair) for pair in printed["trained"]}
    assert CLIENTS < len(trained) < CLIENTS * ROUNDS
    expected = 0.0
    for client in range(CLIENTS):
        history = [(server_round, client) in trained for server_round in range(1, ROUNDS + 1)]
        weights = zip(history, compute_omegas(history, cutoff=float("inf")), strict=False)
        expected += sum(float(omega) / CLIENTS for there, omega in weights if there)
    assert printed["model"] == pytest.approx([expected] * 3)
