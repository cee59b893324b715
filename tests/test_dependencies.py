"""What import-linter cannot say: which modules are loaded, and words that stand in one module.

Which package may import which is in pyproject.toml: ``lint-imports`` checks it.
"""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from fedquorum.flower.codec import keys

ROOT = Path(__file__).parent.parent
PARTS = ("strategies/fedquorum", "client_app", "server_app", "conf", "hydra_plugins")


def texts(*parts: str) -> dict[str, str]:
    """Return the source of every module of some parts, by its path."""
    paths = [path for part in parts for path in sorted((ROOT / part).rglob("*.py"))]
    assert paths
    return {path.relative_to(ROOT).as_posix(): path.read_text() for path in paths}


def matching(pattern: str, sources: dict[str, str]) -> list[str]:
    """Return the paths of the modules that have a line like this."""
    return [path for path, text in sources.items() if re.search(pattern, text, re.MULTILINE)]


ABSOLUTE = r"^\s*(from|import) fedquorum\b"


def test_the_library_imports_itself_relatively() -> None:
    """By whatever name it stands on the path, there is one copy of it."""
    library = texts("strategies/fedquorum")
    docstrings = re.compile(r'"""(?:.|\n)*?"""')
    code = {path: docstrings.sub("", text) for path, text in library.items()}
    assert matching(ABSOLUTE, code) == []
    assert matching(ABSOLUTE, {"m": "def f():\n    from fedquorum.rule import Rule\n"}) == ["m"]


TOP = r"^\s*(from|import) (strategies|tests|benchmarks|{})\b"


def test_entry_points_import_the_server_app_alone_and_deploy_nothing_of_ours() -> None:
    """``fedquorum_app`` is a module, ``deploy`` a folder of scripts: neither is a package."""
    entry = {"fedquorum_app.py": (ROOT / "fedquorum_app.py").read_text()}
    assert matching(TOP.format("conf|client_app|hydra_plugins"), entry) == []
    assert matching(TOP.format("conf|client_app|server_app|fedquorum"), texts("deploy")) == []
    assert matching(TOP.format("conf"), {"m": "import conf.compose\n"}) == ["m"]


def test_nobody_changes_a_frozen_value() -> None:
    """A new one is made, or a cached property computes what follows from the fields."""
    thaws = r"\bobject\.__setattr__\("
    assert matching(thaws, texts(*PARTS)) == []
    assert matching(thaws, {"m": "object.__setattr__(self, 'x', 2)\n"}) == ["m"]


def test_numpy_loads_no_pickles() -> None:
    """Its default, which nothing switches off; ruff looks for all other loaders of code."""
    assert matching(r"allow_pickle(?!=False)", texts(*PARTS, "benchmarks", "deploy")) == []
    assert matching(r"allow_pickle(?!=False)", {"m": "np.load(f, allow_pickle=True)"}) == ["m"]


def constants(text: str) -> set[object]:
    """Return the constants of a module."""
    return {node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)}


def test_one_module_knows_the_record_names() -> None:
    """Keys like num-examples are spelled in the codec's module of keys, and nowhere else."""
    named = (value for value in vars(keys).values() if isinstance(value, str))
    words = {word for word in named if re.fullmatch(r"[a-z]+([-_][a-z]+)+", word)}
    sources = texts("strategies/fedquorum", "client_app", "server_app")
    users = [path for path, text in sources.items() if words & constants(text)]
    assert users == ["strategies/fedquorum/flower/codec/keys.py"]
    assert words & constants('x.get("num-examples", 0)')


def capture_output(program: str) -> str:
    """Return what a program prints in a process of its own."""
    command = [sys.executable, "-c", program]
    return subprocess.check_output(command, cwd=ROOT, text=True).strip()


@pytest.mark.slow
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
    assert capture_output(program) == "set()"


def test_a_run_in_this_process_loads_none_of_flowers_servers() -> None:
    """Databases and web servers take a second to load, and only a SuperLink needs them."""
    program = """
import sys
import server_app.command_line, server_app.app, client_app.app
print({"sqlalchemy", "alembic", "fastapi", "ray"} & sys.modules.keys())
"""
    assert capture_output(program) == "set()"
