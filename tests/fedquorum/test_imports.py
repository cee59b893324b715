"""Rules import without Flower and torch, exports when used, and custom rules by path."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import fedquorum
import pytest
from fedquorum.errors import ParameterError
from fedquorum.registry import import_object, import_rule, refuse_import
from fedquorum.rules.rule import RunContext
from fedquorum.rules.weighting import Weighting

from tests.fedquorum.records.made import FIXTURES

PACKAGE = Path(fedquorum.__file__).parent
# What must not need Flower: the rules, what stands on them, and what they stand on.
PURE = (
    *("rules", "contrib", "server", "metrics"),
    *("registry.py", "rng.py", "errors.py", "sanitize.py"),
)
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


def list_modules() -> list[str]:
    """Return the names of the modules that must not need Flower, packages first."""
    paths = [
        path
        for name in PURE
        for path in (sorted((PACKAGE / name).rglob("*.py")) or [PACKAGE / name])
    ]
    parts = [path.relative_to(PACKAGE.parent).with_suffix("").parts for path in paths]
    return [".".join(part for part in name if part != "__init__") for name in parts]


def find_failures(names: list[str]) -> dict[str, str]:
    """Return the modules that cannot be imported without Flower and torch, with the reason."""
    command = [sys.executable, "-c", IMPORT_ALL, json.dumps(names)]
    failed: dict[str, str] = json.loads(
        subprocess.check_output(command, cwd=PACKAGE.parent, text=True)
    )
    return failed


def test_every_rule_is_imported_without_flower_and_torch() -> None:
    """All modules of the rules, and those that use only the rules."""
    names = list_modules()
    assert {
        "fedquorum.rules.participation.fedau",
        "fedquorum.rules.selection",
        "fedquorum.rules.types",
    } <= set(names)
    assert find_failures(names) == {}


def test_the_flower_adapter_is_not_imported_without_flower() -> None:
    """Flower is really missing in the test above."""
    (reason,) = find_failures(["fedquorum.flower.strategy"]).values()
    assert "flwr" in reason


def test_every_export_exists() -> None:
    """Each public name is imported on first use, and ``dir`` lists it before."""
    assert set(fedquorum.__all__) <= set(dir(fedquorum))
    for name in fedquorum.__all__:
        assert getattr(fedquorum, name).__name__ == name


# --- custom rules -------------------------------------------------------------------------------

FILE = FIXTURES / "my_rule.py"
ALLOWED = (
    "the import path of a fedquorum Weighting, such as package.module.Class or folder/file.py:Class"
)


def import_weighting(path: str, **arguments: Any) -> Any:
    """Return the weighting at an import path."""
    return import_rule(Weighting, {"path": path, "args": arguments}, RunContext())


def test_a_rule_is_loaded_from_its_file_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative path is from the working directory; two rules of one file have one class."""
    by_file = import_weighting(f"{FILE}:Tempered", power=2.0)
    assert repr(by_file) == "Tempered(power=2.0)"
    monkeypatch.chdir(FIXTURES)
    assert import_weighting("my_rule.py:Tempered", power=2.0) == by_file
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ParameterError, match=f"there is no Python file {tmp_path}/my_rule.py"):
        import_weighting("my_rule.py:Tempered")


def test_a_rule_is_imported_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if it is not on Python's path, as in a command; a function may make the rule."""
    (tmp_path / "made_here.py").write_text(
        "from fedquorum.rules.weighting import AverageAll\n\n"
        "def average():\n    return AverageAll()\n"
    )
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        assert repr(import_weighting("made_here.average")) == "AverageAll()"
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
def test_an_object_that_is_no_rule_is_refused_with_the_reason(path: str, reason: str) -> None:
    """In one line, with the allowed values."""
    message = f"path must be {ALLOWED} ({reason}), got {path!r}"
    with pytest.raises(ParameterError, match=f"^{re.escape(message)}$"):
        import_weighting(path)


def test_arguments_that_a_rule_does_not_take_are_refused() -> None:
    """The message has Python's own error."""
    message = rf"args must be arguments of {FILE}:Tempered \(.*'powr'.*\), got \{{'powr': 2\}}"
    with pytest.raises(ParameterError, match=message):
        import_weighting(f"{FILE}:Tempered", powr=2)


def test_a_file_that_failed_is_loaded_again(tmp_path: Path) -> None:
    """After fixing a mistake in it a user need not restart Python, as in a notebook."""
    file = tmp_path / "rule.py"
    file.write_text("raise SystemError('not yet')")
    with pytest.raises(ParameterError, match="not yet"):
        import_weighting(f"{file}:number")
    file.write_text("number = 1  # and now")
    assert import_object(f"{file}:number") == 1


def test_records_cannot_run_code() -> None:
    """A rule that they name is refused without trust, and the message names the option."""
    message = (
        "path must be absent from records that are only read (it names code; --trust, or "
        "trust=True in Python, imports it), got 'os.system'"
    )
    with pytest.raises(ParameterError, match=re.escape(message)):
        refuse_import(Weighting, {"path": "os.system"}, RunContext())
