"""A name says what it holds, and a public class is known by one name alone."""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CODE = (
    *("strategies", "client_app", "server_app", "fedquorum_app.py", "conf"),
    *("benchmarks", "hydra_plugins", "deploy"),
)
VAGUE = {"own", "some", "what"}


def names(tree: ast.AST) -> Iterator[str]:
    """Yield every name in the code: variables, parameters, attributes and definitions.

    An attribute or a keyword may be of another project's class. It counts as well: nothing here
    needs one with a vague name.
    """
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name):
                yield name
            case ast.arg(arg=name) | ast.keyword(arg=str(name)):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.ClassDef(name=name) | ast.MatchMapping(rest=str(name)):
                yield name
            case ast.ExceptHandler(name=str(name)) | ast.alias(asname=str(name)):
                yield name
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield name


def public_classes(tree: ast.Module) -> Iterator[str]:
    """Yield the names of a module's public classes."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield node.name


def sources(*packages: str) -> dict[str, ast.Module]:
    """Return the code of all files in these folders, by path."""
    places = [ROOT / package for package in packages]
    paths = [path for p in places for path in ([p] if p.is_file() else sorted(p.rglob("*.py")))]
    return {str(path.relative_to(ROOT)): ast.parse(path.read_text()) for path in paths}


def test_no_name_is_vague() -> None:
    """In every function the reader would have to look up what ``own`` is."""
    code = sources(*CODE)
    assert {path.partition("/")[0] for path in code} == set(CODE)
    vague = {path: found for path, tree in code.items() if (found := VAGUE & set(names(tree)))}
    assert not vague


@pytest.mark.parametrize(
    "snippet",
    [
        "own = 1",
        "self.own = 1",
        "for own in (): pass",
        "def f(own): pass",
        "def f(*, own=1): pass",
        "def own(): pass",
        "f(own=1)",
        "lambda own: 0",
        "[0 for own in ()]",
        "f'{own}'",
        "import a as own",
        "try: pass\nexcept ValueError as own: pass",
        "match 1:\n    case own: pass",
        "match 1:\n    case [*own]: pass",
        "match 1:\n    case {**own}: pass",
        "class own: pass",
        "with a as own: pass",
        "if own := 1: pass",
        "class C:\n    own: int = 1",
    ],
)
def test_a_vague_name_is_found_wherever_it_is_given(snippet: str) -> None:
    """As variable, parameter, keyword, attribute, function or alias, in any statement."""
    assert "own" in set(names(ast.parse(snippet)))


def test_words_in_texts_and_parts_of_names_are_no_vague_names() -> None:
    """The setting's old name, a docstring, and names that only contain the word."""
    tree = ast.parse('"""What some own."""\nrenamed = {"own": owner, "some": own_rows}')
    assert not VAGUE & set(names(tree))


def repeated(modules: dict[str, ast.Module]) -> set[str]:
    """Return the names that more than one public class has."""
    counts = Counter(name for tree in modules.values() for name in public_classes(tree))
    return {name for name, count in counts.items() if count > 1}


def test_no_two_public_classes_of_the_library_share_a_name() -> None:
    """Whoever imports one of them cannot have got another."""
    library = sources("strategies/fedquorum")
    assert "ComposedStrategy" in public_classes(library["strategies/fedquorum/flower/strategy.py"])
    assert not repeated(library)


def test_a_repeated_class_is_found() -> None:
    """Of two files, as the strategy FedAU and a weighting of that name were; not private ones."""
    modules = {
        "a.py": ast.parse("class FedAU: pass\nclass _Kept: pass\nclass Alone: pass"),
        "b.py": ast.parse("class FedAU: pass\nclass _Kept: pass"),
    }
    assert repeated(modules) == {"FedAU"}
