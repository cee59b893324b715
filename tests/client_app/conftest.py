"""Share fixtures between tests of the ClientApp."""

import importlib
from collections.abc import Iterator

import pytest


@pytest.fixture
def no_node_from_before() -> Iterator[None]:
    """Clear the cached node before and after the test."""
    module = importlib.import_module("client_app.app")  # no other test waits for it
    module._build_node.cache_clear()
    yield
    module._build_node.cache_clear()
