"""The rules are imported without Flower and torch, exports when used, and a user's own by path."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import fedquorum
import pytest
from fedquorum.errors import ParameterError
from fedquorum.imports import import_object, import_rule, refuse_import
from fedquorum.rule import RunContext
from fedquorum.weighting import Weighting

from tests.fedquorum.records.made import FIXTURES

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


# --- rules of the user's own --------------------------------------------------------------------

FILE = FIXTURES / "my_rule.py"
ALLOWED = (
    "the import path of a fedquorum Weighting, such as package.module.Class or folder/file.py:Class"
)


def own(path: str, **arguments: Any) -> Any:
    """Return the weighting at an import path."""
    return import_rule(Weighting, {"path": path, "args": arguments}, RunContext())


def test_a_rule_is_loaded_from_its_file_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative path is from the working directory; two rules of one file have one class."""
    by_file = own(f"{FILE}:Tempered", power=2.0)
    assert repr(by_file) == "Tempered(power=2.0)"
    monkeypatch.chdir(FIXTURES)
    assert own("my_rule.py:Tempered", power=2.0) == by_file
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ParameterError, match=f"there is no Python file {tmp_path}/my_rule.py"):
        own("my_rule.py:Tempered")


def test_a_rule_is_imported_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where Python does not look there, as in a command; a function may make the rule."""
    (tmp_path / "made_here.py").write_text(
        "from fedquorum.weighting import AverageAll\n\ndef average():\n    return AverageAll()\n"
    )
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        assert repr(own("made_here.average")) == "AverageAll()"
    assert sys.path.count(str(tmp_path)) == 1


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        (f"{FILE}:Temperd", "there is no Temperd in it; did you mean Tempered?"),
        (f"{FILE}:Xyz", "there is no Xyz in it"),
        ("nowhere.to_be.Found", "No module named 'nowhere'"),
        ("math.pi", "it is a float"),
        ("collections.OrderedDict", "it makes OrderedDict"),
    ],
)
def test_what_is_no_rule_is_refused_with_the_reason(path: str, reason: str) -> None:
    """In one line, with what is allowed."""
    message = f"path must be {ALLOWED} ({reason}), got {path!r}"
    with pytest.raises(ParameterError, match=f"^{re.escape(message)}$"):
        own(path)


def test_arguments_that_a_rule_does_not_take_are_refused() -> None:
    """By what Python says of them."""
    message = rf"args must be arguments of {FILE}:Tempered \(.*'powr'.*\), got \{{'powr': 2\}}"
    with pytest.raises(ParameterError, match=message):
        own(f"{FILE}:Tempered", powr=2)


def test_a_file_that_failed_is_loaded_again(tmp_path: Path) -> None:
    """Whoever mends a mistake in it need not start anew, as in a notebook."""
    file = tmp_path / "rule.py"
    file.write_text("raise SystemError('not yet')")
    with pytest.raises(ParameterError, match="not yet"):
        own(f"{file}:number")
    file.write_text("number = 1  # and now")
    assert import_object(f"{file}:number") == 1


def test_records_do_not_make_code_run() -> None:
    """A rule that they name is refused without trust, and the way out is told."""
    message = (
        "path must be absent from records that are only read (it names code; --trust, or "
        "trust=True in Python, imports it), got 'os.system'"
    )
    with pytest.raises(ParameterError, match=re.escape(message)):
        refuse_import(Weighting, {"path": "os.system"}, RunContext())
