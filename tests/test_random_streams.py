"""The purposes of random streams: another word for one changes every number drawn for it."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("strategies/fedquorum", "client_app", "server_app", "conf")
PURPOSES = {
    "augmentation",
    "availability",
    "availability-class-rates",
    "availability-classes",
    "batches",
    "concurrency",
    "dirichlet-partitioner",
    "dirichlet-test",
    "dirichlet-train",
    "dropout",
    "evaluation",
    "finetune-",  # and the purpose of the training
    "guess",
    "iid-test",
    "iid-train",
    "model",
    "neighbors",
    "own-split",
    "priority",
    "proportional-",  # and the split
    "proportional-classes",
    "quantity",
    "quantity-test",
    "quantity-train",
    "rates-ahead",
    "response-time",
    "restart",
    "row-weights",
    "selection",
    "shard-partitioner",
    "shards",
    "study",
    "synth",
    "synth-size",
    "unseen",
    "validation-split",
}
DRAWING = ("make_generator", "derive_seed", "_assign_rows", "get_rng", "draw", "rng_factories")
"""The functions that take a purpose; the last three are a client's generators by purpose."""
CONSTANTS = ("purpose", "STREAM_NAME", "LATENCY_STREAM", "FINETUNE_PREFIX")


def find_texts(node: ast.AST | None) -> Iterator[str]:
    """Yield the texts in an expression."""
    for one in ast.walk(node) if node is not None else ():
        if isinstance(one, ast.Constant) and isinstance(one.value, str):
            yield one.value


def find_purposes(tree: ast.Module) -> Iterator[str]:
    """Yield the purposes that a module names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).partition("[")[0] in DRAWING:
            for argument in node.args:
                yield from find_texts(argument)
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in CONSTANTS:
            yield from find_texts(node.value)
        elif isinstance(node, ast.arguments):
            positional = zip(
                [*node.posonlyargs, *node.args][::-1], node.defaults[::-1], strict=False
            )
            for parameter, default in (
                *positional,
                *zip(node.kwonlyargs, node.kw_defaults, strict=True),
            ):
                if parameter.arg in CONSTANTS:
                    yield from find_texts(default)


@pytest.mark.slow
def test_the_purposes_of_random_streams_stay_to_the_letter() -> None:
    """They are no names: a data set is divided by them, and a run's clients are drawn."""
    found = {
        purpose
        for package in PACKAGES
        for file in (ROOT / package).rglob("*.py")
        for purpose in find_purposes(ast.parse(file.read_text(encoding="utf-8")))
    }
    assert found == PURPOSES
