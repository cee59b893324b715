"""A rule's own file and the tables are the only places that know it by its type or its name."""

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest
from fedquorum import named, participation, selection, server_optimizer, weighting
from fedquorum.flower import drop_in
from fedquorum.named import NAMED, NONE, Named
from fedquorum.rule import Rule

ROOT = Path(__file__).parent.parent
FOLDERS = (
    *("strategies", "conf", "client_app", "server_app", "benchmarks", "deploy", "examples"),
    "hydra_plugins",
)
TABLES = (selection, weighting, participation, server_optimizer, named, drop_in)
"""The modules that hold the tables, and the constructors of the named strategies."""

SAME_WORD = {("conf/schema/register.py", "sgd")}
"""Files in which a rule's key names something else: ``client=sgd`` is local training."""

BASELINE = "examples/baseline"
"""An app for one paper, which asks for that paper's methods."""

Places = dict[str, set[str]]
"""By the name of a class or of a rule the files that may ask for it."""


def file_of(thing: object) -> str:
    """Return the file in which a module or a class is, relative to the repository."""
    path = inspect.getsourcefile(thing)  # type: ignore[arg-type]
    assert path is not None
    return Path(path).relative_to(ROOT).as_posix()


def concrete(cls: type[Rule]) -> Iterator[type[Rule]]:
    """Yield the subclasses that are rules, not bases of some."""
    for one in cls.__subclasses__():
        yield from concrete(one)
        if not inspect.isabstract(one) and one.__module__.startswith("fedquorum."):
            yield one


def allowed_places() -> tuple[Places, Places]:
    """Return where each rule's class, and where each key, may be asked for."""
    tables = {file_of(module) for module in TABLES}
    classes = {rule.__name__: {file_of(rule), *tables} for rule in concrete(Rule)}
    classes |= {one.__name__: tables for one in drop_in.DropIn.__subclasses__()}
    classes |= {name: tables for name, one in vars(named).items() if isinstance(one, Named)}
    keys = {rule.key: {file_of(rule), *tables} for rule in concrete(Rule) if rule.key}
    for key in NAMED:
        keys.setdefault(key, set()).update(tables)
    return classes, keys


CLASSES, KEYS = allowed_places()


def texts(node: ast.AST | None) -> Iterator[str]:
    """Yield the texts that an expression is, or that it is a collection of."""
    match node:
        case ast.Constant(value=str(text)):
            yield text
        case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts):
            for part in parts:
                yield from texts(part)


def names(node: ast.AST) -> Iterator[str]:
    """Yield the names of classes in an expression: the last part of dotted ones, and of X.key."""
    match node:
        case ast.Attribute(value=value, attr="key") | ast.Subscript(value=value):
            yield from names(value)
        case ast.Name(id=name) | ast.Attribute(attr=name):
            yield name
        case ast.Tuple(elts=parts):
            for part in parts:
                yield from names(part)
        case ast.BinOp(left=left, right=right):
            yield from names(left)
            yield from names(right)


def asked(node: ast.AST) -> Iterator[tuple[str, Places]]:
    """Yield the texts and the classes that a node asks for, with the places where it may."""
    expressions: list[ast.AST | None] = []
    match node:
        case ast.Call(func=ast.Name(id="isinstance" | "issubclass"), args=[_, classes]):
            expressions = [classes]
        case ast.Compare(left=left, comparators=others):
            expressions = [left, *others]
        case ast.Dict(keys=keys):
            expressions = [*keys]
        case ast.Subscript(slice=place):
            expressions = [place]
        case ast.MatchValue(value=value):
            expressions = [value]
        case ast.MatchClass(cls=cls):
            expressions = [cls]
    for expression in filter(None, expressions):
        yield from ((text, KEYS) for text in texts(expression) if text != NONE)
        yield from ((name, CLASSES) for name in names(expression))


def questions(source: str, file: str) -> list[str]:
    """Return the questions about a concrete rule that a file must not ask."""
    return [
        f"{file}:{node.lineno} {about}"  # type: ignore[attr-defined]
        for node in ast.walk(ast.parse(source))
        for about, places in asked(node)
        if about in places and file not in places[about] and (file, about) not in SAME_WORD
    ]


def test_all_rules_are_looked_for() -> None:
    """Those of every table, by class and by key, and the strategies by name."""
    assert {"EpsilonGate", "MinNorm", "MeanInterval", "KnownData", "Adam", "FedAU"} <= {*CLASSES}
    assert {"epsilon_gate", "fedmgda", "fedau", "adam", "mifa", "fedavg"} <= {*KEYS}
    assert len(CLASSES) > 20
    assert not {"Weighting", "Selection", "ServerOptimizer", "Participation"} & {*CLASSES}


@pytest.mark.parametrize("folder", FOLDERS)
def test_nothing_asks_for_a_concrete_rule(folder: str) -> None:
    """No isinstance, comparison, match case or dict key: what is to be known, rules declare."""
    files = sorted({*(ROOT / folder).rglob("*.py")} - {*(ROOT / BASELINE).rglob("*.py")})
    assert files
    found = [
        question
        for path in files
        for question in questions(path.read_text(), path.relative_to(ROOT).as_posix())
    ]
    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        "isinstance(rule, EpsilonGate)",
        "issubclass(kind, (Weighting, weighting.MinNorm))",
        "isinstance(rule, Adam | Yogi)",
        "isinstance(strategy, FedAU)",
        "type(rule) is SGD",
        'settings.strategy.name == "fedau"',
        'name != "local_only"',
        'name in {"fedvarp", "other"}',
        "rule.key == Everyone.key",
        "group.strategy == named.FEDALIGN.key",
        "tables = {FEDALIGN.key: 1}",
        'tables = {"aaggff_s": 1}',
        'WEIGHTINGS["afl"]',
        'match name:\n    case "mifa":\n        pass',
        'match name:\n    case "mifa" | "other":\n        pass',
        "match rule:\n    case KnownRates(probabilities=None):\n        pass",
    ],
)
def test_it_finds_what_it_looks_for(source: str) -> None:
    """Each kind of question, outside of the rule's own file."""
    assert len(questions(source, "server_app/loop.py")) >= 1


@pytest.mark.parametrize(
    ("source", "file"),
    [
        ("isinstance(rule, Weighting)", "server_app/loop.py"),
        ('participation == "none"', "server_app/loop.py"),
        ('print("fedau")', "server_app/loop.py"),
        ("rule = EpsilonGate(num_rounds=3)", "server_app/loop.py"),
        ("alone == everyone", "server_app/loop.py"),
        ('key == "afl"', "strategies/fedquorum/weighting/afl.py"),
        ('NAMED["fedau"]', "strategies/fedquorum/named.py"),
    ],
)
def test_it_finds_nothing_else(source: str, file: str) -> None:
    """Bases, none, other words, constructors, and the rule's own file."""
    assert questions(source, file) == []
