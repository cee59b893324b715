"""Shared by all tests: where the real data is, and how a skip is judged."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def real_data() -> Path:
    """Return the folder with the real data sets, or skip; in CI a skip is a failure."""
    root = os.environ.get("FEDQUORUM_DATA")
    if root and (Path(root) / "FashionMNIST" / "raw").is_dir():
        return Path(root).absolute()
    message = f"FEDQUORUM_DATA must be a folder with FashionMNIST/raw, got {root!r}"
    if os.environ.get("CI"):
        pytest.fail(message)
    pytest.skip(message)
