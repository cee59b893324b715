"""What tests of the ClientApp share."""

import importlib
from collections.abc import Iterator

import pytest


@pytest.fixture
def no_node_from_before() -> Iterator[None]:
    """Start and leave without a node that another test made."""
    module = importlib.import_module("client_app.app")  # no other test waits for it
    module._cached_node.cache_clear()
    yield
    module._cached_node.cache_clear()
