"""Runs of every configuration, each made once."""

import shutil
from collections.abc import Callable
from contextlib import nullcontext, suppress
from importlib import import_module
from pathlib import Path

import pytest
from fedquorum.errors import RunError
from fedquorum.rules.failures import FailureCounts

from tests.fedquorum.audit.runs import OVERRIDES, REFUSED
from tests.server_app.made_runs import make_real_run


@pytest.fixture(scope="session")
def runs(
    tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Callable[[str], Path]:
    """Return a function that makes a run of each configuration, once for all test workers."""
    # Flower's logger keeps the stream of its import; a stream of a test ends with the test.
    import_module("flwr.common.logger")
    base = tmp_path_factory.getbasetemp()
    # A pytest that a test of a worker starts has the worker's environment, but its own folder.
    folder = (base.parent if hasattr(pytestconfig, "workerinput") else base) / "audited"
    folder.mkdir(exist_ok=True)

    def get_run(name: str) -> Path:
        if not (folder / name).exists():
            directory = tmp_path_factory.mktemp("made") / name
            fails = pytest.raises(RunError, match="no client trained with success")
            with pytest.MonkeyPatch.context() as patch:
                # So that a run whose rounds are all refused has several.
                patch.setattr(FailureCounts, "are_alike", lambda _: False)
                with fails if name in REFUSED else nullcontext():
                    make_real_run(directory, *OVERRIDES[name])
            with suppress(OSError):  # another worker was faster
                directory.rename(folder / name)
        return folder / name

    return get_run


@pytest.fixture
def run_copy(runs: Callable[[str], Path], tmp_path: Path) -> Callable[[str], Path]:
    """Return a function that copies a run, so that a test can change it."""

    def copy_run(name: str) -> Path:
        return Path(shutil.copytree(runs(name), tmp_path / name))

    return copy_run
