"""Share fixtures between tests of the ClientApp."""

import importlib
from collections.abc import Iterator

import pytest

from client_app.training.failure_log import FAILURE_LOG


@pytest.fixture(autouse=True)
def no_failures_from_before() -> None:
    """Log every failure, as in a new run."""
    FAILURE_LOG.clear()


@pytest.fixture
def no_node_from_before() -> Iterator[None]:
    """Clear the cached node before and after the test."""
    module = importlib.import_module("client_app.app")  # no other test waits for it
    module._build_node.cache_clear()
    yield
    module._build_node.cache_clear()
