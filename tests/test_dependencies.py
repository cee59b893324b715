"""Test imports beyond import-linter: circles, loaded modules, names that only one module has.

The allowed imports between packages are in pyproject.toml; ``lint-imports`` checks them.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest
from fedquorum.flower.codec import keys

ROOT = Path(__file__).parent.parent
PARTS = ("strategies/fedquorum", "client_app", "server_app", "conf", "hydra_plugins")


def read_sources(*parts: str) -> dict[str, str]:
    """Return the source of every module of some parts, by its path."""
    paths = [path for part in parts for path in sorted((ROOT / part).rglob("*.py"))]
    assert paths
    return {path.relative_to(ROOT).as_posix(): path.read_text() for path in paths}


def find_matching(pattern: str, sources: dict[str, str]) -> list[str]:
    """Return the paths of the modules with a matching line."""
    return [path for path, text in sources.items() if re.search(pattern, text, re.MULTILINE)]


MAX_ROOMS = {"fedquorum": 14, "client_app": 11, "server_app": 8, "conf": 6}
"""The modules and packages at the top of each package: few enough to remember."""


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    """Return which module imports which, also inside functions and for type checkers only."""
    return grimp.build_graph(*MAX_ROOMS, exclude_type_checking_imports=False, cache_dir=None)


def test_the_top_of_each_package_stays_small(graph: grimp.ImportGraph) -> None:
    """A new module belongs into a package that exists."""
    rooms = {package: sorted(graph.find_children(package)) for package in MAX_ROOMS}
    for package, names in rooms.items():
        assert len(names) <= MAX_ROOMS[package], names


def find_circle(imports: Mapping[str, Iterable[str]]) -> list[str]:
    """Return modules of which each imports the next, and the last the first."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        circle: list[str] = error.args[1]
        return circle
    return []


def test_no_modules_import_each_other(graph: grimp.ImportGraph) -> None:
    """Each file can be read with the files below it.

    The library's ``__init__`` is its front door: for type checkers it names all that is public.
    """
    imports = {
        module: graph.find_modules_directly_imported_by(module)
        for module in graph.modules - {"fedquorum"}
    }
    assert len(imports) > 200
    assert find_circle(imports) == []
    assert find_circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]


ABSOLUTE = r"^\s*(from|import) fedquorum\b"


def test_the_library_imports_itself_relatively() -> None:
    """So there is one copy of it, whatever its name on the path."""
    library = read_sources("strategies/fedquorum")
    docstrings = re.compile(r'"""(?:.|\n)*?"""')
    code = {path: docstrings.sub("", text) for path, text in library.items()}
    assert find_matching(ABSOLUTE, code) == []
    assert find_matching(
        ABSOLUTE, {"m": "def f():\n    from fedquorum.rules.rule import Rule\n"}
    ) == ["m"]


TOP = r"^\s*(from|import) (strategies|tests|benchmarks|{})\b"


def test_entry_points_import_only_the_server_app_and_deploy_imports_nothing() -> None:
    """``fedquorum_app`` is a module, ``deploy`` a folder of scripts: neither is a package."""
    entry = {"fedquorum_app.py": (ROOT / "fedquorum_app.py").read_text()}
    assert find_matching(TOP.format("conf|client_app|hydra_plugins"), entry) == []
    assert (
        find_matching(TOP.format("conf|client_app|server_app|fedquorum"), read_sources("deploy"))
        == []
    )
    assert find_matching(TOP.format("conf"), {"m": "import conf.compose\n"}) == ["m"]


def test_frozen_values_are_never_changed() -> None:
    """Code makes a new value, or a cached property computes it from the fields."""
    thaws = r"\bobject\.__setattr__\("
    assert find_matching(thaws, read_sources(*PARTS)) == []
    assert find_matching(thaws, {"m": "object.__setattr__(self, 'x', 2)\n"}) == ["m"]


def test_numpy_loads_no_pickles() -> None:
    """That is its default; ruff finds all other loaders of code."""
    assert (
        find_matching(r"allow_pickle(?!=False)", read_sources(*PARTS, "benchmarks", "deploy")) == []
    )
    assert find_matching(r"allow_pickle(?!=False)", {"m": "np.load(f, allow_pickle=True)"}) == ["m"]


def collect_constants(text: str) -> set[object]:
    """Return the constants of a module."""
    return {node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)}


def test_one_module_knows_the_record_names() -> None:
    """Keys like num-examples appear only in the codec's module of keys."""
    named = (value for value in vars(keys).values() if isinstance(value, str))
    words = {word for word in named if re.fullmatch(r"[a-z]+([-_][a-z]+)+", word)}
    sources = read_sources("strategies/fedquorum", "client_app", "server_app")
    users = [
        path
        for path, text in sources.items()
        if any(word in text for word in words) and words & collect_constants(text)
    ]
    assert users == ["strategies/fedquorum/flower/codec/keys.py"]
    assert words & collect_constants('x.get("num-examples", 0)')


def capture_output(program: str) -> str:
    """Return the output of a program in a separate process."""
    command = [sys.executable, "-c", program]
    return subprocess.check_output(command, cwd=ROOT, text=True).strip()


@pytest.mark.slow
def test_a_node_loads_no_more_than_it_needs() -> None:
    """A device starts a process for every message, without torch's compiler and SciPy."""
    program = """
import sys
import client_app.app
from client_app.node.node import Node
from conf import compose_settings
node = Node(compose_settings("", "data.num_clients=2 data.num_priority=1").settings)
node.load_clients((0,))
print({"torch._dynamo", "scipy", "pandas", "pyarrow"} & sys.modules.keys())
"""
    assert capture_output(program) == "set()"


@pytest.mark.slow
def test_a_run_in_process_loads_no_servers_of_flower() -> None:
    """Databases and web servers take a second to load, and only a SuperLink needs them."""
    program = """
import sys
import server_app.cli.fedquorum, server_app.app, client_app.app
print({"sqlalchemy", "alembic", "fastapi", "ray"} & sys.modules.keys())
"""
    assert capture_output(program) == "set()"
