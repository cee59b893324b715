"""Shared by all tests: where the real data is, and how a skip is judged."""

import os
import shutil
from pathlib import Path
from typing import NoReturn

import pytest

# Several workers test at the same time, and threads of torch that wait for each other while other
# processes have the cores are many times slower than one thread.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the files with slow tests first, so that no worker is left alone with one at the end."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture(scope="session")
def real_data() -> Path:
    """Return the folder with the real data sets, or skip; in CI a skip is a failure."""
    root = os.environ.get("FEDQUORUM_DATA")
    if not root or not (Path(root) / "FashionMNIST" / "raw").is_dir():
        _skip(f"FEDQUORUM_DATA must be a folder with FashionMNIST/raw, got {root!r}")
    return Path(root).absolute()


@pytest.fixture(scope="session")
def cifar10_subset(real_data: Path) -> Path:
    """Return the .npz file with 15,000 + 3,000 images of CIFAR-10, or skip like ``real_data``."""
    path = real_data / "cifar10_15k3k.npz"
    if not path.is_file():
        _skip(f"FEDQUORUM_DATA must be a folder with cifar10_15k3k.npz, got {str(real_data)!r}")
    return path


@pytest.fixture(scope="session")
def chromium() -> str:
    """Return the path of a Chromium, or skip like ``real_data``."""
    named = os.environ.get("FEDQUORUM_CHROMIUM")
    found = shutil.which(named or "chromium")
    if found is None:
        _skip(
            "FEDQUORUM_CHROMIUM must be the path of a Chromium where there is no command chromium, "
            f"got {named!r}"
        )
    return found


def _skip(message: str) -> NoReturn:
    if os.environ.get("CI"):
        pytest.fail(message)
    pytest.skip(message)
