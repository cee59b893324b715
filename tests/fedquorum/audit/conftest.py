"""Runs of every configuration, each made once."""

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import pytest

from tests.fedquorum.audit.runs import WORDS
from tests.server_app.made_runs import make_real_run


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return what makes a run of each configuration, once for all workers of the tests."""
    # Flower's logger keeps the stream it is imported with; a test's own ends with the test.
    import_module("flwr.common.logger")
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "audited"
    folder.mkdir(exist_ok=True)

    def run(name: str) -> Path:
        if not (folder / name).exists():
            made = tmp_path_factory.mktemp("made") / name
            make_real_run(made, *WORDS[name])
            with suppress(OSError):  # another worker was faster
                made.rename(folder / name)
        return folder / name

    return run


@pytest.fixture
def run_copy(runs: Callable[[str], Path], tmp_path: Path) -> Callable[[str], Path]:
    """Return what makes a copy of a run, to change it."""

    def copy(name: str) -> Path:
        return Path(shutil.copytree(runs(name), tmp_path / name))

    return copy
