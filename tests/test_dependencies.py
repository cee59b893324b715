"""Which package may import which: dependencies point one way."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
OURS = {"strategies", "client_app", "server_app", "conf", "hydra_plugins"}
ALLOWED = {
    "strategies": {"strategies"},
    "conf": {"conf", "strategies"},
    "client_app": {"client_app", "conf", "strategies"},
    "server_app": OURS - {"hydra_plugins"},
    "hydra_plugins": {"conf", "server_app"},
}


def imports(path: Path) -> set[str]:
    """Return the top-level names that a module imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.add(str(node.module).split(".")[0])
    return found


@pytest.mark.parametrize("package", sorted(OURS))
def test_packages_import_only_what_they_may(package: str) -> None:
    """strategies <- conf <- client_app <- server_app, never the other way."""
    for path in (ROOT / package).rglob("*.py"):
        foreign = imports(path) & OURS - ALLOWED[package]
        assert not foreign, f"{path.relative_to(ROOT)} imports {foreign}"


def test_a_node_loads_no_more_than_it_needs() -> None:
    """A device starts a process for every message: without torch's compiler, without SciPy."""
    program = """
import sys
import client_app.app
from client_app.node import Node
from conf import compose
node = Node(compose("", "data.num_clients=2 data.num_priority=1").settings)
node.host((0,))
print({"torch._dynamo", "scipy", "pandas", "pyarrow"} & sys.modules.keys())
"""
    command = [sys.executable, "-c", program]
    assert subprocess.check_output(command, cwd=ROOT, text=True).strip() == "set()"


@pytest.mark.parametrize("folder", ["selection", "weighting", "server_optimizer"])
def test_rules_are_numpy_only(folder: str) -> None:
    """Rules know neither Flower nor torch, and do no I/O."""
    for path in (ROOT / "strategies" / folder).rglob("*.py"):
        forbidden = imports(path) & {"flwr", "torch", "os", "pathlib", "random", "time", "logging"}
        assert not forbidden, f"{path.relative_to(ROOT)} imports {forbidden}"


def test_one_module_knows_the_record_names() -> None:
    """Keys like num-examples on the wire are spelled in the codec, the adapter and the client."""
    users = {
        path.relative_to(ROOT).as_posix()
        for package in OURS
        for path in (ROOT / package).rglob("*.py")
        if "RecordDict({" in path.read_text()
    }
    assert users == {"strategies/codec.py"}
