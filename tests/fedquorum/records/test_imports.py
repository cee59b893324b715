"""Test that the records need neither the app nor its libraries."""

import subprocess
import sys

import pytest

from tests.integration.conftest import ROOT

PROGRAM = """
import importlib, pkgutil, sys

class Refused:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {refused}:
            raise ModuleNotFoundError(f"{{name}} is not here", name=name)

sys.meta_path.insert(0, Refused())
import fedquorum.records as records
for module in pkgutil.iter_modules(records.__path__):
    importlib.import_module(f"fedquorum.records.{{module.name}}")
    print(module.name)
"""
REFUSED = (
    *("conf", "client_app", "server_app", "torch", "hydra", "omegaconf", "rich", "tensorboard"),
    "flwr",
)


@pytest.mark.slow
def test_every_module_imports_without_app_torch_and_flower() -> None:
    """All modules of the records import where these packages cannot."""
    command = [sys.executable, "-c", PROGRAM.format(refused=set(REFUSED))]
    printed = subprocess.check_output(command, cwd=ROOT / "strategies", text=True).splitlines()
    folder = ROOT / "strategies" / "fedquorum" / "records"
    assert printed == sorted(path.stem for path in folder.glob("[!_]*.py"))
