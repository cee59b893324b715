"""The rules are imported where Flower and torch are not installed; the exports are lazy."""

import json
import subprocess
import sys
from pathlib import Path

import fedquorum

PACKAGE = Path(fedquorum.__file__).parent
RULES = ("selection", "weighting", "participation", "server_optimizer")
# What the rules are made of, and what is made of the rules alone.
PURE = ("types", "streams", "parameters", "state", "composition", "round", "named")
IMPORT_ALL = """
import importlib, json, sys
for missing in ("flwr", "torch"):
    sys.modules[missing] = None
failed = {}
for name in json.loads(sys.argv[1]):
    try:
        importlib.import_module(name)
    except ImportError as error:
        failed[name] = str(error)
print(json.dumps(failed))
"""


def modules() -> list[str]:
    """Return the names of the modules that must not need Flower, packages first."""
    paths = [path for rule in RULES for path in sorted((PACKAGE / rule).glob("*.py"))]
    paths += [PACKAGE / f"{name}.py" for name in PURE]
    parts = [path.relative_to(PACKAGE.parent).with_suffix("").parts for path in paths]
    return [".".join(part for part in name if part != "__init__") for name in parts]


def failures(names: list[str]) -> dict[str, str]:
    """Return which modules cannot be imported without Flower and torch, and why."""
    command = [sys.executable, "-c", IMPORT_ALL, json.dumps(names)]
    found: dict[str, str] = json.loads(
        subprocess.check_output(command, cwd=PACKAGE.parent, text=True)
    )
    return found


def test_every_rule_is_imported_without_flower_and_torch() -> None:
    """All modules of the rules, and what is made of them."""
    names = modules()
    assert {"fedquorum.participation.fedau", "fedquorum.selection", "fedquorum.types"} <= set(names)
    assert failures(names) == {}


def test_the_adapter_cannot_be() -> None:
    """So that the test above can fail: Flower is really missing there."""
    (reason,) = failures(["fedquorum.flower.strategy"]).values()
    assert "flwr" in reason


def test_every_export_is_there() -> None:
    """Each public name is imported when it is used, and ``dir`` lists it before."""
    assert set(fedquorum.__all__) <= set(dir(fedquorum))
    for name in fedquorum.__all__:
        assert getattr(fedquorum, name).__name__ == name
