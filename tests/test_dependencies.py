"""Which package may import which: dependencies point one way.

Relative imports count as the modules that they reach, and imports inside functions as all others.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from fedquorum.flower.codec import keys

ROOT = Path(__file__).parent.parent
LIBRARY = ROOT / "strategies"
APP = {
    *("conf", "client_app", "server_app", "fedquorum_app", "hydra_plugins"),
    *("benchmarks", "tests"),
}


@dataclass(frozen=True)
class Import:
    """One import: which module imports which name, and whether that can wait."""

    module: str
    name: str
    lazy: bool = False

    def __str__(self) -> str:
        return f"{self.module} imports {self.name}"

    def within(self, *packages: str) -> bool:
        """Say whether the name is one of these packages or modules, or in one of them."""
        return any(self.name == one or self.name.startswith(f"{one}.") for one in packages)


def name_of(path: Path) -> str:
    """Return a module's name; that of the library begins with its package."""
    root = LIBRARY if path.is_relative_to(LIBRARY) else ROOT
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def runs_later(node: ast.AST) -> bool:
    """Say whether a part of a module is not run by its import: functions, and what types need."""
    if isinstance(node, ast.If):
        return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)


def imports_in(source: str, module: str, *, package: bool = False) -> Iterator[Import]:
    """Yield the imports of a module's source, with relative ones resolved."""
    tree = ast.parse(source)
    inside = {id(node) for part in filter(runs_later, ast.walk(tree)) for node in ast.walk(part)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            parents = module.split(".") if package else module.split(".")[:-1]
            here = parents[: len(parents) - node.level + 1] if node.level else []
            base = ".".join([*here, *([node.module] if node.module else [])])
            names = [f"{base}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (Import(module, name, id(node) in inside) for name in names)


def imports_of(paths: Iterable[Path]) -> list[Import]:
    """Return all imports of modules."""
    return [
        one
        for path in paths
        for one in imports_in(path.read_text(), name_of(path), package=path.stem == "__init__")
    ]


def modules(*folders: str) -> list[Path]:
    """Return the Python files of folders of the repository, or single ones."""
    found = []
    for folder in folders:
        path = ROOT / folder
        found += [path] if path.is_file() else sorted(path.rglob("*.py"))
    assert found, folders
    return found


def library(*parts: str) -> list[Path]:
    """Return the modules of parts of the library: folders, or modules by their names."""
    return modules(*(f"strategies/fedquorum/{part}" for part in parts))


# --- what each part must not import -----------------------------------------------------------

RULES = ("selection", "weighting", "participation", "server_optimizer")
PURE = (
    *("round.py", "composition.py", "named.py", "rule.py", "types.py", "report.py", "words.py"),
    *("privacy.py", "robustness.py", "quorum.py", "virtual_clock.py"),
)
NOT_PURE = ("flwr", "torch", "os", "time", "random", "logging", "pathlib", "io", "sys")
SETTINGS = ("hydra", "omegaconf", "conf")


def foreign(imports: Iterable[Import], *packages: str) -> list[str]:
    """Return the imports of these packages, in words."""
    return [str(one) for one in imports if one.within(*packages)]


def test_the_library_imports_nothing_of_the_app() -> None:
    """Nor itself by another name."""
    assert foreign(imports_of(library("")), *APP, "strategies") == []


def test_the_library_imports_itself_relatively() -> None:
    """By whatever name it stands on the path, there is one copy of it."""
    for path in library(""):
        tree = ast.parse(path.read_text())
        absolute = [
            node
            for node in ast.walk(tree)
            if (isinstance(node, ast.ImportFrom) and not node.level and node.module)
            and node.module.split(".")[0] == "fedquorum"
        ]
        assert not absolute, path


def flower_imports(imports: Iterable[Import]) -> list[str]:
    """Return the imports of Flower where it must not be needed."""
    return [
        str(one)
        for one in imports
        if one.within("flwr", "fedquorum.flower")
        and not one.module.startswith("fedquorum.flower")
        and not (one.lazy and one.module in ("fedquorum", "fedquorum.client.availability"))
    ]


def test_only_the_part_for_flower_imports_flower() -> None:
    """Two modules export what is there, when it is asked for: the library, and availability."""
    assert flower_imports(imports_of(library(""))) == []


@pytest.mark.parametrize("part", [*RULES, *PURE])
def test_rules_and_what_is_made_of_them_are_pure(part: str) -> None:
    """Neither Flower nor torch, no files, no clock, no global generator, no log."""
    assert foreign(imports_of(library(part)), *NOT_PURE) == []


def test_records_and_audit_need_no_training_and_no_settings() -> None:
    """Whoever has the files of a run can read and check it."""
    imports = imports_of(library("records", "audit"))
    assert foreign(imports, "torch", "flwr", "fedquorum.flower", *SETTINGS) == []


ALLOWED = {
    "conf": {"conf"},
    "client_app": {"client_app", "conf"},
    "server_app": {"server_app", "client_app", "conf"},
    "fedquorum_app.py": {"server_app"},
    "hydra_plugins": {"hydra_plugins", "conf", "server_app"},
    "deploy": set[str](),
}


def upward(imports: Iterable[Import], allowed: Collection[str]) -> list[str]:
    """Return the imports of parts of the app that are not among those allowed."""
    return foreign(imports, *(APP - set(allowed)))


@pytest.mark.parametrize("package", ALLOWED)
def test_parts_of_the_app_import_what_is_below_them(package: str) -> None:
    """conf <- client_app <- server_app <- fedquorum_app, never the other way; deploy runs alone."""
    assert upward(imports_of(modules(package)), ALLOWED[package]) == []


DRAW = (
    *("server_app.report", "server_app.api"),
    *(f"server_app.study.{module}" for module in ("charts", "page", "tables")),
)
"""Who draws or tabulates: the report, the Python API, and a study's answer."""


def drawing(imports: Iterable[Import]) -> list[str]:
    """Return the imports of the report outside of it."""
    return [
        str(one)
        for one in imports
        if one.within("server_app.report") and not one.module.startswith(DRAW)
    ]


def test_the_report_only_draws() -> None:
    """Only what draws imports it: what others need of runs is the library's."""
    assert drawing(imports_of(modules("client_app", "conf", "server_app", "hydra_plugins"))) == []


def rays(imports: Iterable[Import]) -> list[str]:
    """Return the imports of Ray where no engine on Ray was chosen."""
    package = "server_app.ray_engine"
    return [
        str(one)
        for one in imports
        if one.within("ray", package)
        and not one.module.startswith(package)
        and not (one.lazy and one.module == "server_app.job")
    ]


def test_only_the_engine_on_ray_imports_ray() -> None:
    """All others run where Ray is not installed; a job imports that engine when it is chosen."""
    assert rays(imports_of(modules("strategies", "client_app", "conf", "server_app"))) == []


# --- each of these checks can fail ------------------------------------------------------------


def snippet(source: str, module: str, *, package: bool = False) -> list[Import]:
    return list(imports_in(source, module, package=package))


@pytest.mark.parametrize(
    ("source", "module", "package", "name"),
    [
        ("import flwr.app", "fedquorum.round", False, "flwr.app"),
        ("from flwr import app", "fedquorum.round", False, "flwr.app"),
        ("from .types import Call", "fedquorum.round", False, "fedquorum.types.Call"),
        ("from . import types", "fedquorum.round", False, "fedquorum.types"),
        ("from ..flower import codec", "fedquorum.weighting.afl", False, "fedquorum.flower.codec"),
        ("from ..types import Call", "fedquorum.weighting", True, "fedquorum.types.Call"),
        ("from .afl import AFL", "fedquorum.weighting", True, "fedquorum.weighting.afl.AFL"),
    ],
)
def test_relative_imports_are_resolved(source: str, module: str, package: bool, name: str) -> None:
    """From a module and from a package, one or more levels up."""
    assert snippet(source, module, package=package) == [Import(module, name)]


def test_imports_in_functions_are_seen() -> None:
    """As lazy ones, in methods too."""
    source = "class A:\n    def f(self):\n        import torch\nimport json\n"
    assert set(snippet(source, "m")) == {Import("m", "torch", lazy=True), Import("m", "json")}
    assert snippet("if TYPE_CHECKING:\n    import flwr", "m") == [Import("m", "flwr", lazy=True)]
    assert snippet("if True:\n    import flwr", "m") == [Import("m", "flwr")]


def test_each_check_fails_where_it_should() -> None:
    """On one line of source each."""
    for line in (
        "import conf.compose",
        "from server_app import app",
        "import strategies.fedquorum",
    ):
        assert foreign(snippet(line, "fedquorum.round"), *APP, "strategies")
    for line in ("from flwr.app import Message", "from .flower.codec import keys"):
        assert flower_imports(snippet(line, "fedquorum.round"))
    in_function = "def mod():\n    from ...flower.availability import mod\n"
    assert flower_imports(snippet(in_function, "fedquorum.client.decisions.gate"))
    assert not flower_imports(snippet(in_function, "fedquorum.client.availability", package=True))
    at_once = "from ...flower.availability import mod"
    assert flower_imports(snippet(at_once, "fedquorum.client.availability", package=True))
    assert not flower_imports(snippet("import flwr", "fedquorum.flower.codec.keys"))
    for name in NOT_PURE:
        assert foreign(snippet(f"import {name}", "fedquorum.weighting.afl"), *NOT_PURE)
    assert foreign(snippet("from os import path", "fedquorum.weighting.afl"), *NOT_PURE)
    assert not foreign(snippet("import oscar", "fedquorum.weighting.afl"), *NOT_PURE)
    assert foreign(snippet("def f():\n    import omegaconf", "fedquorum.records.reader"), *SETTINGS)
    assert upward(snippet("import server_app.job", "client_app.app"), ALLOWED["client_app"])
    assert upward(snippet("import client_app", "conf.compose"), ALLOWED["conf"])
    assert upward(snippet("import tests.builders", "server_app.job"), ALLOWED["server_app"])
    assert upward(snippet("from client_app import app", "deploy.preload"), ALLOWED["deploy"])
    assert drawing(snippet("from server_app.report import runs", "server_app.loop"))
    assert not drawing(snippet("import server_app.report.page", "server_app.report.build"))
    assert rays(snippet("import ray.util", "server_app.loop"))
    assert rays(snippet("from server_app.ray_engine.engine import ray_grid", "server_app.job"))
    assert not rays(snippet("def f():\n    import server_app.ray_engine.grid", "server_app.job"))
    assert not rays(snippet("import ray", "server_app.ray_engine.fleet"))


# --- nothing frozen is changed ------------------------------------------------------------------


def thawed(source: str) -> list[int]:
    """Return the lines that set attributes of frozen objects from outside."""
    return [
        number
        for number, line in enumerate(source.splitlines(), 1)
        if re.search(r"\bobject\.__setattr__\(", line)
    ]


def test_nobody_changes_a_frozen_value() -> None:
    """A new one is made, or a cached property computes what follows from the fields."""
    for path in modules(
        *("strategies", "conf", "client_app", "server_app", "hydra_plugins"), "fedquorum_app.py"
    ):
        assert thawed(path.read_text()) == [], path
    assert thawed("x = 1\nobject.__setattr__(self, 'x', 2)\n") == [2]


# --- what is loaded, and what the wire says ----------------------------------------------------


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
    assert printed(program) == "set()"


def test_a_run_in_this_process_loads_none_of_flowers_servers() -> None:
    """Databases and web servers take a second to load, and only a SuperLink needs them."""
    program = """
import sys
import server_app.command_line, server_app.app, client_app.app
print({"sqlalchemy", "alembic", "fastapi", "ray"} & sys.modules.keys())
"""
    assert printed(program) == "set()"


def printed(program: str) -> str:
    """Return what a program prints in a process of its own."""
    command = [sys.executable, "-c", program]
    return subprocess.check_output(command, cwd=ROOT, text=True).strip()


def wire_keys() -> frozenset[str]:
    """Return the names of records and keys on the wire that are no ordinary words."""
    constants = (value for value in vars(keys).values() if isinstance(value, str))
    return frozenset(word for word in constants if re.fullmatch(r"[a-z]+([-_][a-z]+)+", word))


def spelled(path: Path) -> set[str]:
    """Return the keys on the wire that a module spells as whole strings."""
    constants = (n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Constant))
    return {n.value for n in constants if isinstance(n.value, str)} & wire_keys()


def test_one_module_knows_the_record_names() -> None:
    """Keys like num-examples are spelled in the codec's module of keys, and nowhere else."""
    folders = [ROOT / "strategies/fedquorum", ROOT / "client_app", ROOT / "server_app"]
    users = {
        path.relative_to(ROOT).as_posix(): found
        for folder in folders
        for path in folder.rglob("*.py")
        if (found := spelled(path))
    }
    assert users == {"strategies/fedquorum/flower/codec/keys.py": wire_keys()}


def indexed(path: Path) -> set[str]:
    """Return the keys on the wire, ordinary words too, that a module looks up in a mapping."""
    words = {value for value in vars(keys).values() if isinstance(value, str)}
    found: set[object] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            found.add(node.slice.value)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            looks_up = node.func.attr in ("get", "pop", "setdefault") and node.args
            if looks_up and isinstance(node.args[0], ast.Constant):
                found.add(node.args[0].value)
    return {word for word in found if isinstance(word, str)} & words


def test_who_handles_messages_looks_nothing_up_in_them() -> None:
    """Nor by keys that are ordinary words, such as status and loss."""
    flower = (ROOT / "strategies/fedquorum/flower").glob("*.py")
    app = [ROOT / "client_app" / f"{name}.py" for name in ("app", "client", "node", "privacy")]
    for path in (*flower, *app, ROOT / "server_app/privacy.py"):
        assert not indexed(path), path.relative_to(ROOT)


def test_a_word_looked_up_is_found(tmp_path: Path) -> None:
    """In brackets or with a default; what is no key on the wire may be."""
    path = tmp_path / "module.py"
    path.write_text('metrics["status"], config.get("loss", 0.0), config["lr"]')
    assert indexed(path) == {"status", "loss"}


@pytest.mark.parametrize("key", ["num-examples", "client-id", "global-loss", "weighted-sum"])
def test_a_key_elsewhere_is_found(tmp_path: Path, key: str) -> None:
    """As a subscript, an argument, or a default; not where it is a word of a sentence."""
    path = tmp_path / "module.py"
    for line in ('x = record["{}"]', 'x.get("{}", 0)', 'def f(key: str = "{}"): ...'):
        path.write_text(line.format(key))
        assert spelled(path) == {key}
    path.write_text(f'raise ValueError("{key} is missing")')
    assert spelled(path) == set()
